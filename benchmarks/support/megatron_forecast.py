"""Forecasts of published Megatron runs, and the fit of what their host spends on a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.support.megatron_cases import MegatronCase
from benchmarks.support.megatron_host import MegatronHost, beside_megatron_host, no_host
from benchmarks.support.megatron_recordings import whole_step
from benchmarks.support.megatron_step import megatron_ranks
from gpuwise.cost import Forecast
from gpuwise.cost.memory.device import memory_forecast
from gpuwise.cost.parameters import parameters
from gpuwise.cost.price import price_ranks
from gpuwise.cost.rank_time import RankTime, rank_times
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.pricing.traces import largest_rank
from gpuwise.trace.parallel.communication import Collective, Communication

# Chosen by fit from its grid, on the steps of one machine whose model is not kept out (VIA-Research/vTrain; composed of traced
# layers, see composed_steps): of the two best, mean errors 7.05 and 7.12 %, the one whose operations of forward take what they
# take in other steps on A100s.
HOST = MegatronHost(forward_s=35e-6, backward_s=10e-6, collective_s=17.5e-6)
_GRID = {
    "forward_s": (25e-6, 30e-6, 35e-6, 40e-6),
    "backward_s": (5e-6, 10e-6, 17.5e-6, 25e-6),
    "collective_s": (0.0, 17.5e-6, 35e-6),
}


Change = Callable[[Collective, MegatronCase], Collective]


def as_composed(collective: Collective, case: MegatronCase) -> Collective:
    """The collective itself."""
    return collective


@dataclass(frozen=True)
class TimedCase:
    """A case whose ranks are timed with a host that takes no time."""

    case: MegatronCase
    cluster: Cluster
    ranks: tuple[RankTime, ...]

    def step(self, host: MegatronHost) -> Forecast:
        """The forecast of the slowest rank."""
        last, blocking = len(self.ranks) - 1, self.case.trainer.launches_block
        times = [
            beside_megatron_host(rank, self.cluster, host=host, blocking=blocking, neighbours=1 if place in (0, last) else 2)
            for place, rank in enumerate(self.ranks)
        ]
        return price_ranks(times, self.cluster, strategy=self.case.strategy, replay=False)


def timed(case: MegatronCase, cache: Path, catalog: Catalog, *, change: Change = as_composed) -> TimedCase:
    """The case with the times of its ranks' kernels and collectives. change: of each collective; none by default."""
    whole, cluster = whole_step(case, cache), case.cluster(catalog)
    ranks = [
        replace(rank, communication=Communication(tuple(change(c, case) for c in rank.communication.collectives)))
        for rank in megatron_ranks(whole, case.strategy, trainer=case.trainer)
    ]
    times = rank_times(ranks, cluster, strategy=case.strategy, parameters=no_host(parameters()))
    return TimedCase(case, cluster, times)


def forecast(case: MegatronCase, cache: Path, catalog: Catalog, *, change: Change = as_composed) -> Forecast:
    """The forecast of the slowest rank; where memory was published, with that of the one that needs most, from a replay of the
    allocator. change: as for timed."""
    one = timed(case, cache, catalog, change=change)
    if case.peak_bytes is None:
        return one.step(HOST)
    largest = largest_rank(tuple(rank.step for rank in one.ranks))
    return replace(one.step(HOST), memory=memory_forecast(largest.trace, one.cluster, parameters=parameters()))


def fit(cases: Iterable[MegatronCase], cache: Path, catalog: Catalog) -> list[tuple[MegatronHost, float]]:
    """Each host of the grid with the mean error of these cases' steps, the best first."""
    hosts = [MegatronHost(**dict(zip(_GRID, figures, strict=True))) for figures in product(*_GRID.values())]
    errors = np.array(
        [
            [abs(one.step(host).step_time_s.value / one.case.seconds - 1) for host in hosts]
            for one in (timed(case, cache, catalog) for case in cases)
        ]
    )
    return sorted(zip(hosts, errors.mean(axis=0).tolist(), strict=True), key=lambda pair: pair[1])
