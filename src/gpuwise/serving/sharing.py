"""Degrees: how the devices of an instance share a model, and what one of them runs.

Engines split a model by rules of their own, not by the plan of its training code: products along their outputs, then along
their inputs, with a sum after each pair (Shoeybi et al. 2019); of experts each device has a part, or some; every token is on
every device, unless attention is replicated. A recording of the whole model thus shows what each of several devices runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuwise.cost.kernels.shapes import ELEMENT_BYTES
from gpuwise.errors import InputError
from gpuwise.trace.header import RankGroup
from gpuwise.trace.tables import COLUMNS, KINDS, Operations
from gpuwise.trace.trace import Trace

GROUPED = "_grouped_mm"  # the operator whose rows meet the weights of their own expert
_AT = {name: COLUMNS.index(name) for name in COLUMNS}
_GEMM, _FLOWS = KINDS.index("gemm"), tuple(KINDS.index(kind) for kind in ("elementwise", "norm", "reduction", "copy"))
EXCHANGED_BYTES = 2  # engines exchange 16 bits
ROTARY = 64  # columns of a latent key that every head shares beside those that are widened


@dataclass(frozen=True)
class Degrees:
    """How many devices share what.

    Attributes:
        tp: devices that share the heads of attention and all products but those of experts.
        expert_tp: devices that share each expert.
        expert_parallel: groups of devices that have different experts.
        attention_dp: replicas of attention, each with sequences of its own.
    """

    tp: int = 1
    expert_tp: int = 1
    expert_parallel: int = 1
    attention_dp: int = 1

    def __post_init__(self) -> None:
        if min(self.tp, self.expert_tp, self.expert_parallel, self.attention_dp) < 1:
            raise InputError("Degrees of parallelism must be 1 or more.")

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return max(self.tp * self.attention_dp, self.expert_tp * self.expert_parallel)


ALONE = Degrees()


@dataclass(frozen=True)
class Exchange:
    """Equal calls of a collective in a pass.

    Attributes:
        operation: as gpuwise.cost.network.collectives names it.
        payload_bytes: of one call.
        group: the devices.
        calls: how many.
    """

    operation: str
    payload_bytes: int
    group: RankGroup
    calls: int


def has_experts(operations: Operations) -> bool:
    """Whether products of rows with the weights of their own experts run."""
    return any(GROUPED in name for name in operations.name)


def distinct_experts(experts: float, chosen: float, tokens: float) -> float:
    """Experts that some of the tokens choose, if all are equally likely: E (1 - (1 - k/E)^n), at most E."""
    return experts * (1 - (1 - min(chosen / experts, 1.0)) ** tokens)


def share_of(trace: Trace, degrees: Degrees, *, tokens: int, width: int) -> Trace:
    """What one device runs of a fused pass over `tokens` tokens, on each replica of attention.

    width: elements of a token between the blocks.
    """
    source = trace.operations
    values = source.values.copy()
    columns, k_of = source.column("n"), source.column("k")
    plain = (source.kind == _GEMM) & np.array([GROUPED not in name for name in source.name])
    widened = set(k_of[plain & (columns != width) & (k_of != width)].tolist())  # latent rows, whole on each device
    experts = {experts_of(source.values[row], source.dtype[row]) for row in np.flatnonzero(~plain & (source.kind == _GEMM))}
    inside = of_experts = False  # between a product that is split along its outputs, and the one along its inputs
    for row in range(len(source)):
        n, k = int(columns[row]), int(k_of[row])
        if source.kind[row] == _GEMM and not plain[row]:
            of_experts = not of_experts  # into the experts, and out of them
            _one_expert_share(values[row], source.dtype[row], degrees, tokens=tokens, along="n" if of_experts else "k")
        elif plain[row] and values[row, _AT["batch"]] <= 1:
            if k == width and (n in experts or any(0 <= n - each <= ROTARY for each in widened)):
                continue
            inside = not (inside and n == width)
            _split(values[row], "n" if inside else "k", degrees.tp, ELEMENT_BYTES.get(source.dtype[row], 2.0))
        elif source.kind[row] in _FLOWS and (inside or of_experts):
            parts = degrees.expert_tp * degrees.expert_parallel / degrees.attention_dp if of_experts else degrees.tp
            for name in ("flops", "bytes_read", "bytes_written"):
                values[row, _AT[name]] /= parts
    return replace(trace, operations=replace(source, values=values))


def experts_of(values: np.ndarray, dtype: str) -> int:
    """Experts of a grouped product, whose weights it reads."""
    m, n, k = (int(values[_AT[name]]) for name in "mnk")
    element_bytes = ELEMENT_BYTES.get(dtype, 2.0)
    return max(1, int((values[_AT["bytes_read"]] / element_bytes - m * k) // (n * k)))


def _one_expert_share(values: np.ndarray, dtype: str, degrees: Degrees, *, tokens: int, along: str) -> None:
    """A grouped product as one product a distinct expert of this device, with equally many rows each."""
    everyone = tokens * degrees.attention_dp
    experts, rows = experts_of(values, dtype), int(values[_AT["m"]]) * degrees.attention_dp
    here = experts / degrees.expert_parallel
    read = max(1, round(distinct_experts(here, rows / everyone / degrees.expert_parallel, everyone)))
    n, k = int(values[_AT["n"]]), int(values[_AT["k"]])
    n, k = (n, max(1, k // degrees.expert_tp)) if along == "k" else (max(1, n // degrees.expert_tp), k)
    mine, element_bytes = max(1, rows // degrees.expert_parallel), ELEMENT_BYTES.get(dtype, 2.0)
    values[_AT["batch"]], values[_AT["m"]], values[_AT["n"]], values[_AT["k"]] = read, -(-mine // read), n, k
    values[_AT["flops"]] = 2 * mine * n * k
    values[_AT["bytes_read"]] = element_bytes * (read * n * k + mine * k)
    values[_AT["bytes_written"]] = element_bytes * mine * n


def _split(values: np.ndarray, along: str, parts: int, element_bytes: float) -> None:
    """A product of which each of several devices has some of the columns of the weights ("n"), or of the rows ("k")."""
    m, n, k = (int(values[_AT[name]]) for name in "mnk")
    apart = values[_AT["bytes_read"]] - element_bytes * (m * k + n * k)
    n, k = (max(1, n // parts), k) if along == "n" else (n, max(1, k // parts))
    values[_AT["n"]], values[_AT["k"]], values[_AT["flops"]] = n, k, values[_AT["flops"]] / parts
    values[_AT["bytes_read"]] = max(apart, 0) + element_bytes * (m * k + n * k)
    if along == "n":
        values[_AT["bytes_written"]] /= parts


def exchanges(degrees: Degrees, *, tokens: int, width: int, blocks: int, of_experts: int) -> tuple[Exchange, ...]:
    """Collectives of a pass over `tokens` tokens on each replica of attention: a sum after the embedding (its rows are shared),
    after attention and after the products of each block; where attention is replicated, tokens are gathered before experts and
    their results summed apart.

    Arguments:
        width: elements of a token between the blocks.
        blocks: of the model.
        of_experts: those with experts.
    """
    size = tokens * width * EXCHANGED_BYTES
    every = RankGroup("ep", degrees.devices, 1)
    if degrees.attention_dp > 1:
        inside = (Exchange("all_reduce", size, RankGroup("tp", degrees.tp, 1), 1 + 2 * blocks - of_experts),)
        gathered = size * degrees.attention_dp
        apart = (Exchange("all_gather", gathered, every, of_experts), Exchange("reduce_scatter", gathered, every, of_experts))
        return (*(inside if degrees.tp > 1 else ()), *(apart if of_experts else ()))
    if degrees.devices == 1:
        return ()
    return (Exchange("all_reduce", size, every, 1 + 2 * blocks),)


def gathered_logits(degrees: Degrees, *, sequences: int, vocabulary: int) -> tuple[Exchange, ...]:
    """The logits of so many sequences, of which each device has a part of the vocabulary: each gets all of them."""
    if degrees.tp == 1 or not vocabulary:
        return ()
    return (Exchange("all_gather", sequences * vocabulary * EXCHANGED_BYTES, RankGroup("tp", degrees.tp, 1), 1),)
