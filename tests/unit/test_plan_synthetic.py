"""A small synthetic job for the tests of `plan`, built by hand: a stack of matrix products with AdamW."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuwise.errors import UnsupportedError
from gpuwise.hardware import Offer
from gpuwise.hardware.types import Source
from gpuwise.strategy import Strategy
from gpuwise.trace import BEFORE, Axis, Header, Operations, OperationSequence, Storages, Trace, TraceFamily, build_family
from gpuwise.trace.tables import CATEGORIES, COLUMNS, KINDS, PHASES


def synthetic_trace(
    *,
    micro_batch: int,
    width: int = 1024,
    layers: int = 4,
    strategy: Strategy | None = None,
    unit: str = "sample",
    fingerprint: str = "f" * 16,
) -> Trace:
    """`layers` products of width × width; forward and backward of two micro-batches, then the optimizer."""
    strategy = strategy or Strategy()
    half = 2 if strategy.precision in ("amp-bf16", "amp-fp16", "bf16") else 4
    dtype = {"amp-bf16": "bfloat16", "bf16": "bfloat16", "amp-fp16": "float16"}.get(strategy.precision, "float32")
    tokens = 64 * micro_batch  # rows of a sample
    flops = 2 * tokens * width * width
    moved = half * (2 * tokens * width + width * width)
    rows = {"forward": (flops, moved), "backward": (2 * flops, 2 * moved), "optimizer": (0, 28 * width * width)}
    values = np.zeros((3, len(COLUMNS)), dtype=np.int64)
    for i, (f, b) in enumerate(rows.values()):
        filled = {
            "flops": f,
            "bytes_read": b,
            "bytes_written": b // 2,
            "kernels": 1,
            "batch": 1,
            "m": tokens,
            "n": width,
            "k": width,
        }
        for column, value in filled.items():
            values[i, COLUMNS.index(column)] = value
    kinds = np.array([KINDS.index(k) for k in ("gemm", "gemm", "optimizer")])
    operations = Operations(("mm", "mm_backward", "adamw"), kinds, (dtype, dtype, "float32"), values)
    index, phase, step, module = [], [], [], []
    storages: list[tuple[int, str, int, int, int]] = []
    for micro_step in (0, 1):
        start = len(index)
        recomputed = layers if strategy.recompute == "full" else 0
        for name, count in (("forward", layers), ("recompute", recomputed), ("backward", layers)):
            for layer in range(count):
                index.append({"forward": 0, "recompute": 0, "backward": 1}[name])
                phase.append(PHASES.index(name))
                step.append(micro_step)
                module.append(layer)
        kept = 1 if strategy.recompute == "full" else layers
        for layer in range(kept):
            storages.append((8 * half * tokens * width, "activation", layer, start + layer, len(index) - 1 - layer))
        if micro_step == 0:
            backward = start + layers + recomputed
            storages += [(4 * width * width, "gradient", i, backward + i, -2) for i in range(layers)]
    for layer in range(layers):
        index.append(2)
        phase.append(PHASES.index("optimizer"))
        step.append(2)
        module.append(layer)
        for size, category in ((4, "parameter"), (8, "optimizer_state")):
            storages.append((size * width * width, category, layer, BEFORE, -1))
    length = len(index)
    size, category, owner, born, died = zip(*storages, strict=True)
    died = [length if d == -1 else length - 1 if d == -2 else d for d in died]
    parameters = layers * width * width
    header = Header(
        "synthetic",
        fingerprint,
        {"micro_batch": micro_batch},
        strategy,
        parameters,
        parameters,
        unit,
        64 if unit == "token" else 1,
        blocks=tuple(f"layers.{i}" for i in range(layers)),
    )
    numbers = (size, [CATEGORIES.index(c) for c in category], owner, born, died)
    sequence = OperationSequence(*(np.array(c) for c in (index, module, phase, step)))
    return Trace(header, operations, sequence, Storages(*(np.array(c) for c in numbers)), header.blocks).check()


def synthetic_family(strategy: Strategy, **shape: int) -> TraceFamily:
    traces = {(n,): synthetic_trace(micro_batch=n, strategy=strategy, **shape) for n in (1, 2)}
    family = build_family(traces, (Axis("micro_batch", 1, 1, 1),), {"micro_batch": 1})
    assert family is not None
    return family


def synthetic_source(*, without: tuple[str, ...] = (), unit: str = "sample", **shape: int) -> Callable[[Strategy], TraceFamily]:
    """A source of the synthetic job; `without`: precisions or recomputes it does not have."""

    def source(strategy: Strategy) -> TraceFamily:
        if strategy.precision in without or strategy.recompute in without:
            raise UnsupportedError(f"no trace in {strategy.precision} with recompute {strategy.recompute}.")
        return synthetic_family(strategy, unit=unit, **shape)  # type: ignore[arg-type]

    return source


def offer(
    chip: str = "rtx-4090",
    usd_per_hour: float = 1.0,
    *,
    count: float = 1,
    terms: str = "on-demand",
    provider: str = "somewhere",
    instance: str = "",
    **more: object,
) -> Offer:
    name = instance or f"{chip}x{count:g}-{terms}-{usd_per_hour:g}"
    return Offer(provider, name, "region", chip, count, terms, usd_per_hour, source=Source("a test", "2026-11-01"), **more)  # type: ignore[arg-type]


def test_the_synthetic_family_is_exact_between_its_grid_points():
    family = synthetic_family(Strategy(precision="amp-bf16"))
    seven = synthetic_trace(micro_batch=7, strategy=Strategy(precision="amp-bf16"))
    assert family.at(micro_batch=7).flops() == seven.flops()
    assert family.at(micro_batch=7).storages.size_bytes.tolist() == seven.storages.size_bytes.tolist()
