"""Records what ships with gpuwise: steps, and how presets write text. One command: `gpuwise record`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpuwise.job import repeated_blocks, resolve
from gpuwise.job.job import meta_model
from gpuwise.serving.generation import Generation
from gpuwise.serving.generation_file import save_generation
from gpuwise.serving.preset_generations import SHIPPED, generation_path
from gpuwise.strategy import Strategy
from gpuwise.trace import Axis, Trace, TraceFamily, save
from gpuwise.trace.presets import preset_path
from gpuwise.trace.presets.table import PRESETS, PresetInfo
from gpuwise.tracing.family import MICRO_BATCH, record_family
from gpuwise.tracing.generation import record_generation
from gpuwise.tracing.record import record_many

PRECISIONS = ("fp32", "amp-bf16", "amp-fp16", "bf16")  # tf32 runs the operations of fp32
# Bytes and operations grow with the square of a sequence (attention). Images: with the square of the edge for
# convolutions, with its fourth power for attention over patches. Memory-efficient attention rounds its statistics up to
# 32 queries; the grids below meet that rounding regularly, so that it adds no more than a constant.
SEQUENCE = Axis("seq_len", start=128, step=64, degree=2, exact_every=32)
IMAGES = {
    "resnet": Axis("image_size", start=128, step=32, degree=2, exact_every=32),
    "vit": Axis("image_size", start=128, step=128, degree=4, exact_every=16),
    "unet": Axis("image_size", start=256, step=128, degree=4, exact_every=64),
}


LARGE = 5_000_000_000  # parameters from which fp32 training is not recorded
LARGE_PRECISIONS = ("bf16", "amp-bf16")
# Presets that people adapt on one small GPU ship with adapters too: (precision, recompute, adapter).
ADAPTED = {
    "llama2-7b": [("amp-bf16", recompute, adapter) for adapter in ("lora", "qlora") for recompute in ("none", "full")],
    "llama3-8b": [("amp-bf16", "full", "qlora"), ("bf16", "full", "lora")],
}


def variants(info: PresetInfo) -> list[Strategy]:
    """Every shipped variant of a preset. Selective recomputation is recorded in bf16 only."""
    blocks = bool(repeated_blocks(meta_model(resolve(info.name))))
    precisions = LARGE_PRECISIONS if info.parameters >= LARGE else PRECISIONS
    train = [Strategy(precision=p, recompute=r) for p in precisions for r in (("none", "full") if blocks else ("none",))]
    if blocks:
        train += [Strategy(precision=p, recompute="selective") for p in LARGE_PRECISIONS]
    train += [Strategy(precision=p, recompute=r, adapter=a) for p, r, a in ADAPTED.get(info.name, ())]
    infer = ("bf16",) if info.parameters >= LARGE else PRECISIONS
    return train + [Strategy(precision=p, mode="infer") for p in infer]


def axes_of(info: PresetInfo) -> tuple[Axis, ...]:
    if info.seq_len:
        return (MICRO_BATCH, SEQUENCE)
    return (MICRO_BATCH, IMAGES[info.architecture]) if info.architecture in IMAGES else (MICRO_BATCH,)


def default_sizes(info: PresetInfo) -> dict[str, int]:
    sizes = {"micro_batch": 1, "seq_len": info.seq_len, "image_size": info.image_size}
    return {name: value for name, value in sizes.items() if value is not None}


def recorder_of(info: PresetInfo, strategy: Strategy) -> Callable[[Mapping[str, int]], Trace]:
    """Records the preset at given sizes; the micro-batches of the grid together, which is faster."""
    recorded: dict[tuple[int | None, int | None, int], Trace] = {}

    def at(sizes: Mapping[str, int]) -> Trace:
        seq_len, image_size, requested = sizes.get("seq_len"), sizes.get("image_size"), sizes["micro_batch"]
        if (seq_len, image_size, requested) not in recorded:
            # A shipped trace assumes no sizes: the user names them later.
            job = replace(resolve(info.name, seq_len=seq_len, image_size=image_size), assumptions=())
            together = MICRO_BATCH.points if requested in MICRO_BATCH.points else [requested]
            for micro_batch, trace in zip(together, record_many(job, strategy, together), strict=True):
                recorded[seq_len, image_size, micro_batch] = trace
        return recorded[seq_len, image_size, requested]

    return at


def record_preset(info: PresetInfo, strategy: Strategy) -> TraceFamily:
    """One variant as a family over its sizes, checked at its default sizes."""
    default = default_sizes(info)
    family = record_family(recorder_of(info, strategy), axes_of(info), default, check_at={**default, "micro_batch": 4})
    assert family is not None, f"{info.name}: counts are no polynomial in {[a.name for a in axes_of(info)]}"
    return family


def record_presets(
    names: Iterable[str] | None = None, *, folder: Path | None = None, on_recorded: Callable[[Path], None] = lambda path: None
) -> None:
    """Records and writes every variant of the named presets (None: all)."""
    for info in PRESETS.values():
        if names is not None and info.name not in names:
            continue
        for strategy in variants(info):
            path = preset_path(
                info.name,
                precision=strategy.precision,
                recompute=strategy.recompute,
                mode=strategy.mode,
                adapter=strategy.adapter,
                folder=folder,
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            save(record_preset(info, strategy), path)
            on_recorded(path)
        for target, precision in SHIPPED if info.writes_text else ():
            path = generation_path(info.name, target=target, precision=precision, folder=folder)
            save_generation(record_preset_generation(info, target=target, precision=precision), path)
            on_recorded(path)


def record_preset_generation(info: PresetInfo, *, target: str, precision: str) -> Generation:
    """How a preset writes text on one kind of device."""
    job = resolve(info.name)
    return record_generation(job, precision=precision, target=target, longest=job.context_length)
