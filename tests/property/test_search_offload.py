"""Offload in the search on one device: where nothing fits without it, the search finds what trying every strategy finds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from gpuwise.api.devices import device_of
from gpuwise.api.sources import source_of
from gpuwise.cost.forecast import Forecast
from gpuwise.hardware import load_catalog
from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.plan.pricing.step import HEADROOM, StepPricer
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import Constraints, NoStrategy
from gpuwise.plan.space.offloading import offloaded
from gpuwise.plan.space.strategies import StrategySearch
from gpuwise.strategy import OFFLOADS, RECOMPUTES, Strategy

BATCH, PRECISION = 16, "amp-bf16"
CARD = device_of("rtx-4090:1", load_catalog()).cluster


@cache
def pricer() -> StepPricer:
    config = LlamaConfig(vocabulary=4096, width=512, layers=4, heads=8, kv_heads=8, hidden=1536)
    job = Job(
        model=lambda: Llama(config),
        batch=lambda n: next_token_batch(n, vocabulary=4096, seq_len=256),
        loss=token_loss,
        seq_len=256,
        sample_unit="token",
        tokens_per_sample=256,
    )
    return StepPricer(source_of(job).traces())


@cache
def forecasts() -> tuple[Forecast, ...]:
    """The exact forecast of every strategy on one device."""
    sizes = legal.micro_batches(BATCH)
    return tuple(
        pricer().forecast(
            Strategy(PRECISION, micro_batch=size, accumulation=BATCH // size, recompute=recompute, offload=offload),
            CARD,
            replay=False,
        )
        for offload, recompute, size in product(OFFLOADS, RECOMPUTES, sizes)
    )


def test_the_search_offloads_where_nothing_fits_without_and_finds_the_best() -> None:
    needs = sorted(forecast.memory.device_bytes for forecast in forecasts())
    chosen = set()
    for capacity in np.linspace(needs[0] * 1.01, needs[-1] * 1.05, 24) / HEADROOM:
        cluster = replace(CARD, memory_bytes=int(capacity))
        best = StrategySearch(pricer()).best(cluster, Constraints(BATCH, PRECISION))
        assert isinstance(best, Forecast)
        chosen.add(best.strategy.offload)
        if any(one.memory.device_bytes <= capacity for one in forecasts() if one.strategy.offload == "none"):
            assert best.strategy.offload == "none"
            continue
        fitting = [one for one in forecasts() if one.memory.device_bytes <= HEADROOM * capacity]
        assert best.step_time_s.value <= 1.01 * min(one.step_time_s.value for one in fitting)
    assert chosen == set(OFFLOADS)


def test_offload_never_shortens_a_step() -> None:
    by_offload = np.array([one.step_time_s.value for one in forecasts()]).reshape(len(OFFLOADS), -1)
    assert (by_offload[0] < by_offload[1]).all()
    assert (by_offload[1] < by_offload[2]).all()


def test_nothing_is_offloaded_where_that_is_no_help() -> None:
    """Of several devices, of memory that the host shares, on a CPU, and beside techniques that exclude it."""
    catalog = load_catalog()
    shared = next(chip for chip in catalog.chips.values() if chip.shares_host_memory and chip.trains)
    for name in ("rtx-4090:2", f"{shared.id}:1", "tpu-v5e:1"):
        assert list(offloaded(Constraints(BATCH), device_of(name, catalog).cluster)) == []
    assert len(list(offloaded(Constraints(BATCH), CARD))) == len(OFFLOADS) - 1
    for techniques in (Strategy(optimizer_in_backward=True), Strategy(keep_gradients=True), Strategy(offload="optimizer")):
        assert list(offloaded(Constraints(BATCH, techniques=techniques), CARD)) == []


@pytest.mark.slow
def test_what_fits_in_no_way_is_still_short_of_memory() -> None:
    best = StrategySearch(pricer()).best(replace(CARD, memory_bytes=2**20), Constraints(BATCH))
    assert isinstance(best, NoStrategy)
    assert best.shortfall_bytes > 0
