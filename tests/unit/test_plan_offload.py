"""plan() on one device that holds a job only with offload: what it says, and what it needs of the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise import api
from gpuwise.api.devices import device_of
from gpuwise.api.sources import PresetSource, source_of
from gpuwise.errors import DoesNotFitError, NoPlanError
from gpuwise.hardware import load_catalog
from gpuwise.notes import plan as notes
from gpuwise.plan import Request
from gpuwise.plan.pricing.step import HEADROOM, StepPricer
from gpuwise.plan.search import plan
from gpuwise.trace.presets.table import PRESETS

CATALOG = load_catalog()
GIB = 2**30


def test_a_job_that_fits_only_with_offload_is_planned_so_and_forecast_as_it_runs() -> None:
    result = api.plan("gpt2-xl", tokens="100M", on="rtx-4090:1", max_devices=1)
    best = result.best
    assert best.strategy.offload == "optimizer"
    cluster = device_of("rtx-4090:1", CATALOG).cluster
    alone = StepPricer(source_of("gpt2-xl").traces()).forecast(best.strategy, cluster)
    assert best.forecast.step_time_s.value == pytest.approx(alone.step_time_s.value)
    assert best.forecast.memory.device_bytes == alone.memory.device_bytes <= HEADROOM * cluster.capacity_bytes
    host_bytes = 16 * PRESETS["gpt2-xl"].parameters
    assert notes.offloaded(offload="optimizer", host_bytes=host_bytes) in best.reason_notes
    assert any(note.kind == "offloading" for note in best.assumption_notes)


def test_what_the_user_names_or_what_is_faster_is_not_offloaded() -> None:
    roomy = api.plan("gpt2-xl", tokens="100M", on="h100-sxm:1", max_devices=1).best
    assert roomy.strategy.offload == "none"
    allowed = api.plan("gpt2-xl", tokens="100M", on="rtx-4090:1", max_devices=1, allow="8bit-optimizer").best
    assert (allowed.strategy.offload, allowed.strategy.optimizer) == ("none", "adamw-8bit")
    named = api.plan("gpt2-xl", tokens="100M", on="rtx-4090:1", max_devices=1, offload="optimizer").best
    assert not any(note.kind == "offloaded" for note in named.reason_notes)
    with pytest.raises(DoesNotFitError):
        api.plan("gpt2-xl", tokens="100M", on="rtx-4090:1", max_devices=1, keep_gradients=True)


def test_a_host_with_too_little_memory_is_out() -> None:
    source = PresetSource(PRESETS["gpt2-xl"], {})
    source.search_recorded()
    offer = next(one for one in CATALOG.offers if one.chip_id == "rtx-4090" and one.count == 1 and not one.stale)

    def planned(host_gib: int | None):
        host_bytes = None if host_gib is None else host_gib * GIB
        offers = [replace(offer, host_memory_bytes=host_bytes)]
        return plan(source.traces(), Request(tokens=10**8, max_devices=1), offers, CATALOG)

    for host_gib in (None, 24):
        assert planned(host_gib).best.strategy.offload == "optimizer"
    with pytest.raises(DoesNotFitError, match=r"needs offload, and 23\.2 GiB of host memory, of 16 GiB"):
        planned(16)


def test_runs_side_by_side_are_not_offloaded() -> None:
    with pytest.raises(NoPlanError, match="one run does not fit the machine"):
        api.sweep("gpt2-xl", runs=4, tokens="1M", on="rtx-4090:1")
