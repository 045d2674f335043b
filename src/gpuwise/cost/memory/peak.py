"""The memory peak of a step: its position, its tensors, and ways to lower it, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from gpuwise.trace.memory import Live, live_bytes, rounded
from gpuwise.trace.tables import CATEGORIES, KINDS, PHASES
from gpuwise.trace.trace import Trace
from gpuwise.units import format_bytes

TOP = 10
STATE = ("parameter", "gradient", "optimizer_state", "communication_buffer")
# Shares of the peak above which it is attributed to the loss, or to the state, which no batch and no layer changes.
_LOSS_SHARE, MOSTLY_STATE = 0.1, 0.8
_SMALL = 20_000  # a tensor below this part of the peak is grouped with other small ones
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


@dataclass(frozen=True)
class Tensors:
    """A group of tensors that are alive at the peak.

    Attributes:
        module: path of their module; the layers of a stack count as one.
        category: one of trace.CATEGORIES.
        operation: the operation that allocated them; "" for tensors that exist before the step.
        count: number of tensors.
        size_bytes: bytes of the largest tensor.
        total_bytes: bytes of all tensors.
    """

    module: str
    category: str
    operation: str
    count: int
    size_bytes: int
    total_bytes: int

    @property
    def words(self) -> str:
        """'layers.*.mlp.up (mm) x 32', 'log_softmax' of no module, 'optimizer state x 873'"""
        inside = f" ({self.operation})" if self.module and self.operation else ""
        many = f" x {self.count:,}" if self.count > 1 else ""
        return f"{self.module or self.operation or self.category.replace('_', ' ')}{inside}{many}"


@dataclass(frozen=True)
class MemoryPeak:
    """The position at which most bytes are alive.

    Attributes:
        where: forward | backward | recompute | optimizer; loss if tensors of the loss dominate the peak.
        module: path of the module that runs there; "" for the model itself.
        operation: the operation that runs there.
        peak_bytes: bytes of live tensors.
        by_category: peak_bytes by category.
        tensors: the ten groups that hold most.
        largest: the ten largest tensors.
        position: index in the sequence of operations.
        sentence: a description of the peak.
        advice: ways to lower it.
    """

    position: int
    peak_bytes: int
    where: str
    module: str
    operation: str
    by_category: Mapping[str, int]
    tensors: tuple[Tensors, ...] = ()
    largest: tuple[Tensors, ...] = ()
    sentence: str = ""
    advice: str = ""

    @property
    def state_share(self) -> float:
        """Share of parameters, gradients and optimizer state, which neither recomputation nor a smaller batch lowers."""
        return sum(self.by_category.get(name, 0) for name in STATE) / max(1, self.peak_bytes)

    def to_dict(self) -> dict[str, object]:
        return {
            **asdict(self),
            "by_category": dict(self.by_category),
            "state_share": self.state_share,
            "tensors": [asdict(t) for t in self.tensors],
            "largest": [asdict(t) for t in self.largest],
        }


def peak_of(trace: Trace, *, live: Live | None = None, position: int | None = None) -> MemoryPeak:
    """The memory peak of a step, and the tensors behind it.

    Arguments:
        live: the live bytes of this trace, if already computed.
        position: position of the peak, if a replay of the allocator has found it; by default, that of most live bytes.
    """
    live, sequence = live or live_bytes(trace), trace.sequence
    position = live.peak_position if position is None else position
    if not len(sequence):
        return MemoryPeak(0, live.peak_bytes, "forward", "", "", live.by_category, sentence="nothing runs")
    operation = plain(trace.operations.name[sequence.operation[position]])
    module, phase = trace.modules[sequence.module[position]], PHASES[sequence.phase[position]]
    rows = _alive(trace, position)
    loss = _of_the_loss(trace, rows)
    in_loss = int(rounded(trace.storages.size_bytes[loss]).sum()) >= _LOSS_SHARE * max(1, live.peak_bytes)
    peak = MemoryPeak(
        position,
        live.peak_bytes,
        "loss" if in_loss else phase,
        module,
        operation,
        live.by_category,
        groups(trace, rows)[:TOP],
        _singles(trace, rows),
    )
    sentence = _loss_words(trace, loss) if in_loss else _words(peak)
    return MemoryPeak(**{**vars(peak), "sentence": sentence, "advice": _advice(peak, trace.header.strategy.mode)})


def groups(trace: Trace, rows: np.ndarray) -> tuple[Tensors, ...]:
    """Storages in groups, the largest group first."""
    starred, storages = grouped(trace.modules), trace.storages
    sizes = rounded(storages.size_bytes[rows])
    operations = _made_by(trace, rows)
    small = sizes * _SMALL < sizes.sum()  # keeps, say, the statistics of a norm apart from its output
    totals: dict[tuple[str, int, str, bool], list[int]] = {}
    columns = (storages.module[rows].tolist(), storages.category[rows].tolist(), operations, small.tolist(), sizes.tolist())
    for module, category, operation, is_small, size in zip(*columns, strict=True):
        entry = totals.setdefault((starred[module], category, operation, is_small), [0, 0, 0])
        entry[0], entry[1], entry[2] = entry[0] + 1, max(entry[1], size), entry[2] + size
    ranked = sorted(totals.items(), key=lambda item: -item[1][2])
    return tuple(
        Tensors(module, CATEGORIES[category], operation, *numbers) for (module, category, operation, _), numbers in ranked
    )


@lru_cache(maxsize=32)
def grouped(modules: tuple[str, ...]) -> tuple[str, ...]:
    """Replaces the numbers in module paths by stars: model.layers.7.mlp.up_proj -> model.layers.*.mlp.up_proj."""
    return tuple(re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", name) for name in modules)


def plain(operation: str) -> str:
    """'aten._log_softmax.default' -> 'log_softmax'"""
    parts = operation.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_")


def _alive(trace: Trace, position: int) -> np.ndarray:
    """Rows of the storages that are alive while a position runs; those of the second micro-batch only if it runs."""
    storages, sequence = trace.storages, trace.sequence
    alive = (storages.born <= position) & (storages.died >= position)
    if trace.accumulation == 1:
        alive &= (storages.born < 0) | (sequence.micro_step[np.maximum(storages.born, 0)] != 1)
    return np.flatnonzero(alive)


def _made_by(trace: Trace, rows: np.ndarray) -> list[str]:
    names, sequence = trace.operations.name, trace.sequence
    return [plain(names[sequence.operation[born]]) if born >= 0 else "" for born in trace.storages.born[rows].tolist()]


def _singles(trace: Trace, rows: np.ndarray) -> tuple[Tensors, ...]:
    storages = trace.storages
    sizes = rounded(storages.size_bytes[rows])
    top = np.argsort(-sizes, kind="stable")[:TOP]
    operations = _made_by(trace, rows[top])
    return tuple(
        Tensors(trace.modules[storages.module[row]], CATEGORIES[storages.category[row]], operation, 1, size, size)
        for row, operation, size in zip(rows[top].tolist(), operations, sizes[top].tolist(), strict=True)
    )


def _of_the_loss(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """The storages among these that lie between the output of the last module and its gradient."""
    sequence = trace.sequence
    kind = trace.operations.kind[sequence.operation]
    in_loss = np.flatnonzero(kind == KINDS.index("loss"))
    spans = np.zeros(len(sequence) + 1, dtype=bool)
    for micro_step in (0, 1):
        mine = in_loss[sequence.micro_step[in_loss] == micro_step]
        if len(mine):
            spans[_output_position(trace, int(mine[0])) : int(mine[-1]) + 2] = True
    born = trace.storages.born[rows]
    moving = np.isin(trace.storages.category[rows], [CATEGORIES.index("activation"), CATEGORIES.index("temporary")])
    return rows[(born >= 0) & spans[np.maximum(born, 0)] & moving]


def _output_position(trace: Trace, first: int) -> int:
    """The position of the output that the loss reads: the last contraction before the loss."""
    kind = trace.operations.kind[trace.sequence.operation[:first]]
    before = np.flatnonzero(np.isin(kind, [KINDS.index("gemm"), KINDS.index("conv")]))
    return int(before[-1]) if len(before) else first


def _loss_words(trace: Trace, loss: np.ndarray) -> str:
    first = int(np.flatnonzero(trace.operations.kind[trace.sequence.operation] == KINDS.index("loss"))[0])
    output = _output_position(trace, first)
    module = trace.modules[trace.sequence.module[output]] or "the model"
    sizes = rounded(trace.storages.size_bytes[loss])
    large = sizes[sizes * 4 >= sizes.max()]
    dtype = trace.operations.dtype[trace.sequence.operation[first]]
    over = "a large vocabulary" if trace.header.sample_unit == "token" else "a large output"
    return (
        f"the peak is the loss over {over}: of the logits that `{module}` gives, it holds {len(large)} tensors of up "
        f"to {format_bytes(int(sizes.max()))} in {_DTYPES.get(dtype, dtype)}, {format_bytes(int(large.sum()))} "
        "together"
    )


def _words(peak: MemoryPeak) -> str:
    """A sentence for a peak outside the loss."""
    state = sum(peak.by_category.get(name, 0) for name in STATE)
    running = f"in `{peak.module}`" if peak.module else f"in {peak.operation}"
    where = {
        "optimizer": "the peak is the optimizer step",
        "recompute": f"the peak is where backward runs `{peak.module}` again",
    }
    sentence = where.get(peak.where, f"the peak is in {peak.where}, {running}")
    if peak.state_share >= MOSTLY_STATE:
        sentence += f": parameters, gradients and optimizer state are {format_bytes(state)} of it"
    elif peak.tensors:
        first = peak.tensors[0]
        sentence += f": the largest part is {first.words}, {format_bytes(first.total_bytes)} of it"
    return sentence


def _advice(peak: MemoryPeak, mode: str) -> str:
    if mode == "infer":
        return "a smaller micro-batch lowers it"
    if peak.where == "loss":
        return (
            "a smaller micro-batch with accumulation lowers it, and so does a loss computed over parts of the sequence; "
            "recomputation frees only what the layers keep beside it"
        )
    if peak.where == "optimizer":
        return (
            "smaller optimizer state, an optimizer in backward, offloading or sharding lower it; "
            "recomputation and a smaller micro-batch free nothing"
        )
    if peak.state_share >= MOSTLY_STATE:
        return (
            "smaller optimizer state, an optimizer in backward, offloading or sharding lower it; "
            "recomputation and a smaller micro-batch free little"
        )
    return "recomputation, or a smaller micro-batch with accumulation, lowers it"
