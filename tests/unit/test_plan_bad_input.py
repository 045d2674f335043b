"""What `plan` answers to settings that no plan can have, and to those that ask for more machines."""

from __future__ import annotations

from datetime import datetime

import pytest

import gpuwise
from gpuwise.errors import InputError
from gpuwise.units import parse_deadline

NOON = datetime(2027, 1, 31, 12)


def test_a_deadline_is_a_duration_or_the_end_of_a_day():
    assert parse_deadline("3d", now=NOON) == 3 * 86400
    assert parse_deadline("2027-01-31", now=NOON) == 12 * 3600
    assert parse_deadline("2027-02-02", now=NOON) == (12 + 48) * 3600


@pytest.mark.parametrize("text", ["2027-01-30", "2020-02-30", "9999-12-31"])
def test_a_day_that_has_passed_or_never_comes_is_refused(text):
    with pytest.raises(InputError):
        parse_deadline(text, now=NOON)


def test_a_machine_that_nobody_offers_names_those_that_are():
    with pytest.raises(InputError) as caught:
        gpuwise.plan("gpt2", tokens="1B", on="h100-sxm:5,l4")
    assert "5 × h100-80gb-sxm" in str(caught.value)
    assert caught.value.ways_out[0] == "machines have 1, 2, 4, 8"


def test_the_fastest_plan_is_sought_among_clusters_too():
    settings = {"tokens": "10B", "on": "h100-sxm", "spot": False, "limit": 1}
    cheapest = gpuwise.plan("gpt2-xl", **settings).best
    fastest = gpuwise.plan("gpt2-xl", objective="fastest", **settings).best
    assert cheapest.count <= 8 < fastest.count
    assert fastest.hours < cheapest.hours / 4


@pytest.mark.slow
def test_a_job_too_large_for_the_named_machines_is_sent_to_more_of_others():
    with pytest.raises(gpuwise.GpuwiseError) as caught:
        gpuwise.plan("llama3-405b", tokens="1B", on="rtx-4090:8")
    assert any(way.startswith("take the fewest devices that hold it") for way in caught.value.ways_out)
