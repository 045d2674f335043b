"""What is allocated and freed before the first step: noted, stored, replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trace_samples import small_trace

from gpuwise.cost.memory.events import step_events
from gpuwise.errors import FileFormatError
from gpuwise.strategy import Mesh
from gpuwise.trace import BEFORE, Loading, LoadingLog, Trace, load, save

MIB = 2**20


def loaded(*rows: tuple[int, int]) -> Trace:
    """A step whose parameters, of 4,000 and 100 bytes, were made among these allocations: (bytes, lifetime)."""
    size_bytes, lifetime = np.array(rows, dtype=np.int64).T
    return replace(small_trace(), loading=Loading(size_bytes, lifetime))


# The weight at full size, its packed form, something else that stays.
PACKED = loaded((64 * MIB, 1), (4000, -1), (100, -1))


def test_a_log_counts_what_is_allocated_until_each_is_freed() -> None:
    log = LoadingLog()
    full = log.allocate(64)
    log.allocate(16)
    scratch = log.allocate(8)
    log.free(scratch)
    log.free(full)
    log.allocate(4)
    loading = log.loading()
    assert loading.size_bytes.tolist() == [64, 16, 8, 4]
    assert loading.lifetime.tolist() == [2, -1, 0, -1]
    assert loading.stays.tolist() == [False, True, False, True]


def test_a_log_in_which_nothing_is_freed_is_empty() -> None:
    log = LoadingLog()
    log.allocate(64)
    assert not len(log.loading())


def test_the_replay_allocates_and_frees_in_the_order_of_loading() -> None:
    events = step_events(PACKED)
    before = events.order[:4].tolist()
    made = [int(events.size_bytes[which]) if which >= 0 else -int(events.size_bytes[~which]) for which in before]
    assert made == [64 * MIB, 4000, -64 * MIB, 100]
    assert (events.position[events.size_bytes == 64 * MIB] == BEFORE).all()


def test_the_segment_of_what_was_freed_stays_reserved() -> None:
    without = step_events(replace(PACKED, loading=Loading())).replay()
    run = step_events(PACKED).replay()
    assert run.peak_reserved_bytes == without.peak_reserved_bytes + 64 * MIB
    assert run.peak_event <= 1  # nothing of the step is as large


def test_the_step_runs_in_the_memory_that_loading_left() -> None:
    large = replace(PACKED.storages, size_bytes=np.where(PACKED.storages.born >= 0, 3 * MIB, PACKED.storages.size_bytes))
    run = step_events(replace(PACKED, storages=large)).replay()
    small_pool = 2 * MIB
    assert run.peak_reserved_bytes == 64 * MIB + small_pool


def test_what_the_first_step_replaces_is_freed_in_it() -> None:
    trace = loaded((64 * MIB, 1), (4000, -1), (200, -1))  # 200 bytes that the step makes 100
    events = step_events(trace)
    sizes = events.size_bytes
    at = {
        int(sizes[w]) if w >= 0 else -int(sizes[~w]): number for number, w in reversed(list(enumerate(events.order.tolist())))
    }
    assert at[200] < at[100] < at[-200]
    assert events.moment[at[-200]] < 0


def test_a_rank_of_several_is_replayed_without() -> None:
    strategy = PACKED.header.strategy.but(mesh=Mesh(dp_shard=2))
    rank = replace(PACKED, header=replace(PACKED.header, strategy=strategy))
    assert (step_events(rank).size_bytes < MIB).all()


def test_a_file_has_it(tmp_path: Path) -> None:
    save(PACKED, tmp_path / "a.npz")
    trace = load(tmp_path / "a.npz")
    assert trace.loading.size_bytes.tolist() == PACKED.loading.size_bytes.tolist()
    assert trace.loading.lifetime.tolist() == PACKED.loading.lifetime.tolist()


@pytest.mark.parametrize("rows", [[(8, 1), (8, 1)], [(8, -2)], [(-8, 0), (8, 0)]], ids=["too late", "before", "no size"])
def test_a_file_in_which_it_makes_no_sense(rows: list[tuple[int, int]], tmp_path: Path) -> None:
    save(loaded(*rows), tmp_path / "a.npz")
    with pytest.raises(FileFormatError, match="before the first step"):
        load(tmp_path / "a.npz")
