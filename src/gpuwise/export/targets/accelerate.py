"""Accelerate's YAML file: `accelerate launch --config_file FILE script.py`. The script makes model, optimizer and loader."""

from __future__ import annotations

from gpuwise.export.cells import Cell, Keys, Refused, Row
from gpuwise.export.formats import nested, yaml_of
from gpuwise.export.rows import ByValue, Count, Never, Scripted, When, layout_row
from gpuwise.export.target import DeviceSet, ExportTarget, Heading
from gpuwise.export.targets import common
from gpuwise.export.values import Value, Values, layout_of, number_of
from gpuwise.json_types import JsonObject
from gpuwise.yaml_text import yaml_text

_FSDP, _MESH = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_"
_SHARDED: Keys = {
    "distributed_type": "FSDP",
    f"{_FSDP}version": 2,
    f"{_FSDP}auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    f"{_FSDP}reshard_after_forward": True,
}
_KEPT: Keys = {**_SHARDED, f"{_FSDP}reshard_after_forward": False}
_FSDP_BY_SIZE: Keys = {**_SHARDED, f"{_FSDP}auto_wrap_policy": "SIZE_BASED_WRAP"}
_SIZE = "FSDP units are made by size; the forecast has one for each block"
_WRAPPED = "FSDP units are the classes in the model's _no_split_modules, or in fsdp_transformer_layer_cls_to_wrap"
_NO_ZERO_1 = Refused(
    "splits the optimizer state alone, and FSDP splits gradients, too", ("--shard gradients", "--to deepspeed")
)


def _layout(values: Values) -> Value:
    """A layout's word; `split` behind it where devices split layers or the sequence, too."""
    split = number_of(values, "tp") * number_of(values, "cp") > 1
    return layout_of(values) + (" split" if split else "")


def _has_mesh(values: Values) -> bool:
    """Whether the file needs a mesh: accelerate makes one of FSDP alone by itself."""
    return _layout(values) not in ("one-device", "replicas", "shards-parameters", "shards-gradients")


def _recompute(values: Values) -> Value:
    return f"{values['recompute']}{' of shards' if common.is_sharded(values) and values['recompute'] != 'none' else ''}"


def _rows() -> tuple[Row, ...]:
    shards = Cell(_SHARDED, differs=_WRAPPED)
    kept = Cell(_KEPT, differs=_WRAPPED)
    mesh = "has copies whose layers or sequences are split, for which accelerate has no mesh"
    return (
        ByValue(
            ("precision",),
            {
                "fp32": Cell({"mixed_precision": "no"}),
                "tf32": Cell({"mixed_precision": "no"}, as_if={"precision": "fp32"}, script=common.TF32),
                "amp-bf16": Cell({"mixed_precision": "bf16"}),
                "amp-fp16": Cell({"mixed_precision": "fp16"}),
                "bf16": Cell({"mixed_precision": "no"}, as_if={"precision": "fp32"}, script="model.to(torch.bfloat16)"),
                "fp16": Refused("has fp32 master weights beside fp16 parameters", ("--precision amp-fp16", "--to deepspeed")),
                "fp8": Cell(
                    {"mixed_precision": "fp8", "fp8_config.backend": "AO"},
                    differs="accelerate leaves the first and the last linear layer in bf16",
                ),
            },
            also=(({}, {"precision": "fp32"}, ""),),
        ),
        Scripted("micro_batch", "DataLoader(batch_size={value})"),
        Scripted("accumulation", "Accelerator(gradient_accumulation_steps={value}), and accelerator.accumulate(model)"),
        ByValue(
            ("recompute",),
            {
                "none": Cell(),
                "selective": Cell(script=common.SELECTIVE_RECOMPUTE, as_if={"recompute": "none"}),
                "full": Cell(script=common.FULL_RECOMPUTE, as_if={"recompute": "none"}),
                "full of shards": Cell({f"{_FSDP}activation_checkpointing": True}, as_if={"recompute": "full"}),
                "selective of shards": Cell(
                    {f"{_FSDP}activation_checkpointing": True},
                    differs="FSDP in accelerate recomputes whole blocks",
                    as_if={"recompute": "full"},
                ),
            },
            _recompute,
        ),
        layout_row(
            {
                "one-device": Cell({"distributed_type": "NO"}),
                "replicas": Cell({"distributed_type": "MULTI_GPU"}),
                "shards-parameters": shards,
                "shards-gradients": kept,
                "shards-optimizer": _NO_ZERO_1,
                "replicas-of-shards-parameters": shards,
                "replicas-of-shards-gradients": kept,
                "replicas-of-shards-optimizer": _NO_ZERO_1,
                "one-device split": shards,
                "replicas split": Refused(mesh, ("--mesh dp_shard=N,...",)),
                "shards-parameters split": shards,
                "shards-gradients split": kept,
                "shards-optimizer split": _NO_ZERO_1,
                "replicas-of-shards-parameters split": shards,
                "replicas-of-shards-gradients split": kept,
                "replicas-of-shards-optimizer split": _NO_ZERO_1,
            },
            word=_layout,
            also=(
                ({"distributed_type": "MULTI_CPU"}, {"layout": "replicas"}, ""),
                (_FSDP_BY_SIZE, {"layout": "shards-parameters"}, _SIZE),
                ({"distributed_type": "FSDP", f"{_FSDP}version": 2}, {"layout": "shards-parameters"}, _WRAPPED),
                *(
                    (
                        {"distributed_type": "FSDP", f"{_FSDP}auto_wrap_policy": policy, f"{_FSDP}reshard_after_forward": at},
                        {"layout": layout},
                        f"{words}; FSDP1 joins a unit's parameters in one flat tensor",
                    )
                    for policy, words in (("TRANSFORMER_BASED_WRAP", _WRAPPED), ("SIZE_BASED_WRAP", _SIZE))
                    for at, layout in (("FULL_SHARD", "shards-parameters"), ("SHARD_GRAD_OP", "shards-gradients"))
                ),
            ),
        ),
        When(Count("dp_replicate", f"{_MESH}dp_replicate_size", unset=(None, 1)), _has_mesh),
        When(Count("dp_shard", f"{_MESH}dp_shard_size", unset=(None, 1)), _has_mesh),
        Count("tp", f"{_MESH}tp_size", differs="only models of transformers with a tp_plan are split so"),
        Never("pp", "is a pipeline, which accelerate does not train", ("--to torchtitan", "--mesh dp_shard=N")),
        Count("cp", f"{_MESH}cp_size"),
        Never("ep", "splits experts, for which accelerate has no key", ("--to torchtitan", "--to megatron")),
        *common.never("is of transformers' tp_plan, not of the file", "sequence_parallel", "loss_parallel"),
        ByValue(
            ("context",),
            {
                "gather": Cell({f"{_MESH}cp_comm_strategy": "allgather"}),
                "ring": Cell(
                    {f"{_MESH}cp_comm_strategy": "alltoall"}, differs="keys and values are passed on by all-to-all collectives"
                ),
                "all-to-all": Refused("goes from parts of the sequence to parts of the heads", ("--context gather",)),
            },
        ),
        *common.never("is of a pipeline, which accelerate does not train", "pipeline_schedule", "stages_per_rank"),
        common.compress_row(Cell(script="DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)")),
        *common.optimizer_in_script(),
        Scripted("optimizer_in_backward", "register_post_accumulate_grad_hook on each parameter"),
        Scripted("keep_gradients", "optimizer.zero_grad(set_to_none=False)"),
        Never("offload", "is of one device, and accelerate offloads shards", ("--to deepspeed", "--offload none")),
        *common.adapter_rows(),
        ByValue(
            ("compile",),
            {False: Cell(), True: Cell({"dynamo_config.dynamo_backend": "INDUCTOR"})},
            also=(({"dynamo_config.dynamo_backend": "NO"}, {"compile": False}, ""),),
        ),
        Scripted("channels_last", "model.to(memory_format=torch.channels_last)"),
        common.TRAINING_ONLY,
        Scripted("threads", "OMP_NUM_THREADS={value} in the environment"),
        ByValue(
            ("pin_threads",),
            {
                None: Cell(),
                False: Cell(),
                True: Cell({"enable_cpu_affinity": True}, differs="a process is bound to its cores"),
            },
        ),
        *common.loader_rows(),
        *common.size_rows(),
        *common.run_rows(),
    )


def _world(world: DeviceSet) -> Keys:
    keys: Keys = {"num_processes": world.devices, "num_machines": world.machines, "use_cpu": world.on_cpu}
    return {**keys, "distributed_type": "MULTI_CPU"} if world.on_cpu and world.devices > 1 else keys


def _write(keys: Keys, heading: Heading) -> str:
    return yaml_text(nested(keys), comment=heading.lines())


def _recognises(tree: JsonObject) -> bool:
    return "distributed_type" in tree or "compute_environment" in tree


def _command(world: DeviceSet, file: str) -> str:
    rank = "" if world.machines == 1 else "--machine_rank $RANK_OF_MACHINE --main_process_ip $FIRST_MACHINE "
    return f"accelerate launch --config_file {file} {rank}train.py"


TARGET = ExportTarget(
    "accelerate",
    "accelerate's YAML file",
    "yaml",
    _rows(),
    write=_write,
    parse=yaml_of,
    recognises=_recognises,
    command=_command,
    fixed={"compute_environment": "LOCAL_MACHINE", "debug": False},
    world=_world,
    settle=common.settle_fsdp,
    ignored=(
        "compute_environment debug main_process_* machine_rank rdzv_backend same_network main_training_function gpu_ids "
        "enable_cpu_affinity *_state_dict_type *_cpu_ram_efficient_loading *_sync_module_states *_use_orig_params "
        "*_min_num_params *_transformer_layer_cls_to_wrap *_backward_prefetch *_forward_prefetch "
        "mpirun_config.* dynamo_config.dynamo_mode dynamo_config.dynamo_use_* tpu_use_*"
    ).split(),
    refused={
        "deepspeed_config.*": "DeepSpeed's own file is read: --config ds_config.json",
        "megatron_lm_config.*": "Megatron's own arguments are read",
        "fsdp_config.fsdp_offload_params": "offload over several devices is not forecast so far",
        "fsdp_config.fsdp_activation_checkpointing_offload": "activations in host memory are not forecast so far",
        "parallelism_config.parallelism_config_sp_*": "sequence parallelism by DeepSpeed is not forecast so far",
        "tpu_*": "TPUs are not forecast from accelerate's file",
        "downcast_bf16": "TPUs are not forecast from accelerate's file",
    },
)
