"""torchtitan's configuration: a Python function that returns Trainer.Config. The model's specification is the user's."""

from __future__ import annotations

from gpuwise.export.cells import AnyCell, Cell, Keys, Reading, Refused, Row
from gpuwise.export.formats import Name, call_of, call_text, nested
from gpuwise.export.rows import ByValue, Count, Never, Scripted, When, layout_row
from gpuwise.export.target import DeviceSet, ExportTarget, Heading, launched
from gpuwise.export.targets import common
from gpuwise.export.values import Value, Values, number_of
from gpuwise.json_types import Json, JsonObject

_P, _T, _AC = "parallelism.", "training.", "activation_checkpoint.class"
_MICRO, _LOCAL, _PP = f"{_P}pipeline_parallel_microbatch_size", f"{_T}local_batch_size", f"{_P}pipeline_parallel_degree"
_RESHARD = f"{_P}fsdp_reshard_after_forward"
_CLASSES = {
    "training": "TrainingConfig",
    "parallelism": "ParallelismConfig",
    "compile": "CompileConfig",
    "checkpoint": "CheckpointManager.Config",
}
_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-1f1b": "Interleaved1F1B",
    "interleaved-zero-bubble": "InterleavedZeroBubble",
    "zbv-zero-bubble": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
_VOCABULARY = "torchtitan's loss stays split along the vocabulary under tensor parallelism"
_STAGES = Refused("has other stages a rank than torchtitan makes by itself", ("--stages-per-rank 2",))


class LocalBatch(Row):
    """The micro-batch, and the accumulation: a pipeline's micro-batches are parts of a local batch."""

    fields = ("micro_batch", "accumulation")

    def write(self, values: Values) -> AnyCell:
        micro, accumulation = number_of(values, "micro_batch"), number_of(values, "accumulation")
        if number_of(values, "pp") == 1:
            return Cell({_LOCAL: micro})
        return Cell({_LOCAL: micro * accumulation, _MICRO: micro})

    def read(self, keys: Keys, standard: Keys) -> Reading | None:
        local, micro, stages = (keys.get(name, standard.get(name)) for name in (_LOCAL, _MICRO, _PP))
        present = tuple(name for name in (_LOCAL, _MICRO) if name in keys)
        if stages == 1 or not isinstance(local, int) or not isinstance(micro, int) or micro < 1:
            return Count("micro_batch", _LOCAL).read(keys, standard)
        return Reading({"micro_batch": micro, "accumulation": max(1, local // micro)}, present)

    def cases(self) -> list[tuple[str, AnyCell]]:
        return [("n x m", Cell({_LOCAL: "n"})), ("n x m of a pipeline", Cell({_LOCAL: "n m", _MICRO: "n"}))]

    def own_keys(self) -> set[str]:
        return {_LOCAL, _MICRO}


def _stages(values: Values) -> Value:
    """Whether the stages of a rank are those that torchtitan makes of a schedule by itself."""
    usual = 1 if values["pipeline_schedule"] in ("gpipe", "1f1b") else 2
    return "usual" if number_of(values, "pp") == 1 or values["stages_per_rank"] == usual else "others"


def _settle(values: Values) -> Reading | None:
    """What torchtitan does beside its file: a loss split along the vocabulary, and two stages for looped schedules."""
    more: dict[str, Value] = {}
    if values["tp"] != 1 and not values["loss_parallel"]:
        more["loss_parallel"] = True
    if values["pp"] != 1 and values["pipeline_schedule"] not in ("gpipe", "1f1b"):
        more["stages_per_rank"] = 2
    return Reading(more, (), _VOCABULARY if "loss_parallel" in more else "") if more else None


def _layouts() -> Row:
    kept, gathered = Cell({_RESHARD: "never"}), Cell({_RESHARD: "always"})
    zero_1 = Refused("splits the optimizer state alone, and torchtitan splits gradients, too", ("--shard gradients",))
    cells: dict[Value, AnyCell] = {
        "shards-parameters": gathered,
        "shards-gradients": kept,
        "shards-optimizer": zero_1,
        "replicas-of-shards-parameters": gathered,
        "replicas-of-shards-gradients": kept,
        "replicas-of-shards-optimizer": zero_1,
        "replicas": Cell(),
        "one-device": Cell(),
    }
    return layout_row(cells, also=(({_RESHARD: "default"}, {"layout": "shards-parameters"}, ""),))


def _rows() -> tuple[Row, ...]:
    refuse_16 = Refused("has no fp16 in torchtitan", ("--precision amp-bf16", "--to accelerate"))
    ring = Refused("attends otherwise than PyTorch's context parallelism in torchtitan", ("--context gather",))
    mixed = {f"{_T}mixed_precision_param": "bfloat16"}
    return (
        ByValue(
            ("precision",),
            {
                "fp32": Cell({f"{_T}mixed_precision_param": "float32"}),
                "tf32": Cell({f"{_T}mixed_precision_param": "float32"}, as_if={"precision": "fp32"}, script=common.TF32),
                "amp-bf16": Cell(mixed),
                "amp-fp16": refuse_16,
                "bf16": Cell({f"{_T}dtype": "bfloat16"}),
                "fp16": refuse_16,
                "fp8": Cell(mixed, script="Float8LinearConverter in the model's converters", as_if={"precision": "amp-bf16"}),
            },
        ),
        LocalBatch(),
        ByValue(
            ("recompute",),
            {
                "none": Cell({_AC: "none"}),
                "selective": Cell({_AC: "SelectiveAC.Config"}),
                "full": Cell({_AC: "FullAC.Config"}),
            },
        ),
        _layouts(),
        Count("dp_replicate", f"{_P}data_parallel_replicate_degree"),
        Count("dp_shard", f"{_P}data_parallel_shard_degree", unset=(None, -1)),
        Count("tp", f"{_P}tensor_parallel_degree"),
        Count("pp", _PP, differs="torchtitan chooses the cuts between stages by its own count of layers"),
        Count("cp", f"{_P}context_parallel_degree"),
        Count("ep", f"{_P}expert_parallel_degree", differs="experts are split over dp_shard x cp x tp"),
        When(
            ByValue(
                ("sequence_parallel",),
                {value: Cell({f"{_P}enable_sequence_parallel": value}) for value in (False, True)},
            ),
            lambda values: values["tp"] != 1,
        ),
        ByValue(
            ("loss_parallel",),
            {
                False: Cell(),
                True: Cell(),
                "split": Cell(differs=_VOCABULARY, as_if={"loss_parallel": True}),
            },
            lambda values: "split" if values["tp"] != 1 and not values["loss_parallel"] else values["loss_parallel"],
        ),
        ByValue(("context",), {"gather": Cell(), "ring": ring, "all-to-all": ring}),
        ByValue(
            ("pipeline_schedule",),
            {ours: Cell({f"{_P}pipeline_parallel_schedule": theirs}) for ours, theirs in _SCHEDULES.items()},
        ),
        ByValue(("stages_per_rank",), {"usual": Cell(), "others": _STAGES}, _stages),
        Never("compress_gradients", "reduces gradients in bf16, and torchtitan in fp32", ("without --compress-gradients",)),
        common.in_script("optimizer", {name: f"optimizer=...: {text}" for name, text in common.OPTIMIZERS.items()}),
        common.in_script(
            "optimizer_kernels", {name: f"OptimizersContainer.Config(implementation='{name}')" for name in common.KERNELS}
        ),
        *common.never("updates within backward, which torchtitan does not", "optimizer_in_backward"),
        *common.never("keeps gradients, which torchtitan frees", "keep_gradients"),
        *common.never("is of one device, and torchtitan offloads shards", "offload", ways_out=("--to deepspeed",)),
        *common.never("is made by a converter of torchtitan's own", "adapter", "adapter_rank", ways_out=("--to accelerate",)),
        ByValue(
            ("compile",),
            {False: Cell(), True: Cell({"compile.enable": True}, differs="each block is compiled by itself")},
        ),
        *common.never("is of images, which torchtitan does not train on", "channels_last", "image_size"),
        common.TRAINING_ONLY,
        *common.thread_rows(),
        *(Scripted(name, f"{name} = {{value}} in the dataloader of the model") for name in ("loader_workers", "prefetch")),
        Scripted("pinned_memory", "pin_memory = {value} in the dataloader of the model"),
        Count("seq_len", f"{_T}seq_len"),
        Count("steps", f"{_T}steps"),
        Count("checkpoint_steps", "checkpoint.interval", differs="counted in steps, not in seconds"),
    )


def _complete(keys: Keys) -> Keys:
    """No policy of recomputation as a word, and -1, which stands for a batch without accumulation, left out."""
    plain: dict[str, Json] = {name: value for name, value in keys.items() if not name.endswith(".class") or name == _AC}
    if "activation_checkpoint" in plain:
        plain[_AC] = plain.pop("activation_checkpoint") or "none"
    if plain.get(f"{_T}global_batch_size") == -1:
        del plain[f"{_T}global_batch_size"]
    return plain


def _write(keys: Keys, heading: Heading) -> str:
    plain: dict[str, Json] = {**keys}
    policy = str(plain.pop(_AC, "SelectiveAC.Config")).split(".")[0]
    tree = {"model_spec": Name("model_spec"), **nested(plain)}
    tree["activation_checkpoint"] = None if policy == "none" else Name(f"{policy}.Config()")
    comment = "".join(f"# {line}\n" for line in heading.lines())
    imports = [
        "from torchtitan.components.checkpoint import CheckpointManager",
        "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
        *([] if policy == "none" else [f"from torchtitan.distributed.activation_checkpoint import {policy}"]),
        "from torchtitan.trainer import Trainer",
    ]
    body = f"    return {call_text('Trainer.Config', tree, _CLASSES)}"
    return f"{comment}{chr(10).join(imports)}\n\n\ndef planned(model_spec=None):\n{body}\n"


def _parse(text: str) -> JsonObject:
    return call_of(text, (".Trainer.Config",))


def _command(world: DeviceSet, file: str) -> str:
    module = file.removesuffix(".py")
    return launched(f"-m torchtitan.train --module {module} --config planned", world)


TARGET = ExportTarget(
    "torchtitan",
    "torchtitan's configuration in Python",
    "py",
    _rows(),
    write=_write,
    parse=_parse,
    recognises=lambda tree: True,
    command=_command,
    fixed={"checkpoint.enable": True, f"{_T}disable_cuda_graphs": True},
    global_batch=f"{_T}global_batch_size",
    complete=_complete,
    settle=_settle,
    ignored=(
        "hf_assets_path dump_folder profiler.* metrics.* tokenizer.* dataloader.* lr_scheduler.* checkpoint.* comm.* "
        "validator.* debug.* override.* training.max_norm training.gc_* training.disable_cuda_graphs optimizer.* loss* *.class "
        "compile.components compile.backend parallelism.spmd_backend parallelism.context_parallel_load_balancer "
        "activation_checkpoint.preserve_rng_state activation_checkpoint.determinism_check activation_checkpoint.debug "
        "activation_checkpoint.visualize_memory_budget_pareto parallelism.enable_fsdp_symm_mem"
    ).split(),
    of_the_model=("model_spec*",),
    refused={
        "training.enable_cpu_offload": "offload over several devices is not forecast so far",
        "activation_checkpoint.memory_budget": "a budget of the compiler is not forecast so far",
        "activation_checkpoint.force_recompute*": "shapes that are recomputed by name are not forecast so far",
        "parallelism.module_fqns_per_model_part": "cuts between stages by name are not forecast so far",
        "parallelism.pipeline_parallel_layers_per_stage": "name it beside the file: --stages-per-rank",
        "parallelism.pipeline_parallel_*_stage_less_layers": "uneven stages are not forecast from this file",
        "parallelism.pipeline_parallel_schedule_csv": "a schedule of a table is not forecast so far",
        "compile.enable_async_tensor_parallel": "asynchronous tensor parallelism is not forecast so far",
    },
)
