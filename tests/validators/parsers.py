"""Each peer's own parser over the text of an exported file. A parser raises where the peer would refuse the file."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

from gpuwise.export.cells import Keys
from gpuwise.export.formats import nested
from gpuwise.export.target import DeviceSet

Parser = Callable[[Path, Keys, DeviceSet], None]


def accelerate(file: Path, keys: Keys, world: DeviceSet) -> None:
    """load_config_from_file, the checks of `accelerate launch`, and each key of fsdp_config among the arguments it becomes."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin

    config = load_config_from_file(str(file))
    assert config.num_processes == world.devices
    parser = launch_command_parser()
    _validate_launch_command(parser.parse_args(["--config_file", str(file), "train.py"]))
    plugin = {f.name for f in dataclasses.fields(FullyShardedDataParallelPlugin)}
    arguments = {action.dest for action in parser._actions}
    for name in config.fsdp_config:
        assert name in arguments, f"{name} is no argument of accelerate launch"
        assert {name, name.removeprefix("fsdp_")} & plugin, f"{name} is no field of FullyShardedDataParallelPlugin"
    for name in (*config.parallelism_config, *config.dynamo_config):
        assert name in arguments or name.replace("dynamo_", "") in arguments, name


def transformers(file: Path, keys: Keys, world: DeviceSet) -> None:
    """HfArgumentParser over the file, with TF32 as on a GPU."""
    from transformers import HfArgumentParser, TrainingArguments

    data = json.loads(file.read_text())
    names = {"is_torch_tf32_available": True, "is_torch_bf16_gpu_available": True}
    module = sys.modules["transformers.training_args"]
    with mock.patch.multiple(
        module, **{name: lambda value=value: value for name, value in names.items() if hasattr(module, name)}
    ):
        (arguments,) = HfArgumentParser(TrainingArguments).parse_dict({**data, "use_cpu": True})
    assert arguments.per_device_train_batch_size == keys.get("per_device_train_batch_size", 8)


def deepspeed(file: Path, keys: Keys, world: DeviceSet) -> None:
    """DeepSpeedConfig of the file on as many ranks, and every section by its pydantic model, which refuses other keys."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime import config as module

    ranks = world.devices // int(str(keys.get("tensor_parallel.autotp_size", 1)))
    with (
        mock.patch.object(module.dist, "get_world_size", return_value=ranks),
        mock.patch.object(module.dist, "get_rank", return_value=0),
    ):
        config = module.DeepSpeedConfig(str(file))
    assert config.zero_optimization_stage == keys.get("zero_optimization.stage", 0)
    assert config.train_batch_size == keys["train_batch_size"]


def lightning(file: Path, keys: Keys, world: DeviceSet) -> None:
    """jsonargparse over the signature of Trainer, with strategies by their classes."""
    from jsonargparse import ArgumentParser
    from lightning.pytorch import Trainer

    tree = nested(keys)
    if isinstance(strategy := tree.get("strategy"), Mapping):
        settings = {name: value for name, value in strategy.items() if name != "class"}
        tree["strategy"] = {"class_path": f"lightning.pytorch.strategies.{strategy['class']}", "init_args": settings}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Trainer)
    parser.parse_object(tree)
    compile(file.read_text(), str(file), "exec")


def torchtitan(file: Path, keys: Keys, world: DeviceSet) -> None:
    """ConfigManager over the module; then the sizes it understood."""
    from torchtitan.config import ConfigManager

    sys.path.insert(0, str(file.parent))
    sys.modules.pop(file.stem, None)
    importlib.invalidate_caches()
    try:
        config = ConfigManager().parse_args(["--module", file.stem, "--config", "planned"])
    finally:
        sys.path.remove(str(file.parent))
    assert config.training.global_batch_size == keys["training.global_batch_size"]
    from torchtitan.distributed import ParallelDims

    degrees = config.parallelism
    ParallelDims(
        dp_replicate=degrees.data_parallel_replicate_degree,
        dp_shard=degrees.data_parallel_shard_degree,
        cp=degrees.context_parallel_degree,
        tp=degrees.tensor_parallel_degree,
        pp=degrees.pipeline_parallel_degree,
        ep=degrees.expert_parallel_degree,
        world_size=world.devices,
    )


def megatron(file: Path, keys: Keys, world: DeviceSet) -> None:
    """TransformerConfig of the arguments that are fields of it, and parse_args where $MEGATRON_LM is a checkout."""
    import torch
    from megatron.core.optimizer.optimizer_config import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    values = {name.replace("-", "_"): value for name, value in keys.items()}
    model = {"num_layers": 32, "hidden_size": 64, "num_attention_heads": 8, "pipeline_dtype": torch.bfloat16}
    for kind, more in ((TransformerConfig, model), (OptimizerConfig, {})):
        names = {f.name for f in dataclasses.fields(kind)}
        kind(**{**more, **{name: value for name, value in values.items() if name in names}})
    if checkout := os.environ.get("MEGATRON_LM"):
        sys.path.insert(0, checkout)
        from megatron.training.arguments import parse_args

        words = [
            word for name, value in keys.items() for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
        ]
        with mock.patch.object(sys, "argv", ["pretrain_gpt.py", *words]):
            parse_args()


PARSERS: dict[str, Parser] = {
    "accelerate": accelerate,
    "transformers": transformers,
    "deepspeed": deepspeed,
    "lightning": lightning,
    "torchtitan": torchtitan,
    "megatron": megatron,
}


def quietly(parser: Parser, file: Path, keys: Keys, world: DeviceSet) -> None:
    """Runs a parser without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser(file, keys, world)
