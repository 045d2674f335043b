"""The time cost of offloading: bytes over the host link, and the update in host memory.

The copies run on the compute stream (gpuwise/runtime/offload.py), so nothing hides them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.parameters import Parameters
from gpuwise.hardware.types import Link
from gpuwise.notes import Note
from gpuwise.notes.step import offloading, offloading_not_priced
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header
from gpuwise.trace.tables import CATEGORIES, KINDS
from gpuwise.trace.trace import Trace

# The host is unknown: a desktop's two channels of DDR5-5600 (2 × 44.8 GB/s) are assumed.
HOST_MEMORY_BYTES_PER_S = 89.6e9
_PARAMETER, _GRADIENT = CATEGORIES.index("parameter"), CATEGORIES.index("gradient")


@dataclass(frozen=True)
class Offload:
    """The cost that offloading adds to one optimizer step: total `seconds`, and `link_bytes` over the host link."""

    seconds: float = 0.0
    link_bytes: int = 0
    note: Note | None = None


def offload(trace: Trace, strategy: Strategy, link: Link | None, parameters: Parameters) -> Offload:
    """The time that strategy.offload adds.

    Arguments:
        trace: trace of the same step without offloading.
        link: link to the host; None where unknown.
    """
    if strategy.offload == "none" or link is None or not link.per_direction_bytes_per_s:
        return Offload(note=None if strategy.offload == "none" else offloading_not_priced())
    storages = trace.storages
    size = storages.size_bytes
    gradients = int(size[storages.category == _GRADIENT].sum())
    moved = gradients * (trace.accumulation + 1)  # each micro-batch's gradients down, parameters of as many bytes back up
    if strategy.offload == "parameters":  # the blocks visit for forward and for backward; they are not sent back
        inside = _in_blocks(trace)
        visiting = int(size[(storages.category == _PARAMETER) & inside[storages.module]].sum())
        moved += visiting * (2 * trace.accumulation - 1)
    update = trace.operations.kind == KINDS.index("optimizer")
    traffic = trace.operations.column("bytes_read") + trace.operations.column("bytes_written")
    update_s = float((trace.counts("optimizer") * update) @ traffic) / HOST_MEMORY_BYTES_PER_S
    copy_s = moved / copy_bytes_per_s(link, parameters)
    note = offloading(moved_bytes=moved, link=link.name, host_bytes_per_s=HOST_MEMORY_BYTES_PER_S)
    return Offload(copy_s + update_s, moved, note)


def on_host_bytes(header: Header) -> int:
    """Host memory of offloading: parameters, gradients and optimizer state (two moments in fp32)."""
    return 4 * header.parameters + 12 * header.trainable_parameters


def lengthened(forecast: Forecast, added: Offload) -> Forecast:
    """The forecast with the time of offloading added."""
    whole = forecast.step_time_s.value + added.seconds
    factor = whole / forecast.step_time_s.value if forecast.step_time_s.value else 1.0
    bound = {name: share / factor for name, share in forecast.bound.items()}
    bound["communication"] = bound.get("communication", 0.0) + 1 - 1 / factor
    why = forecast.why
    if max(bound, key=lambda name: bound[name]) == "communication":
        share = f"{100 * bound['communication']:.0f} %"
        why = (
            f"offloading bounds {share} of the step, copies over the host link and the update in host memory: "
            "--offload none would spare it, where memory allows it"
        )
    return replace(
        forecast,
        why=why,
        step_time_s=forecast.step_time_s.scaled(factor),
        throughput=forecast.throughput / factor,
        mfu=None if forecast.mfu is None else forecast.mfu / factor,
        bound=bound,
        step_shares={**{name: share / factor for name, share in forecast.step_shares.items()}, "offload": 1 - 1 / factor},
        assumption_notes=(*forecast.assumption_notes, *filter(None, [added.note])),
    )


def copy_bytes_per_s(link: Link, parameters: Parameters) -> float:
    """The bandwidth of pinned memory over a host link: measured on this machine, else a share of the line rate."""
    return link.achieved_bytes_per_s or (link.per_direction_bytes_per_s or 0.0) * parameters.link_efficiency


def _in_blocks(trace: Trace) -> np.ndarray:
    """Which modules are inside a repeated block. Shape (modules,)."""
    blocks = set(trace.header.blocks)
    inside = []
    for module in trace.modules:
        path = module
        while path and path not in blocks:
            path = path.rpartition(".")[0]
        inside.append(bool(path))
    return np.array(inside, dtype=bool)
