"""sweep: machines for many runs of one job, several on a device where they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.plain_arguments import plainly
from gpuwise.api.planning import job_and_request
from gpuwise.cost.rates import precisions_of
from gpuwise.errors import InputError, NoPlanError
from gpuwise.plan_settings import PlanSettings
from gpuwise.step_settings import job_word

if TYPE_CHECKING:
    from gpuwise.hardware.catalog import Catalog
    from gpuwise.hardware.types import Chip
    from gpuwise.job import Job
    from gpuwise.notes import Note
    from gpuwise.plan.estimate import Estimate
    from gpuwise.plan.pricing.traces import StepTraces
    from gpuwise.plan.request import Request
    from gpuwise.plan.sweep.types import SweepResult

MOST_RUNS = 10_000
_OBJECTIVES = ("cheapest", "fastest", "samples-per-dollar")


@plainly
def sweep(
    job: str | Job,
    *,
    runs: int,
    on: str | Sequence[str] | None = None,
    own: str | Sequence[str] = (),
    limit: int | None = 12,
    **settings: Unpack[PlanSettings],
) -> SweepResult:
    """The machines for many equal runs of a job, such as a hyper-parameter sweep, best first.

    Each run trains on one device, and several share a device where they fit; or on as few devices of a machine as hold it.
    Machines work in parallel, 64 devices at once or as many as `max_devices` says.

    Arguments:
        runs: how many.
        job, on, own, limit, settings: as for `plan`. The length is of one run; budget and deadline are of all together.

    Raises NoPlanError if nothing is inside budget and deadline, InputError, and the errors of `plan`.
    """
    from gpuwise.hardware.prices import UsualPrices
    from gpuwise.plan.buying.candidates import Candidate, candidates
    from gpuwise.plan.sweep.sweep import MOST_DEVICES, Sweep
    from gpuwise.plan.sweep.types import SweepResult
    from gpuwise.plan.sweep.why import why_first
    from gpuwise.units import counted

    if not 1 <= runs <= MOST_RUNS:
        raise InputError(f"a sweep has from 1 to {MOST_RUNS:,} runs, got {runs:,}.", ["sweep in parts", "--runs 1000"])
    source, request, catalog = job_and_request(job, settings, on=on, own=own, limit=limit)
    if request.objective not in _OBJECTIVES:
        raise InputError(f"--runs does not rank by {request.objective}.", [f"--objective {name}" for name in _OBJECTIVES[:2]])
    request = replace(request, here=None, own_clusters=())
    header = source.traces().header([request.precision] if request.precision else ["amp-bf16", "fp32"], request.techniques)
    considered = [
        item
        for item in candidates(request, catalog.offers, catalog, parameters=header.trainable_parameters)
        if not isinstance(item, Candidate) or item.chip.kind.startswith("gpu")
    ]
    most = {item.chip.id: 0 for item in considered if isinstance(item, Candidate)}  # devices of a machine
    for item in considered:
        if isinstance(item, Candidate):
            most[item.chip.id] = max(most[item.chip.id], round(item.devices))
    traces = source.traces()
    estimates: dict[str, tuple[Estimate, ...]] = {}
    devices = 1
    assumptions: tuple[Note, ...] = ()
    while left := [name for name, count in most.items() if name not in estimates and count >= devices]:
        best, assumed = _best_of(left, devices, traces, request, catalog)
        assumptions = assumptions or assumed
        estimates |= {name: (estimate,) for name, estimate in best.items()}
        devices *= 2
    if request.precision is None:
        for precision in ("amp-bf16", "amp-fp16"):
            in_half = replace(request, precision=precision)
            waiting = [name for name, own in estimates.items() if _may_pack_better(own, catalog.chip(name), precision)]
            best, _ = _best_of(waiting, 1, traces, in_half, catalog) if waiting else ({}, ())
            estimates |= {name: (*estimates[name], estimate) for name, estimate in best.items()}
    most_devices = MOST_DEVICES if request.more_devices is not None else request.max_devices
    samples, notes = request.length.total_samples(header)
    market = UsualPrices.of(catalog.offers, today=catalog.today)
    plans, rejected = Sweep(request, runs, samples, market, most_devices).plans(considered, estimates)
    if not plans:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in rejected.most_common(3))
        raise NoPlanError(
            f"nothing does {counted(runs, 'run')} of {header.job} inside the limits. {reasons}.",
            ["raise --budget or --deadline", f"plan one run: gpuwise plan {job_word(request.job_argument)}"],
        )
    return SweepResult(
        header.job,
        runs,
        tuple(plans),
        why_first(plans),
        dict(rejected.most_common()),
        (
            *(note.text for note in (*header.assumption_notes, *notes, *assumptions)),
            "each run trains on one device, or on as few of a machine as hold it",
            f"at most {most_devices:,} devices are rented at once; --max-devices changes it",
            "kernels of runs that share a device take turns: k of them take k times the share that one keeps it busy, at least "
            "as long as one alone; 45 measured pairs ran at 0.91 to 1.39 times that speed (90 %), and MPS may do better",
            "each run that shares a device keeps a core of the host busy; data loading of all runs together is not priced",
        ),
    )


def _best_of(
    names: Sequence[str], devices: int, traces: StepTraces, request: Request, catalog: Catalog
) -> tuple[dict[str, Estimate], tuple[Note, ...]]:
    """The fastest strategy of each chip that runs on so many devices, and what was assumed."""
    from gpuwise.plan.estimate import Estimate
    from gpuwise.plan.search import search

    own = tuple((name, devices) for name in names)
    searched = search(traces, replace(request, on=None, own=own, limit=None), (), catalog)
    searched = searched.verified(
        [key for key, best in searched.best.items() if isinstance(best, Estimate) and not best.settled]
    )
    results = {}
    for key, item in searched.by_key.items():
        best = searched.best[key]
        if not isinstance(best, Estimate) or best.forecast is None or item.devices != devices:
            continue
        if best.strategy.offload == request.techniques.offload:  # runs of a machine would share its host and the way there
            results[item.chip.id] = best
    return results, tuple(searched.assumption_notes)


def _may_pack_better(own: Sequence[Estimate], chip: Chip, precision: str) -> bool:
    """Whether runs in this precision may share the chip better than the fastest one alone, which is in fp32 or TF32.

    Alone the kernels of a small run wait for the host, so that half precision gains nothing; side by side they do not wait.
    """
    strategy = own[0].strategy
    fastest_in_fp32 = strategy.precision in ("fp32", "tf32") and strategy.mesh.devices == 1
    return fastest_in_fp32 and len(own) == 1 and precision in precisions_of(chip)
