"""DeepSpeed's JSON file: ZeRO stages, offload, precision and batch. The script makes the model, and may make the optimizer."""

from __future__ import annotations

import json

from gpuwise.export.cells import AnyCell, Cell, Keys, Reading, Refused, Row
from gpuwise.export.formats import json_of, nested
from gpuwise.export.rows import ByValue, Count, Never, Scripted, layout_row
from gpuwise.export.target import DeviceSet, ExportTarget, Heading
from gpuwise.export.targets import common
from gpuwise.export.values import Value, Values, layout_of, number_of
from gpuwise.json_types import Json, JsonObject

_ZERO, _PARAMS = "zero_optimization.", "optimizer.params."
_STAGE = f"{_ZERO}stage"
_OPTIMIZER, _PARAMETERS = f"{_ZERO}offload_optimizer.device", f"{_ZERO}offload_param.device"
_MASTERS = "parameters are in bf16 beside fp32 copies: 16 to 18 bytes a parameter with Adam, where autocast has 16"
_AUTOCAST_REDUCES = "ZeRO reduces gradients in the 16 bits of the arithmetic"
_HALF = Refused("has replicas of shards, and ZeRO shards over all devices", ("--mesh dp_shard=N", "--to accelerate"))


def _layout(values: Values) -> Value:
    return layout_of(values) if values["offload"] == "none" else f"offload of {values['offload']}"


def _precision(values: Values) -> Value:
    return f"{values['precision']} of shards" if _in_zero(values) and values["precision"] == "bf16" else values["precision"]


def _in_zero(values: Values) -> bool:
    return common.is_sharded(values) or values["offload"] != "none"


def _layouts() -> Row:
    """ZeRO's stages; offload is of one device, where a stage has nothing to split."""
    cells: dict[Value, AnyCell] = {
        "replicas": Cell({_STAGE: 0}),
        "one-device": Cell({_STAGE: 0}),
        "shards-optimizer": Cell({_STAGE: 1}),
        "shards-gradients": Cell({_STAGE: 2}),
        "shards-parameters": Cell({_STAGE: 3}),
        "offload of optimizer": Cell(
            {_STAGE: 2, _OPTIMIZER: "cpu"}, as_if={"layout": "shards-gradients", "offload": "optimizer"}
        ),
        "offload of parameters": Cell(
            {_STAGE: 3, _OPTIMIZER: "cpu", _PARAMETERS: "cpu"}, as_if={"layout": "shards-parameters", "offload": "parameters"}
        ),
        **{f"replicas-of-shards-{what}": _HALF for what in ("parameters", "gradients", "optimizer")},
    }
    also: list[tuple[Keys, Values, str]] = [
        ({_STAGE: stage, _OPTIMIZER: "cpu"}, {"layout": layout, "offload": "optimizer"}, "")
        for stage, layout in ((1, "shards-optimizer"), (3, "shards-parameters"))
    ]
    return layout_row(cells, word=_layout, also=also, more=("offload",))


def _optimizers() -> Row:
    client: dict[Value, AnyCell] = {
        name: Cell(script=f"deepspeed.initialize(optimizer={text})") for name, text in common.OPTIMIZERS.items()
    }
    cells: dict[Value, AnyCell] = {
        None: Cell(script="deepspeed.initialize(optimizer=...) with the job's own optimizer"),
        **client,
        "adam": Cell({"optimizer.type": "Adam", f"{_PARAMS}adam_w_mode": False}),
        "adamw": Cell({"optimizer.type": "AdamW"}),
        "sgd": Cell({"optimizer.type": "SGD"}),
        "momentum": Cell({"optimizer.type": "SGD", f"{_PARAMS}momentum": 0.9}),
        "muon": Cell({"optimizer.type": "Muon"}, differs="DeepSpeed's Muon gathers each matrix that ZeRO has split"),
    }
    return ByValue(
        ("optimizer",),
        cells,
        also=(
            ({"optimizer.type": "Adam"}, {"optimizer": "adamw"}, ""),
            ({"optimizer.type": "Adam", f"{_PARAMS}adam_w_mode": True}, {"optimizer": "adamw"}, ""),
            ({"optimizer.type": "AdamW", f"{_PARAMS}adam_w_mode": True}, {"optimizer": "adamw"}, ""),
        ),
    )


def _rows() -> tuple[Row, ...]:
    autocast: Keys = {"torch_autocast.enabled": True}
    masters = {"bf16.enabled": True, "bf16.bf16_master_weights_and_grads": True}
    return (
        ByValue(
            ("precision",),
            {
                "fp32": Cell(),
                "tf32": Cell(as_if={"precision": "fp32"}, script=common.TF32),
                "amp-bf16": Cell({**autocast, "torch_autocast.dtype": "bfloat16"}),
                "amp-fp16": Cell({**autocast, "torch_autocast.dtype": "float16"}),
                "bf16": Refused("has no fp32 copies, which DeepSpeed leaves out only with ZeRO", ("--precision amp-bf16",)),
                "bf16 of shards": Cell({**masters, "bf16.bf16_optimizer_states": True}, as_if={"precision": "bf16"}),
                "fp16": Cell({"fp16.enabled": True}),
                "fp8": Refused("is not in DeepSpeed's file", ("--precision amp-bf16", "--to accelerate")),
            },
            _precision,
            also=(
                ({"bf16.enabled": True}, {"precision": "amp-bf16"}, _MASTERS),
                ({"fp16.enabled": True, "fp16.auto_cast": True}, {"precision": "fp16"}, ""),
                *(({**autocast, "torch_autocast.dtype": word}, {"precision": "amp-bf16"}, "") for word in ("bf16",)),
                *(({**autocast, "torch_autocast.dtype": word}, {"precision": "amp-fp16"}, "") for word in ("fp16", "half")),
            ),
        ),
        Count("micro_batch", "train_micro_batch_size_per_gpu"),
        Count("accumulation", "gradient_accumulation_steps"),
        ByValue(
            ("recompute",),
            {
                "none": Cell(),
                "selective": Cell(script=common.SELECTIVE_RECOMPUTE),
                "full": Cell(script=common.FULL_RECOMPUTE),
            },
        ),
        _layouts(),
        Count("tp", "tensor_parallel.autotp_size", differs="AutoTP splits the linear layers that it knows", unset=(None, 0, 1)),
        Never(
            "pp",
            "is a pipeline, which a PipelineModule in the script makes, not the file",
            ("--to torchtitan", "--to megatron"),
        ),
        *common.never("splits the sequence by Ulysses in the script, not in the file", "cp", "context"),
        Never("ep", "splits experts by layers in the script, not by the file", ("--to torchtitan", "--to megatron")),
        *common.never("is not in AutoTP", "sequence_parallel", "loss_parallel"),
        *common.never("is of a pipeline, which the script makes", "pipeline_schedule", "stages_per_rank"),
        ByValue(
            ("compress_gradients",),
            {
                False: Cell(),
                True: Cell({"communication_data_type": "bf16"}),
                "autocast": Cell(differs=_AUTOCAST_REDUCES, as_if={"compress_gradients": True}),
            },
            lambda values: (
                "autocast" if _reduces(values) and not values["compress_gradients"] else values["compress_gradients"]
            ),
            also=(
                ({"communication_data_type": "fp32"}, {"compress_gradients": False}, ""),
                ({"communication_data_type": "fp16"}, {"compress_gradients": True}, "reduced in fp16, not in bf16"),
            ),
        ),
        _optimizers(),
        ByValue(
            ("optimizer_kernels",),
            {
                None: Cell(),
                "fused": Cell(),
                "foreach": Cell({f"{_PARAMS}torch_adam": True}),
                "for-loop": Refused("updates one tensor at a time, which no optimizer of DeepSpeed does"),
            },
        ),
        *common.never("updates within backward, and DeepSpeed's engine updates in its step", "optimizer_in_backward"),
        *common.never("keeps gradients, which DeepSpeed's engine frees", "keep_gradients"),
        *common.adapter_rows(),
        ByValue(("compile",), {False: Cell(), True: Cell(script="engine.compile()")}),
        Scripted("channels_last", "model.to(memory_format=torch.channels_last)"),
        common.TRAINING_ONLY,
        *common.thread_rows(),
        *common.loader_rows(),
        *common.size_rows(),
        *common.run_rows(),
    )


def _reduces(values: Values) -> bool:
    return common.is_sharded(values) and values["precision"] in ("amp-bf16", "amp-fp16")


def _settle(values: Values) -> Reading | None:
    if values["precision"] == "fp16" and number_of(values, "dp_replicate") * number_of(values, "dp_shard") > 1:
        return Reading({"precision": "amp-fp16"}, (), "parameters are in fp16 beside fp32 copies")
    if _reduces(values) and not values["compress_gradients"]:
        return Reading({"compress_gradients": True}, (), _AUTOCAST_REDUCES)
    return None


def _complete(keys: Keys) -> Keys:
    """Names of older versions by today's, and a momentum of any size by the one of the table."""
    renamed: dict[str, Json] = {name.replace("bfloat16.", "bf16."): value for name, value in keys.items()}
    for name in (_OPTIMIZER, _PARAMETERS):
        if renamed.get(name) == "none":
            del renamed[name]
    momentum = renamed.get(f"{_PARAMS}momentum")
    if isinstance(momentum, int | float) and not isinstance(momentum, bool):
        renamed[f"{_PARAMS}momentum"] = 0.9
        if momentum == 0:
            del renamed[f"{_PARAMS}momentum"]
    return renamed


def _write(keys: Keys, heading: Heading) -> str:
    return json.dumps({"gpuwise": heading.line(), **nested(keys)}, indent=2) + "\n"


def _recognises(tree: JsonObject) -> bool:
    names = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "bf16", "fp16", "torch_autocast")
    return any(isinstance(tree.get(name), dict | int | str) for name in names) and "output_dir" not in tree


def _command(world: DeviceSet, file: str) -> str:
    nodes = "" if world.machines == 1 else f"--num_nodes {world.machines} --hostfile hostfile "
    return f"deepspeed {nodes}--num_gpus {world.of_a_machine} train.py --deepspeed_config {file}"


TARGET = ExportTarget(
    "deepspeed",
    "DeepSpeed's JSON file",
    "json",
    _rows(),
    write=_write,
    parse=json_of,
    recognises=_recognises,
    command=_command,
    fixed={"zero_allow_untested_optimizer": True},
    global_batch="train_batch_size",
    settle=_settle,
    complete=_complete,
    comment="gpuwise",
    auto="auto",
    ignored=(
        "gpuwise zero_allow_untested_optimizer zero_force_ds_cpu_optimizer optimizer.params.* optimizer.legacy_fusion "
        "scheduler.* gradient_clipping steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level "
        "disable_python_gc prescale_gradients gradient_predivide_factor gradient_allreduce_op dataloader_drop_last "
        "checkpoint.* tensorboard.* wandb.* csv_monitor.* comet.* flops_profiler.* comms_logger* timers.* vocabulary_size "
        "fp16.loss_scale* fp16.initial_scale_power fp16.hysteresis fp16.consecutive_hysteresis fp16.min_loss_scale "
        "bf16.check_grad_overflow bf16.immediate_grad_update managed_gradient_accumulation activation_checkpointing.profile "
        "activation_checkpointing.number_checkpoints activation_checkpointing.synchronize_checkpoint_boundary aio.* "
        "zero_optimization.*bucket_size zero_optimization.overlap_comm zero_optimization.contiguous_gradients "
        "zero_optimization.reduce_scatter zero_optimization.allgather_partitions zero_optimization.round_robin_gradients "
        "zero_optimization.sub_group_size zero_optimization.stage3_* zero_optimization.*.pin_memory "
        "zero_optimization.*.buffer_* zero_optimization.*.pipeline_* zero_optimization.*.fast_init "
        "zero_optimization.ignore_unused_parameters zero_optimization.elastic_checkpoint "
        "zero_optimization.load_from_fp32_weights zero_optimization.log_trace_cache_warnings "
        "zero_optimization.enable_sanity_checks zero_optimization.memory_efficient_linear"
    ).split(),
    refused={
        "zero_optimization.zero_quantized*": "quantized communication (ZeRO++) is not forecast so far",
        "zero_optimization.zero_hpz*": "a second partition of parameters (ZeRO++) is not forecast so far",
        "zero_optimization.zenflow*": "ZenFlow is not forecast so far",
        "zero_optimization.cpu_offload*": "it is deprecated: write offload_optimizer and offload_param",
        "activation_checkpointing.*": "it takes effect through DeepSpeed's own checkpointing in the model, not forecast so far",
        "compile.*": "DeepCompile is not forecast so far",
        "autotuning.*": "autotuning changes the settings themselves",
        "elasticity*": "elastic batches are not forecast so far",
    },
)
