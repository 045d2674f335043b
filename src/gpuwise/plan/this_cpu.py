"""The CPU of this machine as a place to train: its settings are chosen on traces with its own kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.price import price
from gpuwise.errors import MissingDependencyError, UnsupportedError
from gpuwise.plan import space
from gpuwise.plan.candidates import Candidate, Key
from gpuwise.plan.cpu_choice import CpuChoice, choose
from gpuwise.plan.pricing import NoStrategy
from gpuwise.plan.types import Request
from gpuwise.strategy import Strategy
from gpuwise.trace.sharded import data_parallel, recorded_as
from gpuwise.trace.trace import Trace

OwnTraces = Callable[[Strategy], Trace]
"""The job's trace of a strategy, at its micro-batch, with the kernels of this CPU. Raises UnsupportedError or
MissingDependencyError where there is none."""


def choices_here(places: Mapping[Key, Candidate], best: Mapping[Key, Forecast | NoStrategy], own: OwnTraces,
                 request: Request, *, samples: int, compiler: bool) -> dict[Key, CpuChoice]:  # fmt: skip
    """What is chosen for each place that is this machine's CPU; `best`: what recordings say of all places."""
    found = {}
    for key, item in places.items():
        by_recordings = best[key]
        if item.offer.provider != "here" or item.chip.kind != "cpu" or isinstance(by_recordings, NoStrategy):
            continue
        choice = choose_here(item, by_recordings, own, request, samples=samples, compiler=compiler)
        if choice is not None:
            found[key] = choice
    return found


def choose_here(item: Candidate, found: Forecast, own: OwnTraces, request: Request, *, samples: int,
                compiler: bool) -> CpuChoice | None:  # fmt: skip
    """Precision, layout and compilation for this CPU, at the largest micro-batch up to that of `found` that fits.

    Arguments:
        found: the best strategy by recordings, which have a GPU's kernels. samples: of the run.

    None where the job cannot be traced here, or fits at no micro-batch.
    """

    def priced(strategy: Strategy) -> tuple[Forecast, Trace]:
        trace, communication = data_parallel(own(recorded_as(strategy)), strategy)
        return price(trace, communication, item.chip, count=1, capacity_bytes=item.place.capacity_bytes,
                     strategy=strategy), trace  # fmt: skip

    given = ["precision"] if request.precision is not None else []
    batch = found.strategy.global_batch
    for micro_batch in reversed(space.micro_batches(batch, request.micro_batch)):
        if micro_batch > found.strategy.micro_batch:
            continue
        start = found.strategy.but(precision=request.precision or "fp32", micro_batch=micro_batch,
                                   accumulation=batch // micro_batch)  # fmt: skip
        try:
            choice = choose(priced, start, item.chip, given=given, steps=-(-samples // batch), compiler=compiler)
        except (UnsupportedError, MissingDependencyError):
            return None
        if choice.forecast.memory.fits is not False:
            return choice
    return None
