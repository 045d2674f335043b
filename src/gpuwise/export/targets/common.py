"""Rows that several targets share."""

from __future__ import annotations

from gpuwise.export.cells import AnyCell, Cell, Reading, Refused, Row
from gpuwise.export.rows import ByValue, Never, Scripted
from gpuwise.export.values import Value, Values, layout_of, number_of

TRAINING_ONLY = Never("mode", "is a forward pass, and the file is of a training", ("plan without --mode infer",))
_REDUCED = "FSDP reduces gradients in the 16 bits of the arithmetic"
TF32 = "torch.set_float32_matmul_precision('high')"
OPTIMIZERS = {
    "sgd": "torch.optim.SGD(...)",
    "momentum": "torch.optim.SGD(momentum=0.9, ...)",
    "adam": "torch.optim.Adam(...)",
    "adamw": "torch.optim.AdamW(...)",
    "adafactor": "torch.optim.Adafactor(...)",
    "muon": "torch.optim.Muon(...) for matrices, AdamW for the rest",
    "adamw-8bit": "torchao.optim.AdamW8bit(...)",
    "adamw-4bit": "torchao.optim.AdamW4bit(...)",
}
KERNELS = {"for-loop": "foreach=False", "foreach": "foreach=True", "fused": "fused=True"}
FULL_RECOMPUTE = "model.gradient_checkpointing_enable(), or torch.utils.checkpoint around each block"
SELECTIVE_RECOMPUTE = (
    "torch.utils.checkpoint around each block, with a policy that keeps attention and every second matrix product"
)
ADAPTERS: dict[Value, AnyCell] = {
    "none": Cell(),
    "lora": Cell(script="peft.get_peft_model(model, LoraConfig(...))"),
    "qlora": Cell(script="weights in 4 bits (BitsAndBytesConfig), then peft.get_peft_model(model, LoraConfig(...))"),
}


def is_sharded(values: Values) -> bool:
    """Whether parameters are split over devices that read their own samples."""
    return "shards" in layout_of(values)


def in_script(field: str, words: dict[str, str], *, default: Value = None) -> ByValue:
    """A field whose values the user's script sets by these words; its default needs none."""
    cells: dict[Value, AnyCell] = {value: Cell(script=text) for value, text in words.items()}
    return ByValue((field,), {default: Cell(), **cells})


def optimizer_in_script() -> tuple[Row, ...]:
    """The optimizer and its kernels, which the user's script makes."""
    return in_script("optimizer", OPTIMIZERS), in_script("optimizer_kernels", KERNELS)


def adapter_rows() -> tuple[Row, ...]:
    """Adapters, which the user's script adds."""
    return ByValue(("adapter",), ADAPTERS), Scripted("adapter_rank", "LoraConfig(r={value})")


def loader_rows() -> tuple[Row, ...]:
    """The loader, which the user's script makes."""
    return (
        Scripted("loader_workers", "DataLoader(num_workers={value})"),
        Scripted("prefetch", "DataLoader(prefetch_factor=...): {value} micro-batches ahead over all workers"),
        Scripted("pinned_memory", "DataLoader(pin_memory={value})"),
    )


def thread_rows() -> tuple[Row, ...]:
    """Threads, which the environment sets."""
    return (
        Scripted("threads", "OMP_NUM_THREADS={value} in the environment"),
        Scripted("pin_threads", "OMP_PROC_BIND={value} in the environment"),
    )


def size_rows() -> tuple[Row, ...]:
    """Sizes of a sample, which the user's data have."""
    return Scripted("seq_len", "samples of {value} tokens"), Scripted("image_size", "images of {value} x {value} pixels")


def run_rows() -> tuple[Row, ...]:
    """The length of the run and its checkpoints, which the user's loop has."""
    return Scripted("steps", "stop after {value} steps"), Scripted("checkpoint_steps", "save a checkpoint every {value} steps")


def never(reason: str, *fields: str, ways_out: tuple[str, ...] = ()) -> tuple[Row, ...]:
    """Fields that a peer cannot have, for one reason."""
    return tuple(Never(field, reason, ways_out) for field in fields)


def _reduced_in_16_bits(values: Values) -> bool:
    """Whether FSDP of accelerate and Lightning reduces in 16 bits: they set the policy of reductions as that of arithmetic."""
    sharded = is_sharded(values) or number_of(values, "tp") * number_of(values, "cp") > 1
    return sharded and values["precision"] in ("amp-bf16", "amp-fp16")


def settle_fsdp(values: Values) -> Reading | None:
    """What FSDP does in accelerate and Lightning beside what a file sets."""
    if _reduced_in_16_bits(values) and not values["compress_gradients"]:
        return Reading({"compress_gradients": True}, (), _REDUCED)
    return None


def compress_row(replicas: AnyCell) -> Row:
    """Gradients reduced in bf16: what FSDP does in mixed precision, and replicas by a hook."""
    cells: dict[Value, AnyCell] = {
        False: Cell(),
        True: replicas,
        "by FSDP": Cell(),
        "not by FSDP": Cell(differs=_REDUCED, as_if={"compress_gradients": True}),
        "in fp32": Refused("reduces gradients in bf16, and FSDP reduces those of fp32 in fp32", ("--precision amp-bf16",)),
    }

    def value(values: Values) -> Value:
        compressed = bool(values["compress_gradients"])
        if _reduced_in_16_bits(values):
            return "by FSDP" if compressed else "not by FSDP"
        return "in fp32" if compressed and is_sharded(values) else compressed

    return ByValue(("compress_gradients",), cells, value)
