"""The keys that each peer takes, read from the installed peer: python -m tests.validators.peer_keys [PEER...]

Writes src/gpuwise/export/data/PEER.json: the peer's version, and its keys as dotted paths with the values of absent keys.
Runs in the environment of the validators (run.sh). Run it after a version of requirements.txt has changed, and read the
difference: a key that is new, or that changed its standard, may need a row in gpuwise/export/targets/PEER.py.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import importlib.metadata
import inspect
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

DATA = Path(__file__).parents[2] / "src" / "gpuwise" / "export" / "data"
Keys = dict[str, object]


def accelerate() -> Keys:
    """The fields of its file, and the arguments of `accelerate launch` that its sections are turned into."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    keys: Keys = {f.name: _plain(f.default) for f in dataclasses.fields(ClusterConfig)}
    sections = {"fsdp": "fsdp_", "parallelism": "parallelism_config_", "dynamo": "dynamo_", "fp8": "fp8_"}
    sections |= {"megatron_lm": "megatron_lm_"}
    arguments = {action.dest: action.default for action in launch_command_parser()._actions}
    for section, prefix in sections.items():
        del keys[f"{section}_config"]
        for name, standard in arguments.items():
            if name.startswith(prefix):
                short = name.removeprefix(prefix) if section in ("fp8",) else name
                keys[f"{section}_config.{short}"] = _plain(standard)
    keys |= {"deepspeed_config.*": None, "mpirun_config.*": None}
    return {name: value for name, value in keys.items() if name not in ("deepspeed_config", "mpirun_config")}


def transformers() -> Keys:
    """The fields of TrainingArguments, and the keys that it reads in fsdp_config."""
    from transformers import TrainingArguments

    keys = {f.name: _plain(f.default) for f in dataclasses.fields(TrainingArguments)}
    source = inspect.getsource(TrainingArguments._process_fsdp_args)
    names = re.findall(r'fsdp_config(?:\.get\(|\.setdefault\(|\[)"([a-z0-9_]+)"', source)
    names += re.findall(r'"([a-z0-9_]+)" in self\.fsdp_config', source)
    for name in names:
        keys |= {f"fsdp_config.{name}": None, f"fsdp_config.fsdp_{name}": None}
    keys |= {"fsdp_config.xla_fsdp_settings.*": None, "deepspeed.*": None}
    for name in ("lr_scheduler_kwargs", "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        keys[f"{name}.*"] = None
    keys |= {"accelerator_config.*": None, "liger_kernel_config.*": None, "parallelism_config.*": None}
    return keys


class _WatchedView(list[str]):
    """The keys of a Watched dictionary, in which looking for one is remembered, too."""

    def __init__(self, owner: Watched, keys: typing.Iterable[str]) -> None:
        super().__init__(keys)
        self.owner = owner

    def __contains__(self, key: object) -> bool:
        return key in self.owner


class Watched(dict[str, object]):
    """A dictionary that remembers the keys that somebody looked for."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.looked_for: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.looked_for.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: object = None) -> object:
        self.looked_for.add(key)
        return super().get(key, default)

    def keys(self) -> _WatchedView:  # type: ignore[override]
        return _WatchedView(self, super().keys())

    def __copy__(self) -> Watched:
        return self


def deepspeed() -> Keys:
    """What DeepSpeedConfig looks for in its dictionary and in each section, and the fields of its pydantic models."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig
    from pydantic import BaseModel

    top = Watched({"train_batch_size": 1})
    config = DeepSpeedConfig(top)
    models = {
        "zero_optimization": config.zero_config,
        "bf16": config.bfloat16_config,
        "fp16": config.float16_config,
        "compile": config.compile_config,
        "flops_profiler": config.flops_profiler_config,
        "comms_logger": None,
        "tensor_parallel": config.tensor_parallel_config,
        "hybrid_engine": config.hybrid_engine,
        "tensorboard": config.monitor_config.tensorboard,
        "wandb": config.monitor_config.wandb,
        "csv_monitor": config.monitor_config.csv_monitor,
        "comet": config.monitor_config.comet,
    }
    keys: Keys = {}
    for name in sorted(top.looked_for):
        model = models.get(name)
        if isinstance(model, BaseModel):
            keys |= {f"{name}.{path}": value for path, value in _fields_of(type(model))}
            continue
        section = Watched()
        try:
            DeepSpeedConfig(Watched({"train_batch_size": 1, name: section}))
        except Exception:
            section = Watched()
        inner = {key for key in section.looked_for if key.isidentifier()}
        keys |= {f"{name}.{key}": None for key in sorted(inner)} or {name: None}
        if name in ("autotuning", "elasticity", "data_efficiency", "aio", "comms_logger", "expert_parallel"):
            keys[f"{name}.*"] = None
    for name in ("optimizer.params", "scheduler.params"):
        keys.pop(name, None)
        keys[f"{name}.*"] = None
    keys |= {"zero_optimization.stage": 0, "gradient_accumulation_steps": None, "train_micro_batch_size_per_gpu": None}
    keys |= {"optimizer.type": None, "scheduler.type": None, "torch_autocast.enabled": False, "gradient_clipping": 0.0}
    return dict(sorted(keys.items()))


def _fields_of(model: type) -> Iterator[tuple[str, object]]:
    """The fields of a pydantic model and of those within it, by the names that stand in a file."""
    from pydantic import BaseModel

    for name, info in model.model_fields.items():  # type: ignore[attr-defined]
        label = info.alias or name
        inner = [kind for kind in (info.annotation, *typing.get_args(info.annotation)) if inspect.isclass(kind)]
        models = [kind for kind in inner if issubclass(kind, BaseModel)]
        if models:
            yield from ((f"{label}.{path}", None) for path, _ in _fields_of(models[0]))
        elif "dict" in str(info.annotation).lower():
            yield f"{label}.*", None
        else:
            yield label, _plain(info.default)


def lightning() -> Keys:
    """The keywords of Trainer, and those of its strategies."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy

    keys = {name: _plain(p.default) for name, p in inspect.signature(Trainer.__init__).parameters.items() if name != "self"}
    keys["strategy.class"] = None
    for strategy in (DDPStrategy, FSDPStrategy, ModelParallelStrategy):
        for name in inspect.signature(strategy.__init__).parameters:
            if name not in ("self", "kwargs"):
                keys[f"strategy.{name}"] = None
    for name in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "bucket_cap_mb"):
        keys[f"strategy.{name}"] = None  # of DistributedDataParallel, which DDPStrategy hands on
    for name in ("use_orig_params", "limit_all_gathers", "forward_prefetch", "backward_prefetch", "sync_module_states"):
        keys[f"strategy.{name}"] = None  # of FullyShardedDataParallel, which FSDPStrategy hands on
    keys |= {"callbacks.*": None, "logger.*": None, "plugins.*": None, "profiler.*": None, "max_time.*": None}
    return keys


def torchtitan() -> Keys:
    """The fields of Trainer.Config and of the configurations within it."""
    from torchtitan.distributed.activation_checkpoint import FullAC, MemoryBudgetAC, SelectiveAC
    from torchtitan.trainer import Trainer

    keys = dict(_dataclass_fields(Trainer.Config, level=0))
    for policy in (FullAC, SelectiveAC, MemoryBudgetAC):
        keys |= {f"activation_checkpoint.{path}": value for path, value in _dataclass_fields(policy.Config, level=1)}
    keys |= {"activation_checkpoint.class": "SelectiveAC.Config", "optimizer.*": None, "model_spec.*": None, "loss.*": None}
    keys |= {"dataloader.*": None, "tokenizer.*": None, "lr_scheduler.*": None}
    return dict(sorted(keys.items()))


# Arguments of megatron/training/arguments.py that stand in no class of megatron-core, in the groups of that file.
LAUNCHER = {
    "of the batch and the run": "micro-batch-size global-batch-size rampup-batch-size train-iters train-samples exit-interval "
    "exit-duration-in-mins exit-signal-handler seed distributed-timeout-minutes distributed-backend",
    "of the model": "seq-length max-position-embeddings position-embedding-type rotary-base rotary-percent use-rope-scaling "
    "use-rotary-position-embeddings group-query-attention num-query-groups swiglu squared-relu disable-bias-linear "
    "untie-embeddings-and-output-weights make-vocab-size-divisible-by norm-epsilon num-experts decoder-num-layers "
    "encoder-num-layers encoder-seq-length decoder-seq-length spec use-mcore-models vocab-size",
    "of parallelism": "num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank overlap-grad-reduce "
    "overlap-param-gather no-overlap-p2p-communication grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32 "
    "use-torch-fsdp2 recompute-activations use-flash-attn no-gradient-accumulation-fusion fp8-format main-grads-dtype "
    "main-params-dtype no-masked-softmax-fusion no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion "
    "no-rope-fusion manual-gc manual-gc-interval cross-entropy-loss-fusion use-cpu-initialization tp-comm-overlap",
    "of learning": "lr min-lr lr-decay-style lr-decay-iters lr-decay-samples lr-warmup-iters lr-warmup-fraction "
    "lr-warmup-samples weight-decay clip-grad adam-beta1 adam-beta2 adam-eps init-method-std loss-scale initial-loss-scale "
    "min-loss-scale loss-scale-window hysteresis sgd-momentum attention-dropout hidden-dropout",
    "of data and files": "data-path split train-data-path valid-data-path test-data-path data-cache-path vocab-file merge-file "
    "tokenizer-type tokenizer-model mock-data num-workers no-mmap-bin-files dataloader-type eod-mask-loss "
    "reset-position-ids reset-attention-mask save load save-interval no-save-optim no-save-rng no-load-optim no-load-rng "
    "finetune ckpt-format async-save ckpt-fully-parallel-save eval-iters eval-interval auto-detect-ckpt-format "
    "dist-ckpt-strictness no-create-attention-mask-in-dataloader",
    "of logs": "log-interval log-throughput log-timers-to-tensorboard log-memory-to-tensorboard tensorboard-dir wandb-project "
    "wandb-exp-name wandb-save-dir timing-log-level profile profile-step-start profile-step-end profile-ranks "
    "log-params-norm log-num-zeros-in-grad log-progress log-validation-ppl-to-tensorboard",
}
_NOT_FLAGS = ("timers", "_func", "dtype", "init_method", "activation_func", "_context")


def megatron() -> Keys:
    """The fields of megatron-core's configurations as flags, and LAUNCHER."""
    from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig
    from megatron.core.optimizer.optimizer_config import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    keys: Keys = {}
    for kind in (TransformerConfig, OptimizerConfig, DistributedDataParallelConfig):
        for f in dataclasses.fields(kind):
            if not f.name.startswith("_") and not f.name.endswith(_NOT_FLAGS):
                keys[f.name.replace("_", "-")] = _plain(f.default)
    keys |= {name: None for names in LAUNCHER.values() for name in names.split() if name not in keys}
    return dict(sorted({**keys, "cp-comm-type": "p2p", "num-workers": 2}.items()))


def _dataclass_fields(kind: type, level: int) -> Iterator[tuple[str, object]]:
    hints = typing.get_type_hints(kind)
    for f in dataclasses.fields(kind):
        hint = hints[f.name]
        inner = f.default_factory if inspect.isclass(f.default_factory) else hint
        if dataclasses.is_dataclass(inner) and level < 3:
            yield f"{f.name}.class", None
            yield from ((f"{f.name}.{path}", value) for path, value in _dataclass_fields(typing.cast(type, inner), level + 1))
        else:
            yield f.name, _plain(f.default)


def _plain(value: object) -> object:
    """A standard as JSON has it; None where it is made anew or is no plain value."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is inspect.Parameter.empty or not isinstance(value, bool | int | float | str):
        return None
    return copy.copy(value)


PEERS: dict[str, Callable[[], Keys]] = {
    "accelerate": accelerate,
    "transformers": transformers,
    "deepspeed": deepspeed,
    "lightning": lightning,
    "torchtitan": torchtitan,
    "megatron": megatron,
}
_PACKAGES = {"megatron": "megatron-core"}


def main(names: list[str]) -> None:
    for name in names or list(PEERS):
        data = {
            "peer": _PACKAGES.get(name, name),
            "version": importlib.metadata.version(_PACKAGES.get(name, name)),
            "made_by": f"python -m tests.validators.peer_keys {name}",
            "whole": name != "megatron",
            "keys": PEERS[name](),
        }
        text = json.dumps(data, indent=1, sort_keys=False) + "\n"
        (DATA / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name} {data['version']}: {len(data['keys'])} keys", file=sys.stderr)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1:])
