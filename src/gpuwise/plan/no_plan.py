"""The errors for no plan: nothing fits, nothing can be priced, or nothing is inside budget and deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from gpuwise.errors import DoesNotFitError, GpuwiseError, NoPlanError
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note, rejections
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.conflict import LimitConflict
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.fit.change import FitProblem, FittingChange
from gpuwise.plan.fit.change_search import fitting_change
from gpuwise.plan.holding import Holding
from gpuwise.plan.owned_machine import OwnedMachine
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.rejection import Rejection
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import NoStrategy
from gpuwise.plan.time_and_money import TimeAndMoney
from gpuwise.plan.types import Plan
from gpuwise.step_settings import flag_of, flags_of, job_word
from gpuwise.strategy import Mesh, Parallelism

_NO_MEMORY = rejections.out_of_memory()


class NothingInside(NoPlanError):  # noqa: N818 - a kind of NoPlanError, read as a sentence
    """There are plans, but none inside budget and deadline.

    Attributes:
        cheapest, fastest: the cheapest and the fastest plan outside the limits.
        conflict: which limits exclude all plans, and the nearest plan on either side.
        rejected: rejected offers, counted by reason.
        at_hand: the user's own machines.
    """

    def __init__(
        self,
        request: Request,
        outside: Sequence[TimeAndMoney],
        rejected: Mapping[str, Rejection],
        at_hand: Sequence[OwnedMachine] = (),
        *,
        cheapest: Plan,
        fastest: Plan,
    ):
        self.cheapest, self.fastest = cheapest, fastest
        self.rejected, self.at_hand = rejected, tuple(at_hand)
        self.conflict = LimitConflict.of(request, outside)
        super().__init__(
            f"nothing trains {self.cheapest.job} {self.conflict.sentences(request)}"
            f"{own_machines({machine.offer: machine.reason_note for machine in at_hand if machine.reason_note is not None})}",
            [*self.conflict.ways_inside(), "train on fewer samples, or add a machine with --own"][:2],
        )

    def to_dict(self) -> dict[str, object]:
        return {
            **super().to_dict(),
            "cheapest": self.cheapest.to_dict(),
            "fastest": self.fastest.to_dict(),
            "conflict": self.conflict.to_dict(),
            "rejected": {reason: rejection.count for reason, rejection in self.rejected.items()},
            "rejection_notes": [rejection.to_dict() for rejection in self.rejected.values()],
            "at_hand": [machine.to_dict() for machine in self.at_hand],
        }


class FitsNowhere(DoesNotFitError):  # noqa: N818 - a kind of DoesNotFitError, read as a sentence
    """A job that fits the memory of no candidate.

    Attributes:
        holding: the fewest devices that hold it; None (default) where none do, or before they are searched.
        changed: whether the first way out is a change of the job that fits it.
    """

    def __init__(self, what: str, ways_out: Sequence[str], *, changed: bool, holding: Holding | None = None):
        super().__init__(what, ways_out)
        self.changed, self.holding = changed, holding

    def held_by(self, holding: Holding) -> FitsNowhere:
        """The same error, with the devices that hold the job as its first way out."""
        other = self.ways_out[0 if self.changed else 1]
        return FitsNowhere(self.what, [holding.words, other], changed=self.changed, holding=holding)

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), "holds": None if self.holding is None else self.holding.to_dict()}


def own_machines(reasons: Mapping[Offer, Note]) -> str:
    """' Your 2 × rtx-4090: past the deadline: 18 days.', for the end of an error; empty where none was named."""
    return "".join(
        f" Your {offer.devices:g} × {offer.chip_id}: {reason}." for offer, reason in reasons.items() if offer.provider == "own"
    )


def no_plan(job: str, request: Request, rejected: Rejections, fitting: tuple[Candidate, FittingChange] | None) -> GpuwiseError:
    """The error for a job that no candidate can train. fitting: the nearest candidate, with a change that fits it."""
    reasons = rejected.result()
    other_reasons = [f"{reason}: {r.count}, e.g. {r.examples[0]}" for reason, r in reasons.items() if r.reason != _NO_MEMORY]
    others = (f" Others are out for: {'; '.join(other_reasons[:3])}." if other_reasons else "") + own_machines(rejected.at_hand)
    if _NO_MEMORY.text in reasons:
        short = reasons[_NO_MEMORY.text]
        job_argument = job_word(request.job_argument)
        ways = [
            "a smaller model, or shorter samples with --seq-len or --image-size",
            f"see what would fit a device: gpuwise fit {job_argument} --on DEVICE",
        ]
        if request.on is not None:
            ways[0] = "leave out --on: other machines have more memory"
        if fitting is not None:
            nearest, answer = fitting
            added = _flags_of_plan(answer, request)
            ways[0] = f"{answer.words} fits {nearest}{f': add {added}' if added else ''}"
            ways[1] = f"see its step: {answer.command}"
        where = f"on {', '.join(request.on)}" if request.on else f"of up to {request.max_devices:,} devices"
        verb, which = ("does not fit", "the only offer") if short.count == 1 else ("fits", f"none of {short.count:,} offers")
        return FitsNowhere(
            f"{job} {verb} the memory of {which} {where}. The nearest is {short.examples[0]}.{others}",
            ways,
            changed=fitting is not None,
        )
    where = f" on {', '.join(request.on)}" if request.on else ""
    others = others.replace(" Others are", " Offers are", 1)
    flags = list(dict.fromkeys(rejection.reason.flag for rejection in reasons.values() if rejection.reason.flag))
    ways = [f"leave out or change {' or '.join(flags[:3])}"] if flags else []
    return NoPlanError(
        f"no offer can train {job}{where}.{others or ' None is in the catalog.'}",
        [*ways, "name another device with --on, or one you have with --own", "list what is offered: gpuwise offers"],
    )


def _flags_of_plan(answer: FittingChange, request: Request) -> str:
    """The flags with which `plan` takes a change. It finds the mesh by itself, and the micro-batch where the user pins none."""
    left_open = {"mesh", *asdict(Parallelism())}
    if request.micro_batch is None and request.accumulation is None:
        left_open |= {"micro_batch", "accumulate"}
    strategy = answer.forecast.strategy
    if strategy.precision == (request.precision or strategy.precision):
        left_open.add("precision")
    sizes = [f"{flag_of(name)} {size}" for name, size in answer.sizes.items()]
    return " ".join(filter(None, [flags_of(strategy, without=left_open), *sizes]))


def nearest_fitting(
    pricer: StepPricer,
    request: Request,
    by_key: Mapping[Key, Candidate],
    best: Mapping[Key, Estimate | NoStrategy],
) -> tuple[Candidate, FittingChange] | None:
    """The candidate with the smallest shortfall of memory and the change that fits it; None if memory is not the reason."""
    short = {key: each for key, each in best.items() if isinstance(each, NoStrategy) and each.reason == _NO_MEMORY}
    if not short:
        return None
    nearest = by_key[min(short, key=lambda key: (short[key].shortfall_bytes, str(by_key[key])))]
    cluster = nearest.cluster
    for precision in legal.precisions_for(cluster.chip, request.precision):
        requested = request.techniques.but(
            precision=precision,
            recompute=request.recompute or "none",
            micro_batch=request.micro_batch or 1,
            accumulation=request.accumulation or 1,
            mesh=Mesh(dp_replicate=cluster.devices),
        )
        problem = FitProblem(
            StepPricer(pricer.traces, catalog=pricer.catalog),
            requested,
            cluster,
            nearest.offer.host_memory_bytes,
            request.job_argument,
            f"{cluster.chip.id}:{cluster.devices}",
        )
        try:
            answer = fitting_change(problem)
        except GpuwiseError:
            continue
        if isinstance(answer, FittingChange):
            return nearest, answer
        if answer.hopeless:  # in a precision with as wide parameters, too
            break
    return None
