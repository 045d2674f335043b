"""TrainingArguments of transformers, as the JSON that HfArgumentParser reads."""

from __future__ import annotations

import json

from gpuwise.export.cells import AnyCell, Cell, Keys, Refused, Row
from gpuwise.export.formats import json_of, nested
from gpuwise.export.rows import ByValue, Count, Scripted, When, layout_row
from gpuwise.export.target import ExportTarget, Heading, launched
from gpuwise.export.targets import common
from gpuwise.export.values import Value, Values
from gpuwise.json_types import JsonObject

_WRAPPED = "FSDP units are the classes in the model's _no_split_modules, or in fsdp_config's transformer_layer_cls_to_wrap"
_SHARDED: Keys = {"fsdp": True, "fsdp_config.version": 2, "fsdp_config.reshard_after_forward": True}
_KEPT: Keys = {**_SHARDED, "fsdp_config.reshard_after_forward": False}
_LEGACY = {
    "full_shard": "shards-parameters",
    "full_shard auto_wrap": "shards-parameters",
    "shard_grad_op": "shards-gradients",
    "shard_grad_op auto_wrap": "shards-gradients",
}
_HALF = Refused("has replicas of shards, which TrainingArguments takes as an object, not as JSON", ("--to accelerate",))
_NO_ZERO_1 = Refused(
    "splits the optimizer state alone, and FSDP splits gradients, too", ("--shard gradients", "--to deepspeed")
)


def _recompute(values: Values) -> Value:
    return f"{values['recompute']}{' of shards' if common.is_sharded(values) and values['recompute'] != 'none' else ''}"


def _optimizer(values: Values) -> Value:
    """The optimizer with its kernels, where they are named."""
    if values["optimizer"] is None:
        return None if values["optimizer_kernels"] is None else f"own {values['optimizer_kernels']}"
    return " ".join(str(values[name]) for name in ("optimizer", "optimizer_kernels") if values[name] is not None)


def _optimizers() -> ByValue:
    fused, plain = {"optim": "adamw_torch_fused"}, {"optim": "adamw_torch"}
    own = "Trainer(optimizers=(optimizer, None)), where transformers would take adamw_torch_fused"
    handed = {name: f"Trainer(optimizers=({text}, None))" for name, text in common.OPTIMIZERS.items()}
    adafactor = Cell(
        {"optim": "adafactor"},
        differs="transformers' own Adafactor keeps updates in fp32",
        as_if={"optimizer": "adafactor", "optimizer_kernels": None},
    )
    cells: dict[Value, AnyCell] = {
        "adamw": Cell(fused, as_if={"optimizer": "adamw", "optimizer_kernels": None}),
        "adamw fused": Cell(fused, as_if={"optimizer": "adamw", "optimizer_kernels": None}),
        "adamw foreach": Cell(plain, as_if={"optimizer": "adamw", "optimizer_kernels": "foreach"}),
        "sgd": Cell(
            {"optim": "sgd"},
            differs="its kernels are foreach, not fused",
            as_if={"optimizer": "sgd", "optimizer_kernels": "foreach"},
        ),
        "sgd foreach": Cell({"optim": "sgd"}, as_if={"optimizer": "sgd", "optimizer_kernels": "foreach"}),
        "adafactor": adafactor,
        "adafactor for-loop": adafactor,
        None: Cell(script=own),
    }
    for bits in ("8bit", "4bit"):
        for name in (f"adamw-{bits}", f"adamw-{bits} fused"):
            as_if: Values = {"optimizer": f"adamw-{bits}", "optimizer_kernels": None}
            cells[name] = Cell({"optim": f"adamw_torch_{bits}"}, as_if=as_if)
    for name, text in handed.items():
        for kernels in ("", *common.KERNELS):
            cells.setdefault(f"{name} {kernels}".strip(), Cell(script=text))
    cells |= {f"own {kernels}": Cell(script=f"{own}, with {text}") for kernels, text in common.KERNELS.items()}
    return ByValue(("optimizer", "optimizer_kernels"), cells, _optimizer, target="")


def _rows() -> tuple[Row, ...]:
    kept, sharded = Cell(_KEPT, differs=_WRAPPED), Cell(_SHARDED, differs=_WRAPPED)
    recomputed: Keys = {"gradient_checkpointing": True}
    of_shards: Keys = {"fsdp_config.activation_checkpointing": True}
    blocks = "the Trainer recomputes whole blocks"
    return (
        ByValue(
            ("precision",),
            {
                "fp32": Cell(),
                "tf32": Cell({"tf32": True}),
                "amp-bf16": Cell({"bf16": True}),
                "amp-fp16": Cell({"fp16": True}),
                "bf16": Cell(script="from_pretrained(dtype=torch.bfloat16)", as_if={"precision": "fp32"}),
                "fp16": Refused("has fp32 master weights beside fp16 parameters", ("--precision amp-fp16", "--to deepspeed")),
                "fp8": Refused("is no argument of the Trainer", ("--precision amp-bf16", "--to accelerate")),
            },
            also=(
                ({"tf32": False}, {"precision": "fp32"}, ""),
                *(({"tf32": on, "bf16": True}, {"precision": "amp-bf16"}, "") for on in (True, False)),
                *(({"tf32": on, "fp16": True}, {"precision": "amp-fp16"}, "") for on in (True, False)),
            ),
        ),
        Count("micro_batch", "per_device_train_batch_size"),
        Count("accumulation", "gradient_accumulation_steps"),
        ByValue(
            ("recompute",),
            {
                "none": Cell(),
                "full": Cell(recomputed),
                "selective": Cell(recomputed, differs=blocks, as_if={"recompute": "full"}),
                "full of shards": Cell(of_shards, as_if={"recompute": "full"}),
                "selective of shards": Cell(of_shards, differs=blocks, as_if={"recompute": "full"}),
            },
            _recompute,
            also=(({"gradient_checkpointing": False}, {"recompute": "none"}, ""),),
        ),
        layout_row(
            {
                "replicas": Cell(),
                "one-device": Cell(),
                "shards-parameters": sharded,
                "shards-gradients": kept,
                "shards-optimizer": _NO_ZERO_1,
                **{f"replicas-of-shards-{what}": _HALF for what in ("parameters", "gradients", "optimizer")},
            },
            also=(
                ({"fsdp": True}, {"layout": "shards-parameters"}, _WRAPPED),
                ({"fsdp": True, "fsdp_config.reshard_after_forward": True}, {"layout": "shards-parameters"}, _WRAPPED),
                ({"fsdp": True, "fsdp_config.reshard_after_forward": False}, {"layout": "shards-gradients"}, _WRAPPED),
                ({"fsdp": False}, {"layout": "replicas"}, ""),
                ({"fsdp": ""}, {"layout": "replicas"}, ""),
                *(({"fsdp": word}, {"layout": layout}, _WRAPPED) for word, layout in _LEGACY.items()),
            ),
        ),
        *common.never("needs a mesh, which TrainingArguments takes as an object", "tp", "cp", ways_out=("--to accelerate",)),
        *common.never("is not trained by the Trainer", "pp", "ep", ways_out=("--to torchtitan", "--to megatron")),
        *common.never("is of a mesh that the file does not have", "sequence_parallel", "loss_parallel", "context"),
        *common.never("is of a pipeline, which the Trainer does not train", "pipeline_schedule", "stages_per_rank"),
        common.compress_row(Refused("reduces gradients in bf16, for which the Trainer has no argument", ("--to accelerate",))),
        _optimizers(),
        *common.never(
            "updates within backward, which the Trainer does not", "optimizer_in_backward", ways_out=("--to accelerate",)
        ),
        *common.never("keeps gradients, which the Trainer frees", "keep_gradients", ways_out=("--to accelerate",)),
        *common.never("is of DeepSpeed's file", "offload", ways_out=("--to deepspeed", "--offload none")),
        *common.adapter_rows(),
        ByValue(("compile",), {False: Cell(), True: Cell({"torch_compile": True})}),
        Scripted("channels_last", "model.to(memory_format=torch.channels_last)"),
        common.TRAINING_ONLY,
        *common.thread_rows(),
        Count("loader_workers", "dataloader_num_workers"),
        When(
            Count("prefetch", "dataloader_prefetch_factor", differs="batches of each worker, not of all together"),
            lambda values: bool(values["loader_workers"]),
            Cell(differs="without dataloader_num_workers no batch is made ready ahead"),
        ),
        ByValue(
            ("pinned_memory",),
            {
                None: Cell(),
                True: Cell({"dataloader_pin_memory": True}),
                False: Cell({"dataloader_pin_memory": False}),
            },
        ),
        *common.size_rows(),
        Count("steps", "max_steps", unset=(None, -1)),
        Count("checkpoint_steps", "save_steps", differs="counted in steps, not in seconds"),
    )


def _write(keys: Keys, heading: Heading) -> str:
    return json.dumps(nested({"output_dir": f"runs/{heading.job}", "run_name": heading.line(), **keys}), indent=2) + "\n"


def _recognises(tree: JsonObject) -> bool:
    return "output_dir" in tree or "per_device_train_batch_size" in tree


TARGET = ExportTarget(
    "transformers",
    "transformers' TrainingArguments in JSON",
    "json",
    _rows(),
    write=_write,
    parse=json_of,
    recognises=_recognises,
    command=lambda world, file: launched(f"train.py {file}", world) if world.devices > 1 else f"python train.py {file}",
    world=lambda world: {"use_cpu": True} if world.on_cpu else {},
    settle=common.settle_fsdp,
    comment="run_name",
    ignored=(
        "output_dir run_name project learning_rate lr_scheduler_* warmup_* weight_decay adam_* optim_args max_grad_norm "
        "label_smoothing_factor neftune_noise_alpha *_eval eval_* per_device_eval_batch_size logging_* log_* report_to "
        "disable_tqdm trackio_* save_* enable_jit_checkpoint push_to_hub hub_* load_best_model_at_end metric_for_best_model "
        "greater_is_better ignore_data_skip restore_callback_states_from_checkpoint seed data_seed full_determinism "
        "accelerator_config.* dataloader_* remove_unused_columns label_names train_sampling_strategy length_column_name ddp_* "
        "debug skip_memory_metrics do_* resume_from_checkpoint local_rank prediction_loss_only include_* batch_eval_metrics "
        "average_tokens_across_devices num_train_epochs auto_find_batch_size "
        "gradient_checkpointing_kwargs.* torch_compile_backend torch_compile_mode use_cache "
        "fsdp_config.*min_num_params fsdp_config.*transformer_layer_cls_to_wrap fsdp_config.*cpu_ram_efficient_loading "
        "fsdp_config.*state_dict_type fsdp_config.*forward_prefetch fsdp_config.*backward_prefetch "
        "fsdp_config.*use_orig_params fsdp_config.*sync_module_states fsdp_config.*limit_all_gathers "
        "fsdp_config.*auto_wrap_policy"
    ).split(),
    refused={
        "deepspeed*": "DeepSpeed's own file is read, with the batch by flags: --config ds_config.json --micro-batch N",
        "fsdp_config.*cpu_offload": "offload over several devices is not forecast so far",
        "fsdp_config.*xla*": "XLA is not forecast from this file",
        "use_liger_kernel": "Liger's kernels are not forecast so far",
        "liger_kernel_config.*": "Liger's kernels are not forecast so far",
        "torch_empty_cache_steps": "emptying the allocator's cache is not forecast so far",
        "parallelism_config.*": "accelerate's file is read: --config accelerate.yaml",
    },
)
