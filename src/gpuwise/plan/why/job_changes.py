"""Single changes of a job, each planned again on the machines of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpuwise.cost.rates import precisions_of
from gpuwise.errors import GpuwiseError
from gpuwise.plan.best import BatchChoice, BestStrategies
from gpuwise.plan.option import Option
from gpuwise.plan.plan_result import PlanResult
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.request import Request
from gpuwise.plan.searched import Searched
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import NoStrategy
from gpuwise.plan.why.types import JobChange
from gpuwise.trace.header import Header

Exactly = Callable[[Searched, Request], PlanResult]  # `choose` with exact forecasts of all that is shown
SHORTEST_SEQUENCE = 128
_NO_DEADLINE_S = 1e11  # three thousand years: a changed job is compared, not rejected
_OPTIMIZERS = ("adamw-8bit", "adafactor")
_CHANGE_TRAINING = ("bf16", "fp8")


@dataclass(frozen=True)
class _Change:
    """A change before it is planned.

    Attributes:
        name, flags, changes_training: as of JobChange.
        request: the changed request.
        batch: the changed global batch; None if it stays.
        seq_len: the changed sequence length; None if it stays.
    """

    name: str
    flags: str
    request: Request
    changes_training: bool = True
    batch: int | None = None
    seq_len: int | None = None


def job_changes(searched: Searched, request: Request, option: Option, exactly: Exactly) -> tuple[JobChange, ...]:
    """The effect of each change on the run of an option: the same data on the same machines, with the best strategy of the
    changed job. The shortest run comes first, and what cannot be planned last.

    Arguments:
        request: the user's requirements; limits do not enter.
    """
    samples, _ = request.length.total_samples(searched.header)
    free = replace(
        request,
        samples=samples,
        epochs=None,
        tokens=None,
        samples_per_epoch=None,
        budget_usd=None,
        deadline_s=_NO_DEADLINE_S,
        stale=True,
        why=None,
        limit=1,
    )
    planned = [_planned(searched, change, option, exactly) for change in _changes(searched, free, option)]
    return tuple(sorted(planned, key=lambda change: (change.hours_ratio is None, change.hours_ratio or 0.0, change.name)))


def _changes(searched: Searched, request: Request, option: Option) -> Iterator[_Change]:
    """The changes that differ from the job as it is."""
    strategy, chip, batch = option.estimate.strategy, option.item.chip, searched.strategies.batch
    length = searched.header.sizes.get("seq_len")
    samples = request.samples or 1
    if length is not None and searched.strategies.pricer.traces.with_seq_len is not None and length // 2 >= SHORTEST_SEQUENCE:
        yield _Change(
            f"sequence length {length // 2:,}, twice the samples",
            f"--seq-len {length // 2}",
            replace(request, samples=2 * samples),
            batch=2 * batch.samples,
            seq_len=length // 2,
        )
    if 2 * batch.samples <= samples:
        yield _Change(
            f"global batch {2 * batch.samples:,}", f"--global-batch {2 * batch.samples}", request, batch=2 * batch.samples
        )
    names = legal.precisions_for(chip)  # fastest first; what is slower than the plan's is no advice
    if strategy.precision in names:
        names = names[: names.index(strategy.precision)]
    if chip.kind != "cpu":
        names += [name for name in _CHANGE_TRAINING if name in precisions_of(chip)]
    for name in names:
        if name != strategy.precision:
            yield _Change(
                f"precision {name}", f"--precision {name}", replace(request, precision=name), name in _CHANGE_TRAINING
            )
    for name in _OPTIMIZERS:
        if name != (strategy.optimizer or searched.header.strategy.optimizer):
            techniques = request.techniques.but(optimizer=name, optimizer_kernels=None)
            yield _Change(f"optimizer {name}", f"--optimizer {name}", replace(request, techniques=techniques))
    if request.recompute is not None:
        flags = f"without --recompute {request.recompute}"
        yield _Change("recomputation as gpuwise chooses it", flags, replace(request, recompute=None), False)
    if request.micro_batch is not None:
        flags = f"without --micro-batch {request.micro_batch}"
        yield _Change("micro-batch as gpuwise chooses it", flags, replace(request, micro_batch=None), False)


def _planned(searched: Searched, change: _Change, option: Option, exactly: Exactly) -> JobChange:
    strategies = searched.strategies
    request, item, traces = change.request, option.item, strategies.pricer.traces
    try:
        if change.seq_len is not None and traces.with_seq_len is not None:
            traces = traces.with_seq_len(change.seq_len)
        batch = BatchChoice(change.batch or strategies.batch.samples, exact=strategies.batch.exact)
        changed = _searched(searched, strategies.changed(traces, request, batch), option)
        estimate = changed.best[item.key]
        if isinstance(estimate, NoStrategy):
            problem = estimate.reason.with_detail(estimate.detail.rstrip(".")).text
            return JobChange(change.name, change.flags, changes_training=change.changes_training, problem=problem)
        if change.seq_len is not None:
            changed = replace(changed, header=_header(traces, request))
        plan = exactly(changed, replace(request, global_batch=None)).best
    except GpuwiseError as error:
        return JobChange(change.name, change.flags, changes_training=change.changes_training, problem=error.what)
    assert plan.offer == item.offer
    return JobChange(
        change.name,
        change.flags,
        plan.hours,
        plan.usd.value,
        plan.hours / option.hours,
        change.changes_training,
    )


def _searched(searched: Searched, strategies: BestStrategies, option: Option) -> Searched:
    """The search of a changed job on the machines of an option alone."""
    item = option.item
    best = strategies.best({item.key: item})
    return replace(searched, considered=[item], best=best, strategies=strategies, assumed_batch=None, choices={}, incomplete=())


def _header(traces: StepTraces, request: Request) -> Header:
    return traces.header([request.precision] if request.precision else ["amp-bf16", "fp32", "amp-fp16"], request.techniques)
