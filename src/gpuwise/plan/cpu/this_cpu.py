"""Settings for training on this machine's CPU, chosen on traces with its own kernels."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwise.errors import MissingDependencyError, UnsupportedError
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.cpu.choice import CpuChoice, Price, choose
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.request import Request
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import NoStrategy


def choices_here(
    by_key: Mapping[Key, Candidate],
    best: Mapping[Key, Estimate | NoStrategy],
    own: Price,
    request: Request,
    *,
    samples: int,
    compiler: bool,
) -> dict[Key, CpuChoice]:
    """The choice for each candidate that is this machine's CPU. best: the best strategy of each candidate by recordings."""
    choices = {}
    for key, item in by_key.items():
        by_recordings = best[key]
        if item.offer.provider != "here" or item.chip.kind != "cpu" or isinstance(by_recordings, NoStrategy):
            continue
        choice = choose_here(item, by_recordings, own, request, samples=samples, compiler=compiler)
        if choice is not None:
            choices[key] = choice
    return choices


def choose_here(
    item: Candidate, recorded: Estimate, own: Price, request: Request, *, samples: int, compiler: bool
) -> CpuChoice | None:
    """Precision, layout and compilation for this CPU, at the largest micro-batch up to that of `recorded` that fits.

    Arguments:
        recorded: the best strategy by recordings, which have a GPU's kernels.
        own: prices the job's steps on this machine.
        samples: number of samples of the run.

    None if the job cannot be traced here, or fits at no micro-batch.
    """
    fixed = set(request.named & {"channels_last", "compile"}) | ({"precision"} if request.precision is not None else set())
    batch = recorded.strategy.global_batch
    for micro_batch in reversed(legal.micro_batches(batch, request.micro_batch, request.accumulation)):
        if micro_batch > recorded.strategy.micro_batch:
            continue
        start = recorded.strategy.but(
            precision=request.precision or "fp32", micro_batch=micro_batch, accumulation=batch // micro_batch
        )
        try:
            choice = choose(own, start, item.chip, fixed=fixed, steps=-(-samples // batch), compiler=compiler)
        except (UnsupportedError, MissingDependencyError):
            return None
        if choice.forecast.memory.fits is not False:
            return choice
    return None
