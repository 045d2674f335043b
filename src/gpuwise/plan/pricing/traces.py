"""The traces of one job under many strategies. Each recording is made once and each trace composed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TypeVar

from gpuwise.errors import GpuwiseError, InputError, MissingDependencyError, UnsupportedError
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.header import Header
from gpuwise.trace.memory import live_bytes
from gpuwise.trace.parallel.ranks import RankStep, rank_steps
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.compose import compose_update

# Errors of an unavailable strategy: it is not recorded, a package is missing, or its techniques exclude each other.
NOT_TRACED = (UnsupportedError, MissingDependencyError, InputError)
# Micro-batches that searches try of a program that changes with the batch, where each is a recording of its own; and the
# positions of a step from which on it takes too long to record.
RECORDED_BATCHES = (1, 2, 4, 8, 16, 32, 64)
MOST_POSITIONS = 20_000
NOT_RECORDED = "takes a tracing of its own: --every-technique does it"

Recording = TypeVar("Recording", Trace, TraceFamily)


class StepTraces:
    """The traces of one job for one kind of device.

    The job's own step is recorded; steps with another optimizer or of other ranks are composed from it. Recordings,
    compositions and errors (UnsupportedError, MissingDependencyError) are cached.

    Arguments:
        record: returns the family recorded under a variant (Strategy.variant).
        record_step: returns the step recorded under a strategy on one device. `trace` then takes a step from it, which is one
            recording; a family is several. None (default) takes steps from families.
        record_other: returns the step recorded under a strategy whose micro-batch its family does not cover; None (default)
            where nothing can be recorded.
        record_ranks: returns the recorded steps of the ranks of a mesh that differ; None (the default, or what it returns)
            composes them.
        with_seq_len: returns the same job's traces at another sequence length; None (default) where the length is fixed.
        sizes: seq_len or image_size, if they differ from the job's own.
        on_cpu: whether the device is a CPU; some updates have other kernels there.
    """

    def __init__(
        self,
        record: Callable[[Strategy], TraceFamily],
        *,
        record_step: Callable[[Strategy], Trace] | None = None,
        record_other: Callable[[Strategy], Trace] | None = None,
        record_ranks: Callable[[Strategy], tuple[RankStep, ...] | None] | None = None,
        with_seq_len: Callable[[int], StepTraces] | None = None,
        sizes: Mapping[str, int] | None = None,
        on_cpu: bool = False,
    ):
        self.with_seq_len = with_seq_len and cache(with_seq_len)
        self.sizes, self.on_cpu = dict(sizes or {}), on_cpu
        self._record, self._record_step, self._record_ranks = record, record_step, record_ranks
        self._record_other = record_other
        self._recorded_families: dict[Strategy, TraceFamily | GpuwiseError] = {}
        self._families: dict[Strategy, TraceFamily | GpuwiseError] = {}
        self._recorded_steps: dict[Strategy, Trace | GpuwiseError] = {}
        self._ranks: dict[Strategy, tuple[RankStep, ...]] = {}
        self._latest: tuple[Strategy, tuple[RankStep, ...]] | None = None

    def recorded(self, variant: Strategy) -> TraceFamily:
        """The family of a variant as recorded. Raises the errors of `record`."""
        return _once(self._recorded_families, variant, self._record)

    def family(self, strategy: Strategy) -> TraceFamily:
        """The single-device family of a strategy, with the strategy's own update.

        Raises UnsupportedError or MissingDependencyError if it is not available, and InputError for techniques of the update
        that exclude each other.
        """
        return _once(
            self._families,
            recorded_as(strategy).variant,
            lambda variant: compose_update(self.recorded, variant, on_cpu=self.on_cpu),
        )

    def is_of_any_batch(self, strategy: Strategy) -> bool:
        """Whether one program serves micro-batches of any size. Raises the errors of `family`."""
        return self.family(strategy).covers({**self.sizes, "micro_batch": 2})

    def covers(self, strategy: Strategy, micro_batch: int) -> bool:
        """Whether searches may try a micro-batch: it is known, or quickly recorded. Raises the errors of `family`."""
        family = self.family(strategy)
        if family.covers({**self.sizes, "micro_batch": micro_batch}):
            return True
        quick = micro_batch in RECORDED_BATCHES and micro_batch * len(family.sequence) <= MOST_POSITIONS
        return quick and self._record_other is not None

    def header(self, precisions: Iterable[str], techniques: Strategy) -> Header:
        """The header of the first available variant, at the requested sizes. Raises the first error if there is none."""
        problem: GpuwiseError | None = None
        for precision in precisions:
            for recompute in ("none", "full"):
                try:
                    return self.family(techniques.but(precision=precision, recompute=recompute)).at(**self.sizes).header
                except NOT_TRACED as error:
                    problem = problem or error
        raise problem or UnsupportedError("the job has no trace in any precision.")

    def ranks(self, strategy: Strategy) -> tuple[RankStep, ...]:
        """The steps of the ranks that differ under a strategy: one, but of a pipeline. Raises the errors of `family`."""
        if strategy not in self._ranks:
            self._ranks[strategy] = self.latest_ranks(strategy)
        return self._ranks[strategy]

    def latest_ranks(self, strategy: Strategy) -> tuple[RankStep, ...]:
        """Like `ranks`, but only the last ones are kept: for searches over hundreds of micro-batches."""
        if strategy in self._ranks:
            return self._ranks[strategy]
        if self._latest is None or self._latest[0] != strategy:
            recorded = self._record_ranks(strategy) if self._record_ranks is not None else None
            steps = recorded or rank_steps(lambda parts: self._step(recorded_as(strategy), parts), strategy)
            self._latest = strategy, steps
        return self._latest[1]

    def trace(self, strategy: Strategy) -> Trace:
        """The trace of the rank that needs most memory under a strategy. Raises the errors of `family`."""
        return largest_rank(self.ranks(strategy)).trace

    def latest_trace(self, strategy: Strategy) -> Trace:
        """Like `trace`, with what latest_ranks keeps."""
        return largest_rank(self.latest_ranks(strategy)).trace

    def only(self, allowed: Callable[[Strategy], bool]) -> StepTraces:
        """The same job with only the allowed variants; others raise UnsupportedError."""

        def record(variant: Strategy) -> TraceFamily:
            if not allowed(variant):
                raise UnsupportedError(NOT_RECORDED)
            return self.recorded(variant)

        at_length = self.with_seq_len
        return StepTraces(
            record,
            record_other=self._record_other,
            with_seq_len=at_length and (lambda length: at_length(length).only(allowed)),
            sizes=self.sizes,
            on_cpu=self.on_cpu,
        )

    def _step(self, strategy: Strategy, parts: int) -> Trace:
        """The step on one device, on sequences divided into so many parts."""
        one_device = strategy.but(mesh=Mesh(), parallelism=Parallelism())
        record_step = self._record_step if parts == 1 else None
        if record_step is None:
            family, sizes = self.family(one_device), dict(self.sizes)
            if parts == 1 and not family.covers({**sizes, "micro_batch": strategy.micro_batch}):
                record_step = self._record_other
        if record_step is None:
            if parts > 1:
                sizes["seq_len"] = sizes.get("seq_len", family.header.sizes.get("seq_len", 0)) // parts
                if not family.covers(sizes) and self.with_seq_len is not None:
                    return self.with_seq_len(sizes["seq_len"])._step(strategy, 1)
                if not family.covers(sizes):
                    raise UnsupportedError(
                        f"{family.header.job} is recorded at one sequence length, and context parallelism divides it.",
                        ["leave out cp of --mesh"],
                    )
            return family.at(accumulation=strategy.accumulation, micro_batch=strategy.micro_batch, **sizes)
        return compose_update(lambda plain: _once(self._recorded_steps, plain, record_step), one_device, on_cpu=self.on_cpu)


def largest_rank(ranks: tuple[RankStep, ...]) -> RankStep:
    """The rank whose tensors need most memory."""
    if len(ranks) == 1:
        return ranks[0]
    return max(ranks, key=lambda rank: rank.trace.once("live", partial(live_bytes, rank.trace)).peak_bytes)


def _once(results: dict[Strategy, Recording | GpuwiseError], key: Strategy, make: Callable[[Strategy], Recording]) -> Recording:
    """The cached result of `make` for a key. A cached error is raised again."""
    if key not in results:
        try:
            results[key] = make(key)
        except (UnsupportedError, MissingDependencyError) as error:
            results[key] = error
    result = results[key]
    if isinstance(result, GpuwiseError):
        raise result
    return result
