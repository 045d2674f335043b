"""Lightning's Trainer, as a Python file with one call of literals. The user's modules make model, optimizer and loader."""

from __future__ import annotations

from gpuwise.export.cells import AnyCell, Cell, Keys, Refused, Row
from gpuwise.export.formats import Name, call_of, call_text, nested
from gpuwise.export.rows import ByValue, Count, Scripted, layout_row
from gpuwise.export.target import DeviceSet, ExportTarget, Heading, launched
from gpuwise.export.targets import common
from gpuwise.export.values import Value
from gpuwise.json_types import Json, JsonObject

_CLASS, _SHARDING = "strategy.class", "strategy.sharding_strategy"
_FLAT = "Lightning's FSDP1 wraps the model alone unless an auto_wrap_policy names its blocks"
_MASTERS = "DeepSpeed keeps parameters in 16 bits beside fp32 copies"
_WHOLE = {"ddp": "replicas", "ddp_find_unused_parameters_true": "replicas", "ddp_find_unused_parameters_false": "replicas"}
_ZERO = {1: "optimizer", 2: "gradients", 3: "parameters"}


def _layouts() -> Row:
    fsdp = {_CLASS: "FSDPStrategy"}
    half = Refused("has replicas of shards, whose groups Lightning makes by machine", ("--to accelerate", "--mesh dp_shard=N"))
    cells: dict[Value, AnyCell] = {
        "one-device": Cell({"strategy": "auto"}),
        "replicas": Cell({"strategy": "ddp"}),
        "shards-parameters": Cell({**fsdp, _SHARDING: "FULL_SHARD"}, differs=_FLAT),
        "shards-gradients": Cell({**fsdp, _SHARDING: "SHARD_GRAD_OP"}, differs=_FLAT),
        "shards-optimizer": Refused(
            "splits the optimizer state alone, and FSDP splits gradients, too", ("--shard gradients", "--to deepspeed")
        ),
        **{f"replicas-of-shards-{what}": half for what in ("parameters", "gradients", "optimizer")},
    }
    also = [({"strategy": word}, {"layout": layout}, "") for word, layout in _WHOLE.items()]
    also += [({_CLASS: "DDPStrategy"}, {"layout": "replicas"}, ""), (fsdp, {"layout": "shards-parameters"}, _FLAT)]
    also += [({"strategy": "fsdp"}, {"layout": "shards-parameters"}, _FLAT)]
    also += [({"strategy": f"deepspeed_stage_{n}"}, {"layout": f"shards-{what}"}, _MASTERS) for n, what in _ZERO.items()]
    return layout_row(cells, also=also)


def _rows() -> tuple[Row, ...]:
    return (
        ByValue(
            ("precision",),
            {
                "fp32": Cell({"precision": "32-true"}),
                "tf32": Cell({"precision": "32-true"}, as_if={"precision": "fp32"}, script=common.TF32),
                "amp-bf16": Cell({"precision": "bf16-mixed"}),
                "amp-fp16": Cell({"precision": "16-mixed"}),
                "bf16": Cell({"precision": "bf16-true"}),
                "fp16": Refused("has fp32 master weights, and Lightning's 16-true has none", ("--precision amp-fp16",)),
                "fp8": Cell(
                    {"precision": "transformer-engine"}, differs="linear layers are Transformer Engine's, not torchao's"
                ),
            },
            also=(
                *(({"precision": word}, {"precision": "fp32"}, "") for word in (None, 32, "fp32")),
                ({"precision": "bf16"}, {"precision": "amp-bf16"}, ""),
                ({"precision": 16}, {"precision": "amp-fp16"}, ""),
            ),
        ),
        Scripted("micro_batch", "DataLoader(batch_size={value})"),
        Count("accumulation", "accumulate_grad_batches"),
        common.in_script("recompute", {"selective": common.SELECTIVE_RECOMPUTE, "full": common.FULL_RECOMPUTE}, default="none"),
        _layouts(),
        *common.never(
            "splits layers or sequences, which the user's configure_model does", "tp", "cp", ways_out=("--to torchtitan",)
        ),
        *common.never("is not trained by Lightning", "pp", "ep", ways_out=("--to torchtitan", "--to megatron")),
        *common.never("is of a mesh that the file does not have", "sequence_parallel", "loss_parallel", "context"),
        *common.never("is of a pipeline, which Lightning does not train", "pipeline_schedule", "stages_per_rank"),
        common.compress_row(Cell(script="DDPStrategy(ddp_comm_hook=bf16_compress_hook)")),
        *common.optimizer_in_script(),
        Scripted("optimizer_in_backward", "register_post_accumulate_grad_hook on each parameter, and manual optimization"),
        Scripted("keep_gradients", "optimizer.zero_grad(set_to_none=False) in LightningModule.optimizer_zero_grad"),
        *common.never(
            "is of one device, and Lightning offloads shards", "offload", ways_out=("--to deepspeed", "--offload none")
        ),
        *common.adapter_rows(),
        Scripted("compile", "torch.compile(model)"),
        Scripted("channels_last", "model.to(memory_format=torch.channels_last)"),
        common.TRAINING_ONLY,
        *common.thread_rows(),
        *common.loader_rows(),
        *common.size_rows(),
        Count("steps", "max_steps", unset=(None, -1)),
        Scripted("checkpoint_steps", "ModelCheckpoint(every_n_train_steps={value}, save_top_k=-1)"),
    )


def _world(world: DeviceSet) -> Keys:
    return {"accelerator": "cpu" if world.on_cpu else "gpu", "devices": world.of_a_machine, "num_nodes": world.machines}


_SAME = {"auto": "gpu", "cuda": "gpu"}  # accelerators by the word that is compared


def _complete(keys: Keys) -> Keys:
    """Words for the devices that are there as numbers, or left out where they fix nothing."""
    plain: dict[str, Json] = dict(keys)
    if isinstance(devices := plain.get("devices"), list):
        plain["devices"] = len(devices)
    if plain.get("devices") in ("auto", -1, "-1"):
        del plain["devices"]
    if (accelerator := plain.get("accelerator")) is not None:
        plain["accelerator"] = _SAME.get(str(accelerator), accelerator)
    return plain


def _write(keys: Keys, heading: Heading) -> str:
    tree = {**nested(keys), "callbacks": Name("callbacks"), "logger": Name("logger")}
    lines = ["from lightning.pytorch import Trainer"]
    if _CLASS in keys:
        lines.append(f"from lightning.pytorch.strategies import {keys[_CLASS]}")
    body = f"    return {call_text('Trainer', tree, {})}"
    comment = "".join(f"# {line}\n" for line in heading.lines())
    return f"{comment}{chr(10).join(lines)}\n\n\ndef trainer(callbacks=None, logger=None):\n{body}\n"


def _parse(text: str) -> JsonObject:
    return call_of(text, (".Trainer",))


TARGET = ExportTarget(
    "lightning",
    "Lightning's Trainer in Python",
    "py",
    _rows(),
    write=_write,
    parse=_parse,
    recognises=lambda tree: True,
    command=lambda world, file: launched("train.py", world) if world.devices > 1 else "python train.py",
    world=_world,
    complete=_complete,
    settle=common.settle_fsdp,
    ignored=(
        "logger callbacks* fast_dev_run max_epochs min_epochs min_steps max_time* limit_*_batches overfit_batches "
        "val_check_interval check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_* gradient_clip_* "
        "deterministic benchmark inference_mode use_distributed_sampler profiler* detect_anomaly reload_dataloaders_* "
        "default_root_dir model_registry strategy.accelerator strategy.parallel_devices strategy.cluster_environment "
        "strategy.checkpoint_io strategy.process_group_backend strategy.timeout strategy.start_method "
        "strategy.find_unused_parameters strategy.static_graph strategy.gradient_as_bucket_view strategy.bucket_cap_mb "
        "strategy.auto_wrap_policy strategy.state_dict_type strategy.save_distributed_checkpoint strategy.use_orig_params "
        "strategy.limit_all_gathers strategy.forward_prefetch strategy.backward_prefetch strategy.sync_module_states"
    ).split(),
    refused={
        "strategy.cpu_offload": "offload over several devices is not forecast so far",
        "strategy.activation_checkpointing*": "name it beside the file: --recompute full",
        "strategy.tensor_parallel_size": "what is split stands in the user's configure_model: --mesh tp=N",
        "strategy.data_parallel_size": "what is split stands in the user's configure_model: --mesh dp_shard=N",
        "strategy.ddp_comm_hook": "name it beside the file: --compress-gradients",
        "strategy.model_averaging_period": "local steps between averages are not forecast so far",
        "sync_batchnorm": "batch norms over devices are not forecast from this file",
        "barebones": "it only switches off what is not forecast",
        "plugins*": "plugins are code",
    },
)
