"""The fastest precision, layout and compilation on a CPU. Each is traced with its own kernels and priced."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Unpack

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.rates import precisions_of
from gpuwise.errors import MissingDependencyError, UnsupportedError
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes import cpu as notes
from gpuwise.plan.cpu.compile_time import compile_s, pays_back_after
from gpuwise.strategy import Strategy, StrategyChanges
from gpuwise.trace.tables import KINDS
from gpuwise.trace.trace import Trace

# Shorter steps are mostly the overhead of operations, which neither precision nor layout changes.
SHORTEST_S = 0.005
# A smaller forecast gain is no reason to leave full precision, the plain layout or eager steps: it is within what forecasts
# are off by, as `python -m benchmarks.cpu_plan --only candidates` shows.
FASTER_PRECISION, FASTER_LAYOUT, FASTER_COMPILED = 1.10, 1.03, 1.10
# Assumed: no compiled step takes less than this share of its eager one, so a run too short even for that needs no trace.
LEAST_COMPILED_SHARE = 0.6
SHORTEST_COMPILE_S = 15.0

Price = Callable[[Strategy], tuple[Forecast, Trace]]
"""Forecast and trace of a strategy with the kernels of this CPU. Raises UnsupportedError or MissingDependencyError
where there is none."""


@dataclass(frozen=True)
class CpuChoice:
    """The chosen settings of a CPU.

    Attributes:
        forecast: forecast of the chosen strategy.
        reasons: a reason for each setting.
        compile_s: seconds of compilation before the first step; 0 (default) without compiling.
    """

    forecast: Forecast
    reasons: tuple[Note, ...]
    compile_s: float = 0.0

    @property
    def strategy(self) -> Strategy:
        return self.forecast.strategy


def choose(
    price: Price,
    start: Strategy,
    chip: Chip,
    *,
    fixed: Collection[str] = (),
    steps: float | None = None,
    compiler: bool = True,
) -> CpuChoice:
    """The fastest of full and mixed precision, plain and channels-last layout, eager and compiled steps.

    Arguments:
        price: prices a strategy, see Price.
        start: strategy with every field that is not chosen here.
        fixed: the fields among "precision", "channels_last" and "compile" that the user has set; `start` has their values.
        steps: optimizer steps of the run; None (default) where unknown, which never compiles.
        compiler: whether torch.compile can work, which needs a C++ compiler. Default True.

    Raises the errors of pricing `start`. Other strategies that are not available or do not fit are skipped.
    """
    price = cache(price)
    plain = start if "precision" in fixed else start.but(precision="fp32")
    first = _try(price, plain)
    if isinstance(first, Exception):
        raise first
    best, images = first[0], _convolves_images(first[1])
    reasons: list[Note] = []
    if best.step_time_s.value < SHORTEST_S:
        return CpuChoice(best, (notes.bound_by_overhead(),))

    def faster(than: Forecast, by: float, **changes: Unpack[StrategyChanges]) -> Forecast | None:
        priced = _try(price, than.strategy.but(**changes))
        if isinstance(priced, Exception) or priced[0].memory.fits is False:
            return None
        won = priced[0].step_time_s.value * by < than.step_time_s.value or than.memory.fits is False
        return priced[0] if won else None

    layout_open = images and "channels_last" not in fixed and not start.channels_last
    if "precision" not in fixed and "amp-bf16" in precisions_of(chip):
        # oneDNN's bf16 convolutions expect channels-last tensors and reorder others on the way in and out.
        forecast = faster(best, FASTER_PRECISION, precision="amp-bf16", channels_last=start.channels_last or layout_open)
        if forecast is not None:
            reasons.append(_because("amp-bf16", best, forecast, "this CPU multiplies bfloat16 numbers faster"))
            best, layout_open = forecast, False
    if layout_open:
        forecast = faster(best, FASTER_LAYOUT, channels_last=True)
        if forecast is not None:
            reasons.append(_because("channels-last", best, forecast, "convolutions read the channels of a position together"))
            best = forecast
    if "compile" in fixed or steps is None or start.compile:
        return CpuChoice(best, tuple(reasons), compile_s(price(best.strategy)[1]) if start.compile else 0.0)
    return _compiled(price, best, reasons, steps, compiler=compiler)


def _compiled(price: Price, eager: Forecast, reasons: list[Note], steps: float, *, compiler: bool) -> CpuChoice:
    """The choice with compilation, if that pays off within the run."""
    most_saved_s = steps * eager.step_time_s.value * (1 - LEAST_COMPILED_SHARE)
    if most_saved_s < SHORTEST_COMPILE_S:
        return CpuChoice(eager, (*reasons, notes.too_few_steps_to_compile(steps=steps)))
    if not compiler:
        return CpuChoice(eager, (*reasons, notes.no_compiler()))
    priced = _try(price, eager.strategy.but(compile=True))
    if isinstance(priced, Exception):
        return CpuChoice(eager, (*reasons, notes.cannot_be_compiled(problem=str(priced))))
    compiled, takes_s, compiled_s = priced[0], compile_s(priced[1]), _step_s(priced[0])
    if compiled.memory.fits is False:
        return CpuChoice(eager, (*reasons, notes.compiled_does_not_fit()))
    if compiled_s * FASTER_COMPILED > _step_s(eager):
        return CpuChoice(eager, (*reasons, notes.compiled_hardly_faster(step_s=compiled_s)))
    after = pays_back_after(takes_s, eager_step_s=_step_s(eager), compiled_step_s=compiled_s)
    if after > steps:
        late = notes.compiling_pays_back_late(compile_s=takes_s, after_steps=after, steps=steps)
        return CpuChoice(eager, (*reasons, late))
    return CpuChoice(compiled, (*reasons, notes.compiling_pays_back(compile_s=takes_s, after_steps=after)), takes_s)


def _try(price: Price, strategy: Strategy) -> tuple[Forecast, Trace] | UnsupportedError | MissingDependencyError:
    try:
        return price(strategy)
    except (UnsupportedError, MissingDependencyError) as error:
        return error


def _convolves_images(trace: Trace) -> bool:
    """Whether the step has convolutions of images, whose layout can be changed."""
    return bool((trace.operations.kind == KINDS.index("conv")).any())


def _step_s(forecast: Forecast) -> float:
    return forecast.step_time_s.value


def _because(name: str, before: Forecast, after: Forecast, why: str) -> Note:
    layout = ", channels-last" if after.strategy.channels_last and name != "channels-last" else ""
    return notes.faster_setting(
        setting=f"{name}{layout}",
        why=why,
        step_s=_step_s(after),
        before_s=_step_s(before),
        precision=before.strategy.precision,
    )
