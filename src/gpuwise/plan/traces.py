"""The traces of one job for many strategies: families asked for once, other optimizers composed, each trace made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwise.errors import GpuwiseError, InputError, MissingDependencyError, UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import Strategy
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.header import Header
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.data_parallel import data_parallel
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.compose import compose_update

if TYPE_CHECKING:
    from gpuwise.plan.types import TraceSource

NOT_RECORDED = "takes a tracing of its own: --every-technique does it"


@dataclass
class Traces:
    """Traces of one job, made once and kept.

    sizes: seq_len or image_size where not the job's own. optimizer: of strategies that name none, None for the job's
    own. at_hand: which variants may be asked of the source; None: all of them.
    counted, served and reserved are what gpuwise.plan.space.micro_batch has found of them.
    """

    source: TraceSource
    sizes: Mapping[str, int] = field(default_factory=dict)
    optimizer: str | None = None
    mode: str = "train"
    at_hand: Callable[[Strategy], bool] | None = None
    counted: dict[tuple[Strategy, str, int], tuple[int, int]] = field(default_factory=dict)
    served: dict[tuple[Strategy, Cluster, bool], bool] = field(default_factory=dict)
    reserved: dict[tuple[Strategy, int, bool], int] = field(default_factory=dict)
    _families: dict[Strategy, TraceFamily | GpuwiseError] = field(default_factory=dict)
    _traces: dict[Strategy, tuple[Trace, Communication]] = field(default_factory=dict)
    _last: tuple[Strategy, tuple[Trace, Communication]] | None = None

    def family(self, strategy: Strategy) -> TraceFamily:
        """The family a strategy is composed from. Raises what the source raised, UnsupportedError above all."""
        variant = recorded_as(strategy).variant.but(mode=self.mode)
        variant = variant.but(optimizer=variant.optimizer or self.optimizer)
        return self._once(variant, lambda: compose_update(self._recorded, variant))

    def _once(self, variant: Strategy, find: Callable[[], TraceFamily]) -> TraceFamily:
        if variant not in self._families:
            try:
                self._families[variant] = find()
            except (UnsupportedError, MissingDependencyError) as error:
                self._families[variant] = error
        found = self._families[variant]
        if isinstance(found, GpuwiseError):
            raise found
        return found

    def _recorded(self, variant: Strategy) -> TraceFamily:
        if self.at_hand is not None and not self.at_hand(variant):
            raise UnsupportedError(NOT_RECORDED)
        return self._once(variant, lambda: self.source(variant))

    def header(self, precisions: Iterable[str], techniques: Strategy) -> Header:
        """The header of the first variant that can be had, at the sizes asked for. Raises the source's first error."""
        problem: GpuwiseError | None = None
        for precision in precisions:
            for recompute in ("none", "full"):
                try:
                    wanted = techniques.but(precision=precision, recompute=recompute, mode=self.mode)
                    return self.family(wanted).at(**self.sizes).header
                except (UnsupportedError, MissingDependencyError, InputError) as error:
                    problem = problem or error
        raise problem or UnsupportedError("the job has no trace in any precision.")

    def trace(self, strategy: Strategy) -> tuple[Trace, Communication]:
        """What one rank does under a strategy, and what the ranks exchange."""
        if strategy not in self._traces:
            self._traces[strategy] = self.make(strategy)
        return self._traces[strategy]

    def make(self, strategy: Strategy) -> tuple[Trace, Communication]:
        """The same, kept only until another is made."""
        if strategy in self._traces:
            return self._traces[strategy]
        if self._last is None or self._last[0] != strategy:
            family = self.family(strategy)
            trace = family.at(accumulation=strategy.accumulation, micro_batch=strategy.micro_batch, **self.sizes)
            self._last = strategy, data_parallel(trace, strategy)
        return self._last[1]
