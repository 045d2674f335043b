"""Megatron-LM's command line, as a shell script of one command. The arguments of the model and the data follow it."""

from __future__ import annotations

import re
import shlex

from gpuwise.export.cells import AnyCell, Cell, Keys, Reading, Refused, Row
from gpuwise.export.rows import ByValue, Count, Never, Scripted, When, WholeBatch, layout_row
from gpuwise.export.target import DeviceSet, ExportTarget, Heading, launched
from gpuwise.export.targets import common
from gpuwise.export.values import Value, Values, layout_of, number_of
from gpuwise.json_types import Json, JsonObject

_VIRTUAL = "num-virtual-stages-per-pipeline-rank"
_MASTERS = (
    "parameters are in 16 bits beside fp32 copies, with fp32 gradients: 18 bytes a parameter with Adam, where autocast has 16"
)
_VOCABULARY = "Megatron's loss is always split along the vocabulary under tensor parallelism"
_FULL: Keys = {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
_ARRAY = re.compile(r"^\s*(\w+)\+?=\(([^)]*)\)", re.MULTILINE)
_EXPANDED = re.compile(r"\$(@|\*|\{\w+\[@\]\})")


class VirtualStages(Row):
    """The schedule of a pipeline with the stages of a rank: 1F1B, or interleaved with virtual stages."""

    fields = ("pipeline_schedule", "stages_per_rank")

    def write(self, values: Values) -> AnyCell:
        schedule, stages = values["pipeline_schedule"], number_of(values, "stages_per_rank")
        if schedule == "1f1b" and stages == 1:
            return Cell()
        if schedule == "interleaved-1f1b":
            return Cell({_VIRTUAL: stages})
        return Refused("has a schedule that Megatron does not have", ("--pipeline-schedule 1f1b or interleaved-1f1b",))

    def read(self, keys: Keys, standard: Keys) -> Reading | None:
        stages = keys.get(_VIRTUAL)
        if not isinstance(stages, int) or stages < 2:
            return Reading({}, (_VIRTUAL,) if _VIRTUAL in keys else ())
        return Reading({"pipeline_schedule": "interleaved-1f1b", "stages_per_rank": stages}, (_VIRTUAL,))

    def cases(self) -> list[tuple[str, AnyCell]]:
        return [
            ("1f1b, 1", Cell()),
            ("interleaved-1f1b, n", Cell({_VIRTUAL: "n"})),
            ("others", self.write(_OTHER_SCHEDULE)),
        ]

    def own_keys(self) -> set[str]:
        return {_VIRTUAL}


_OTHER_SCHEDULE: Values = {"pipeline_schedule": "gpipe", "stages_per_rank": 1}


def _layouts() -> Row:
    zero, fsdp = {"use-distributed-optimizer": True}, "data-parallel-sharding-strategy"
    megatron_fsdp: Keys = {**zero, "use-megatron-fsdp": True}
    half = Refused("has replicas of shards, which Megatron has for the optimizer state alone", ("--shard optimizer",))
    cells: dict[Value, AnyCell] = {
        "replicas": Cell(),
        "one-device": Cell(),
        "shards-optimizer": Cell(zero),
        "shards-gradients": Cell({**megatron_fsdp, fsdp: "optim_grads"}),
        "shards-parameters": Cell({**megatron_fsdp, fsdp: "optim_grads_params"}),
        "replicas-of-shards-optimizer": Cell(zero),
        "replicas-of-shards-gradients": half,
        "replicas-of-shards-parameters": half,
    }
    return layout_row(cells)


def _optimizers() -> Row:
    others = Refused("has an optimizer that Megatron does not have", ("--optimizer adamw",))
    adam: Keys = {"optimizer": "adam"}
    cells: dict[Value, AnyCell] = {
        "adamw": Cell(adam),
        None: Cell(adam, differs="Megatron makes AdamW in any case", as_if={"optimizer": "adamw"}),
        "momentum": Cell({"optimizer": "sgd"}),
        "sgd": Cell({"optimizer": "sgd", "sgd-momentum": 0.0}),
        "muon": Cell({"optimizer": "muon"}, differs="Megatron's Muon splits its products over devices"),
        **dict.fromkeys(("adam", "adafactor", "adamw-8bit", "adamw-4bit"), others),
    }
    return ByValue(("optimizer",), cells)


def _rows() -> tuple[Row, ...]:
    copies = Refused("has parameters without fp32 copies, and Megatron has them", ("--precision amp-bf16",))
    return (
        ByValue(
            ("precision",),
            {
                "fp32": Cell(),
                "tf32": Refused("has fp32 products in TF32, for which Megatron has no argument", ("--precision amp-bf16",)),
                "amp-bf16": Cell({"bf16": True}, differs=_MASTERS),
                "amp-fp16": Cell({"fp16": True}, differs=_MASTERS),
                "bf16": copies,
                "fp16": Cell({"fp16": True}, differs="it is forecast as autocast", as_if={"precision": "amp-fp16"}),
                "fp8": Cell(
                    {"bf16": True, "fp8-format": "hybrid"}, differs=f"linear layers are Transformer Engine's; {_MASTERS}"
                ),
            },
        ),
        Count("micro_batch", "micro-batch-size"),
        WholeBatch("global-batch-size"),
        ByValue(
            ("recompute",),
            {
                "none": Cell(),
                "full": Cell(_FULL),
                "selective": Cell(
                    {"recompute-granularity": "selective"},
                    differs="Megatron recomputes the core of attention, not everything beside attention and products",
                ),
            },
            also=(({"recompute-activations": True}, {"recompute": "selective"}, ""),),
        ),
        _layouts(),
        When(
            Count("dp_replicate", "num-distributed-optimizer-instances", unset=(None, 1)),
            lambda values: layout_of(values).startswith("replicas-of"),
        ),
        Count("tp", "tensor-model-parallel-size"),
        Count("pp", "pipeline-model-parallel-size"),
        Count("cp", "context-parallel-size"),
        Count("ep", "expert-model-parallel-size"),
        ByValue(("sequence_parallel",), {False: Cell(), True: Cell({"sequence-parallel": True})}),
        ByValue(
            ("loss_parallel",),
            {
                False: Cell(),
                True: Cell(),
                "split": Cell(differs=_VOCABULARY, as_if={"loss_parallel": True}),
            },
            lambda values: "split" if values["tp"] != 1 and not values["loss_parallel"] else values["loss_parallel"],
        ),
        When(
            ByValue(
                ("context",),
                {ours: Cell({"cp-comm-type": theirs}) for ours, theirs in _CONTEXTS.items()},
            ),
            lambda values: values["cp"] != 1,
        ),
        VirtualStages(),
        ByValue(("compress_gradients",), {False: Cell(), True: Cell({"grad-reduce-in-bf16": True})}),
        _optimizers(),
        ByValue(
            ("optimizer_kernels",),
            {
                None: Cell(),
                "fused": Cell(),
                **dict.fromkeys(("foreach", "for-loop"), Refused("updates by other kernels than Megatron's fused ones")),
            },
        ),
        *common.never("updates within backward, which Megatron does not", "optimizer_in_backward"),
        *common.never("keeps gradients as tensors, and Megatron has them in buffers", "keep_gradients"),
        *common.never("is of one device, and Megatron offloads shards", "offload", ways_out=("--to deepspeed",)),
        *common.never("is not of Megatron's pretraining", "adapter", "adapter_rank", ways_out=("--to accelerate",)),
        Never("compile", "compiles the step, and Megatron single functions", ("--no-compile", "--to torchtitan")),
        *common.never("is of images", "channels_last", "image_size"),
        common.TRAINING_ONLY,
        *common.thread_rows(),
        Count("loader_workers", "num-workers"),
        *(Scripted(name, f"{name} = {{value}} in Megatron's own data loader") for name in ("prefetch", "pinned_memory")),
        Count("seq_len", "seq-length"),
        Count("steps", "train-iters"),
        Count("checkpoint_steps", "save-interval", differs="counted in steps, not in seconds"),
    )


_CONTEXTS = {"ring": "p2p", "gather": "allgather", "all-to-all": "a2a"}


def _settle(values: Values) -> Reading | None:
    """What Megatron does beside what its command sets."""
    if values["tp"] != 1 and not values["loss_parallel"]:
        return Reading({"loss_parallel": True}, (), _VOCABULARY)
    return None


def _write(keys: Keys, heading: Heading) -> str:
    comment = "".join(f"# {line}\n" for line in heading.lines())
    words = [f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}" for name, value in keys.items()]
    return f"{comment}{launched('pretrain_gpt.py', heading.world)} \\\n    " + " \\\n    ".join([*words, '"$@"']) + "\n"


def _parse(text: str) -> JsonObject:
    """The arguments of a command, or of the arrays that a shell script puts together. Nothing is expanded or run."""
    joined = text.replace("\\\n", " ")
    parts = [inner for name, inner in _ARRAY.findall(joined) if not name.startswith(("DISTRIBUTED", "TORCHRUN"))]
    commands = [line for line in joined.splitlines() if ".py" in line and not line.lstrip().startswith("#")]
    parts += [line.partition(".py")[2] for line in commands]
    words = [word for part in parts or [joined] for word in shlex.split(part, comments=True) if not _EXPANDED.match(word)]
    arguments: dict[str, Json] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name in arguments:
                raise ValueError(f"the argument --{name} stands twice")
            arguments[name] = _value(value) if equals else True
        elif name:
            before = arguments[name]
            arguments[name] = _value(word) if before is True else f"{before} {word}"
        else:
            raise ValueError(f"{word[:40]!r} stands before any argument")
    if not arguments:
        raise ValueError("no arguments")
    return arguments


def _value(word: str) -> Json:
    return int(word) if word.isdecimal() and word.isascii() and len(word) < 19 else word


def _recognises(tree: JsonObject) -> bool:
    return any(name in tree for name in ("micro-batch-size", "tensor-model-parallel-size", "global-batch-size"))


def _command(world: DeviceSet, file: str) -> str:
    return f"bash {file} (with the arguments of the model and the data)"


TARGET = ExportTarget(
    "megatron",
    "Megatron-LM's command line",
    "sh",
    _rows(),
    write=_write,
    parse=_parse,
    recognises=_recognises,
    command=_command,
    global_batch="global-batch-size",
    settle=_settle,
    ignored=(
        "save load save-interval *lr* lr-* weight-decay clip-grad adam-* *loss-scale* hysteresis seed data-path *-data-path "
        "split data-cache-path vocab-file merge-file tokenizer-* mock-data num-workers no-mmap-bin-files dataloader-type "
        "eod-mask-loss reset-* no-save-* no-load-* finetune ckpt-* async-save eval-* auto-detect-ckpt-format "
        "dist-ckpt-strictness log-* tensorboard-dir wandb-* timing-log-level profile* manual-gc* exit-* "
        "distributed-* overlap-grad-reduce overlap-param-gather train-samples use-mcore-models use-flash-attn transformer-impl "
        "attention-backend no-gradient-accumulation-fusion accumulate-allreduce-grads-in-fp32 no-*-fusion cross-entropy-* "
        "main-*-dtype no-overlap-p2p-communication use-cpu-initialization no-create-attention-mask-in-dataloader spec"
    ).split(),
    of_the_model=(
        "num-layers hidden-size num-attention-heads ffn-hidden-size kv-channels num-query-groups group-query-attention "
        "max-position-embeddings position-embedding-type rotary-* use-rope-scaling use-rotary-position-embeddings swiglu "
        "squared-relu normalization norm-epsilon disable-bias-linear add-*-bias untie-embeddings-and-output-weights "
        "make-vocab-size-divisible-by vocab-size init-method-std attention-dropout hidden-dropout num-experts moe-* "
        "*coder-num-layers *coder-seq-length layernorm-* qk-layernorm gated-linear-unit"
    ).split(),
    refused={
        "rampup-batch-size": "a batch that grows is not forecast so far",
        "use-torch-fsdp2": "Megatron's own FSDP is read: --use-megatron-fsdp",
        "optimizer-cpu-offload": "offload over several devices is not forecast so far",
        "num-layers-per-virtual-pipeline-stage": "name the stages of a rank: --num-virtual-stages-per-pipeline-rank",
        "tp-comm-overlap*": "overlapped tensor parallelism is not forecast so far",
        "fp4*": "4-bit arithmetic is not forecast so far",
    },
)
