"""The bounds of a step: shares of its time by limit, and a sentence on the largest one and its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuwise.cost.kernels import KernelTimes
from gpuwise.cost.network.advice import AxisCost
from gpuwise.cost.rates import fast_fp16, precisions_of
from gpuwise.hardware.types import Chip
from gpuwise.strategy import Strategy
from gpuwise.trace.trace import Trace

# "pipeline", the idle time of a pipeline's ranks, is there where there is a pipeline.
BOUNDS = ("compute", "memory", "launch", "communication", "input", "pipeline")
_WORDS = {
    "compute": "arithmetic",
    "memory": "memory bandwidth",
    "launch": "the launching of kernels",
    "communication": "communication",
    "input": "its input",
    "pipeline": "idle pipeline stages",
}
_SECOND = 0.25  # the second bound is named, too, from this share on
_NAMED = 0.05  # and so is what the mesh costs


def bound_shares(
    trace: Trace, times: KernelTimes, *, alone_s: float, communication_s: float, input_s: float, pipeline_s: float = 0.0
) -> dict[str, float]:
    """Shares of the step by BOUNDS, summing to 1.

    Arguments:
        alone_s: seconds of the step without communication and input.
        communication_s, input_s, pipeline_s: seconds that each adds to the step.

    A kernel counts towards the larger of its two roofs. Launch covers kernel floors and the device waiting for the host.
    """
    counts = trace.counts()
    beyond = counts * (times.device_s - times.floor_s)
    arithmetic = times.compute_s >= times.memory_s
    seconds = {
        "compute": float(np.sum(beyond, where=arithmetic)),
        "memory": float(np.sum(beyond, where=~arithmetic)),
        "launch": 0.0,
        "communication": communication_s,
        "input": input_s,
    }
    seconds["launch"] = max(0.0, alone_s - seconds["compute"] - seconds["memory"])
    if pipeline_s:
        seconds["pipeline"] = pipeline_s
    total = sum(seconds.values())
    return {name: value / total if total else 0.0 for name, value in seconds.items()}


def why(
    bound: Mapping[str, float],
    strategy: Strategy,
    chip: Chip,
    top_modules: Sequence[tuple[str, float]] = (),
    *,
    axis: AxisCost | None = None,
) -> str:
    """A sentence on the largest bound of the step and its remedy; "" if nothing runs.

    axis: the axis of the mesh whose communication costs most; None (default) without communication.
    """
    ranked = sorted((name for name in bound if bound[name] > 0), key=lambda name: -bound[name])
    if not ranked:
        return ""
    first = ranked[0]
    sentence = f"{_WORDS[first]} bounds {100 * bound[first]:.0f} % of the step{_by_axis(first, axis)}"
    if len(ranked) > 1 and bound[ranked[1]] >= _SECOND:
        sentence += f", {_WORDS[ranked[1]]} {100 * bound[ranked[1]]:.0f} %"
    if top_modules and first in ("compute", "memory"):
        name, share = top_modules[0]
        named = "what runs outside of modules" if name == "(root)" else f"`{name}` alone"
        sentence += f" ({named} is {100 * share:.0f} % of the device's time)"
    remedy = axis.remedy if axis is not None and first == "communication" else _help(first, strategy, chip)
    return f"{sentence}: {remedy}{_of_the_mesh(first, bound, strategy, axis)}"


def _by_axis(bound: str, axis: AxisCost | None) -> str:
    return f", {100 * axis.share:.0f} % for {axis.words} alone" if bound == "communication" and axis is not None else ""


def _of_the_mesh(first: str, bound: Mapping[str, float], strategy: Strategy, axis: AxisCost | None) -> str:
    """A sentence on what costs most of how devices share the work, where that is not the first bound of the step."""
    idle, waits = bound.get("pipeline", 0.0), 0.0 if axis is None else axis.share
    if first in ("communication", "pipeline") or max(idle, waits) < _NAMED:
        return ""
    if axis is None or idle >= waits:
        return f". Of the mesh, the pipeline costs most, idle for {100 * idle:.0f} %: {_for_pipeline(strategy)}"
    return f". Of the mesh, {axis.words} costs most, {100 * waits:.0f} %: {axis.remedy}"


def _for_pipeline(strategy: Strategy) -> str:
    more = f"--accumulate {2 * strategy.accumulation}"
    return f"more micro-batches ({more}), fewer stages, or several on each rank (--stages-per-rank) would fill the pipeline"


def _help(bound: str, strategy: Strategy, chip: Chip) -> str:
    ways = {"compute": _for_compute, "memory": _for_memory, "launch": _for_launch}
    if bound in ways:
        return ways[bound](strategy, chip)
    if bound == "communication":
        more = "" if strategy.mode == "infer" else ", and so does more accumulation (--accumulate)"
        return f"a faster link or fewer devices would help{more}"
    if bound == "pipeline":
        return _for_pipeline(strategy)
    return "a faster data pipeline would help (more loader workers, lighter decoding), a faster chip would not"


def _for_compute(strategy: Strategy, chip: Chip) -> str:
    faster = _faster_precision(strategy, chip)
    if faster:
        return f"--precision {faster} would run it on faster units"
    if strategy.recompute != "none":
        return "--recompute none would spare what is computed twice, where memory allows it"
    return "a chip with more arithmetic would help, more memory bandwidth would not"


def _for_memory(strategy: Strategy, chip: Chip) -> str:
    faster = _faster_precision(strategy, chip)
    if faster and not faster.startswith("tf32"):
        return f"--precision {faster} would move fewer bytes"
    if not strategy.compile and chip.kind.startswith("gpu"):
        return "--compile, which joins kernels that only move bytes, or a chip with more memory bandwidth would help"
    return "a chip with more memory bandwidth would help, more arithmetic would not"


def _for_launch(strategy: Strategy, chip: Chip) -> str:
    again = "" if strategy.compile else ", and --compile launches fewer kernels"
    return f"a larger --micro-batch would fill the device{again}"


def _faster_precision(strategy: Strategy, chip: Chip) -> str:
    """A precision that the chip runs on faster units than the strategy's; "" without one."""
    if strategy.precision not in ("fp32", "tf32"):
        return ""
    able, peaks = precisions_of(chip), chip.peak_flops_per_s
    if "amp-bf16" in able and peaks.get("bf16", 0.0) > peaks.get(strategy.precision, 0.0):
        return "amp-bf16"
    return "amp-fp16" if "amp-fp16" in able and fast_fp16(chip) else ""
