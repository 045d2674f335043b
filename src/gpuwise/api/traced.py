"""Sources that trace a job with PyTorch. Traces of named jobs are cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from gpuwise.api.cache import JobCache, JobFacts
from gpuwise.api.progress import tracing
from gpuwise.api.source import StepSource
from gpuwise.errors import MissingDependencyError, UnsupportedError
from gpuwise.strategy import Mesh, Parallelism, StepFacts, Strategy
from gpuwise.trace import Trace, TraceFamily, family_of_one
from gpuwise.trace.parallel.ranks import RankStep, splits_layers, unequal_ranks
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.trace.update.compose import compose_update

if TYPE_CHECKING:
    from gpuwise.job import Job

_KEPT_RANKS = 8  # recordings of ranks, from which those with other optimizers are composed


class JobSource(StepSource):
    """A Job, traced with PyTorch at each call."""

    traces_any_size = True

    def __init__(self, job: Job, argument: str, sizes: dict[str, int]):
        super().__init__(job.name, argument, sizes)
        self.job = job
        self.samples_per_epoch = job.samples
        self._recorded_rank = lru_cache(maxsize=_KEPT_RANKS)(self._record_rank)

    def find(self, strategy: Strategy, target: str) -> TraceFamily:
        self._require_torch()
        from gpuwise.tracing import trace_family

        with tracing(self.name, strategy):
            return trace_family(self.job, strategy, target=target)

    def step(self, strategy: Strategy, target: str) -> Trace:
        """The step recorded at this micro-batch. It is one recording; a family takes several."""
        self._require_torch()
        from gpuwise.tracing import record

        with tracing(self.name, strategy):
            return record(self.job, strategy, target=target).with_accumulation(strategy.accumulation)

    def ranks(self, strategy: Strategy, target: str) -> tuple[RankStep, ...] | None:
        if strategy.mode == "infer" or not splits_layers(strategy):
            return None
        try:
            whole = self._whole_step(strategy, target)
            return tuple(self._rank(strategy, target, rank, name, whole) for rank, name in unequal_ranks(strategy).items())
        except UnsupportedError:  # the program refuses to split this model: composed, which a note says
            return None

    def _whole_step(self, strategy: Strategy, target: str) -> Trace:
        """The step of one device, with the strategy's accumulation."""
        return self.step(strategy.but(mesh=Mesh(), parallelism=Parallelism()), target)

    def _rank(self, strategy: Strategy, target: str, position: int, name: str, whole: Trace) -> RankStep:
        """The recorded step of the first rank at a position along pp."""
        rank = position * (strategy.mesh.devices // strategy.mesh.pp)
        recorded = self._rank_trace(strategy, target, rank)
        return RankStep(name, *split_communication(recorded), whole.model_flops, recorded)

    def rank_step(self, strategy: Strategy, target: str, rank: int) -> Trace:
        trace = self._rank_trace(strategy, target, rank)
        if not splits_layers(strategy):
            return trace
        whole = self._whole_step(strategy.but(accumulation=1), target)
        return replace(trace, header=replace(trace.header, model_flops=whole.model_flops))

    def _rank_trace(self, strategy: Strategy, target: str, rank: int) -> Trace:
        """The step of one rank, with another optimizer than the job's composed."""
        return compose_update(lambda plain: self._recorded_rank(plain, target, rank), strategy, on_cpu=target == "cpu")

    def _record_rank(self, strategy: Strategy, target: str, rank: int) -> Trace:
        self._require_torch()
        from gpuwise.tracing import record

        with tracing(self.name, strategy):
            return record(self.job, strategy, target=target, rank=rank).with_accumulation(strategy.accumulation)

    def step_facts(self, target: str = "accelerator") -> StepFacts:
        return self.job.step_facts(on_cpu=target == "cpu")

    def has_images(self) -> bool:
        self._require_torch()
        from gpuwise.job.images import has_images

        return has_images(self.job)

    def _require_torch(self) -> None:
        from gpuwise.job.dependencies import require

        require("torch", purpose=f"trace {self.name or 'the job'}")

    @property
    def tokens_per_sample(self) -> int:
        return self.job.tokens_per_sample or 1


class NamedSource(StepSource):
    """A job by its JOB argument. Traces come from the cache on disk; the job is made only if one is missing.

    Raises the errors of resolving the argument, at once if the job is not in the cache.
    """

    traces_any_size = takes_seq_len = True

    def __init__(self, argument: str, sizes: dict[str, int]):
        self.argument, self.sizes = argument, sizes
        self._cache = JobCache.of(argument, sizes)
        self.facts = (self._cache and self._cache.facts) or self._facts_of_job()
        super().__init__(self.facts.name, argument, sizes)
        self.samples_per_epoch = self.facts.samples_per_epoch

    @cached_property
    def live(self) -> JobSource:
        """The job, ready to be traced."""
        from gpuwise.job import resolve

        with self._cache.reading() if self._cache else nullcontext():
            return JobSource(resolve(self.argument, **self.sizes), self.argument, self.sizes)

    def find(self, strategy: Strategy, target: str) -> TraceFamily:
        return self._cached(lambda: self.live.find(strategy, target), strategy, target)

    def step(self, strategy: Strategy, target: str) -> Trace:
        """The step from a cached family that covers the micro-batch, else recorded at that micro-batch."""
        one, family = strategy.but(accumulation=1), None
        if self._cache is not None:
            family = self._cache.load(strategy.variant, target)
        if family is None or not family.covers({"micro_batch": strategy.micro_batch}):
            family = self._cached(
                lambda: family_of_one(self.live.step(one, target)), strategy.variant, target, strategy.micro_batch
            )
        trace = family.at(micro_batch=strategy.micro_batch, accumulation=strategy.accumulation, **self.sizes)
        return replace(trace, header=replace(trace.header, strategy=trace.header.strategy.but(precision=strategy.precision)))

    def at_seq_len(self, seq_len: int) -> NamedSource:
        return NamedSource(self.argument, {**self.sizes, "seq_len": seq_len})

    def ranks(self, strategy: Strategy, target: str) -> tuple[RankStep, ...] | None:
        return self.live.ranks(strategy, target) if splits_layers(strategy) else None

    def rank_step(self, strategy: Strategy, target: str, rank: int) -> Trace:
        return self.live.rank_step(strategy, target, rank)

    def _cached(
        self, make: Callable[[], TraceFamily], variant: Strategy, target: str, micro_batch: int | None = None
    ) -> TraceFamily:
        """The cache's entry, else the result of `make`, which is then cached."""
        if self._cache is None:
            return make()
        family = self._cache.load(variant, target, micro_batch)
        if family is not None:
            return family
        try:
            with self._cache.reading():
                family = make()
        except (UnsupportedError, MissingDependencyError) as refusal:
            self._cache.store(refusal, self.facts, variant, target, micro_batch)
            raise
        self._cache.store(family, self.facts, variant, target, micro_batch)
        return family

    def _facts_of_job(self) -> JobFacts:
        source = self.live
        step = source.step_facts()
        return JobFacts(
            source.name,
            source.tokens_per_sample,
            source.samples_per_epoch,
            own_step=step.own_step,
            clips=step.clips,
            averages=step.averages,
        )

    def step_facts(self, target: str = "accelerator") -> StepFacts:
        facts = self.facts
        return replace(super().step_facts(target), own_step=facts.own_step, clips=facts.clips, averages=facts.averages)

    def has_images(self) -> bool:
        return self.live.has_images()

    @property
    def tokens_per_sample(self) -> int:
        return self.facts.tokens_per_sample
