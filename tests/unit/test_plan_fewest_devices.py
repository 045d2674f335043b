"""A job that fits nowhere: the fewest devices that hold it, against every number of devices planned by itself."""

from __future__ import annotations

import pytest
from test_plan_synthetic import offer, synthetic_source

from gpuwise import api
from gpuwise.errors import DoesNotFitError
from gpuwise.hardware import load_catalog
from gpuwise.plan import Request
from gpuwise.plan.no_plan import FitsNowhere
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan

CATALOG = load_catalog()
COUNTS = (1, 2, 4, 8)


def planned(offers, *, layers, **request):
    traces = StepTraces(synthetic_source(width=8192, layers=layers))
    return plan(traces, Request(samples=10**4, global_batch=64, **request), offers, CATALOG)


def fits(*args, **keywords):
    try:
        return bool(planned(*args, **keywords))
    except DoesNotFitError:
        return False


@pytest.mark.parametrize("layers", [24, 96])
def test_no_fewer_devices_hold_it(layers):
    small, large = (
        [offer("rtx-4090", count=count) for count in COUNTS],
        [offer("a100-80gb-sxm", count=count) for count in COUNTS],
    )
    with pytest.raises(FitsNowhere) as error:
        planned([*small, *large], layers=layers, on=("rtx-4090:1",))
    holding = error.value.holding
    on_small = [count for count in COUNTS if fits(small, layers=layers, on=(f"rtx-4090:{count}",))]
    on_large = [count for count in COUNTS if fits(large, layers=layers, on=(f"a100-80gb-sxm:{count}",))]
    if not on_small and not on_large:
        assert holding is None
        return
    assert holding is not None
    chip, counts = ("rtx-4090", on_small) if on_small else ("a100-80gb-sxm", on_large)
    assert (holding.candidate.chip.id, holding.candidate.devices) == (chip, min(counts))
    assert holding.flags in error.value.ways_out[0]
    assert error.value.to_dict()["holds"]["count"] == min(counts)


def test_what_the_user_excludes_is_not_named():
    offers = [offer("rtx-4090"), offer("rtx-4090", count=8, terms="spot"), offer("h100-80gb-sxm", stale=True)]
    with pytest.raises(FitsNowhere) as error:
        planned(offers, layers=24, on=("rtx-4090:1",), spot=False)
    assert error.value.holding is None
    with pytest.raises(FitsNowhere) as error:
        planned(offers, layers=24, on=("rtx-4090:1",))
    assert error.value.holding.candidate.devices == 8


def test_the_flags_of_a_preset_lead_to_a_plan():
    with pytest.raises(FitsNowhere) as error:
        api.plan("llama3-8b", tokens="10M", on="rtx-4090:1", max_devices=1)  # nor with offload
    assert error.value.holding.flags == "--on rtx-4090:8 --max-devices 8"
    assert api.plan("llama3-8b", tokens="10M", on="rtx-4090:8", max_devices=8).best.count == 8
    with pytest.raises(FitsNowhere):
        api.plan("llama3-8b", tokens="10M", on="rtx-4090:4", max_devices=4)
