"""The input side of a step: what is copied, how long that takes, and when the step waits for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from trace_samples import small_trace

import gpuwise
from gpuwise.cli.main import main
from gpuwise.cost.inputs import STAGING_BYTES_PER_S, DataPipeline, Input, copied_bytes, input_s
from gpuwise.cost.parameters import parameters
from gpuwise.errors import InputError
from gpuwise.hardware import load_catalog
from gpuwise.trace import BEFORE, CATEGORIES, Trace

BATCH_BYTES = 1_000_000
CATALOG = load_catalog()
T4, M4, CPU = (CATALOG.chip(name) for name in ("t4", "apple-m4", "xeon-8380"))
RESNET: dict[str, Any] = {"on": "rtx-4090", "precision": "amp-fp16", "micro_batch": 64}


def fed_trace(accumulation: int = 1) -> Trace:
    """The small trace, whose two micro-batches each get a batch; a table from an earlier step stays."""
    trace = small_trace(micro_batch=4)
    kept, index = trace.storages, CATEGORIES.index("input")
    added = {
        "size_bytes": [BATCH_BYTES, BATCH_BYTES, 77],
        "category": [index] * 3,
        "module": [0] * 3,
        "born": [0, 4, BEFORE],
        "died": [3, 8, len(trace.sequence)],
        "stream": [0] * 3,
    }
    columns = {name: np.append(getattr(kept, name), values).astype(getattr(kept, name).dtype) for name, values in added.items()}
    return replace(trace, storages=replace(kept, **columns)).check().with_accumulation(accumulation)


@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_each_micro_batch_is_copied_once_and_what_stays_is_not(accumulation: int) -> None:
    assert copied_bytes(fed_trace(accumulation)) == accumulation * BATCH_BYTES


def test_a_copy_takes_the_host_link_as_far_as_links_are_used() -> None:
    result = input_s(fed_trace(), T4)
    link = CATALOG.links["pcie3x16"].per_direction_bytes_per_s
    assert link is not None
    assert result.copy_bytes == BATCH_BYTES
    assert result.copy_s == pytest.approx(BATCH_BYTES / link / parameters().link_efficiency)
    assert result.loader_s == 0
    assert any("pinned" in note.text and "PCIe 3.0 x16" in note.text for note in result.notes)


def test_pageable_memory_is_slower_and_the_step_waits_for_it() -> None:
    pinned, pageable = (input_s(fed_trace(), T4, DataPipeline(prefetched=prefetched)) for prefetched in (True, False))
    assert pageable.copy_s == pytest.approx(pinned.copy_s + BATCH_BYTES / STAGING_BYTES_PER_S)
    assert pageable.exposed_s(1.0) == pageable.copy_s
    assert pinned.exposed_s(1.0) == 0
    assert any("pageable" in note.text for note in pageable.notes)


@pytest.mark.parametrize("chip", [M4, CPU], ids=lambda chip: chip.id)
def test_where_host_and_device_share_one_memory_nothing_is_copied(chip: gpuwise.Chip) -> None:
    result = input_s(fed_trace(), chip)
    assert (result.copy_s, result.copy_bytes) == (0, 0)
    assert not any("copied" in note.text for note in result.notes)


def test_the_slowest_of_step_copy_and_loader_sets_the_pace() -> None:
    for copy_s, loader_s, exposed_s in [(0.1, 0.2, 0.0), (0.1, 1.5, 0.5), (1.25, 0.1, 0.25), (2.0, 3.0, 2.0)]:
        assert Input(copy_s, 1, loader_s).exposed_s(1.0) == pytest.approx(exposed_s)
    assert Input(0.1, 1, 0.2, prefetched=False).exposed_s(1.0) == pytest.approx(0.3)


def test_the_loader_serves_the_samples_of_all_devices_of_a_machine() -> None:
    alone = input_s(fed_trace(2), T4, DataPipeline(100))
    eight = input_s(fed_trace(2), T4, DataPipeline(100), samples=8 * 8)
    assert alone.loader_s == pytest.approx(8 / 100)
    assert eight.loader_s == pytest.approx(64 / 100)


def test_loading_is_not_priced_unasked_and_says_which_flag_does() -> None:
    assert any("not priced" in note.text and note.flag == "--loader-samples-per-s" for note in input_s(fed_trace(), T4).notes)
    assert not any("not priced" in note.text for note in input_s(fed_trace(), T4, DataPipeline(5)).notes)


@pytest.mark.parametrize("rate", [0, -1, math.inf, math.nan, True, "fast"])
def test_a_rate_that_is_no_positive_number_is_refused(rate: Any) -> None:
    with pytest.raises(InputError, match="--loader-samples-per-s must be a number above 0"):
        input_s(fed_trace(), T4, DataPipeline(rate))


def test_a_slow_loader_bounds_the_step_and_a_fast_one_changes_nothing() -> None:
    plain = gpuwise.forecast("resnet50", **RESNET)
    fast = gpuwise.forecast("resnet50", **RESNET, loader_samples_per_s=1e6)
    slow = gpuwise.forecast("resnet50", **RESNET, loader_samples_per_s=100)
    assert fast.step_time_s == plain.step_time_s
    assert slow.step_time_s.value == pytest.approx(64 / 100)
    assert slow.throughput == pytest.approx(100)
    assert slow.bound["input"] == pytest.approx(1 - plain.step_time_s.value / slow.step_time_s.value)
    assert sum(slow.bound.values()) == pytest.approx(1)
    assert plain.bound["input"] == 0


def test_the_flag_reaches_the_forecast() -> None:
    arguments = ["forecast", "resnet50", "--on", "rtx-4090", "--precision", "amp-fp16", "--micro-batch", "64"]
    done = CliRunner().invoke(main, [*arguments, "--loader-samples-per-s", "100"])
    assert done.exit_code == 0, done.output
    assert "100 images/s" in done.output
    refused = CliRunner().invoke(main, [*arguments, "--loader-samples-per-s", "0"])
    assert refused.exit_code == 2
