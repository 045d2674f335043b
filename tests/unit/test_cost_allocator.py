"""The allocator's rules by hand, each as CUDACachingAllocator.cpp has it, and the events of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from trace_samples import small_trace

from gpuwise.cost.forecast import MemoryForecast
from gpuwise.cost.memory.allocator import Replay, replay
from gpuwise.cost.memory.device import memory_forecast
from gpuwise.cost.memory.events import CATEGORY_NAMES, Events, step_events
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import BEFORE, CATEGORIES, KINDS, Storages, Trace, data_parallel, live_bytes
from gpuwise.trace.presets import load_preset

MIB = 2**20
BLAS = 8_519_680


def run(*steps: int | str, limit_mib: int | None = None, expandable: bool = False) -> Replay:
    """A number allocates that many bytes; "-2" frees the third allocation."""
    sizes = [step for step in steps if isinstance(step, int)]
    order, made = [], 0
    for step in steps:
        order.append(made if isinstance(step, int) else ~-int(step))
        made += isinstance(step, int)
    return replay(sizes, order, limit_bytes=None if limit_mib is None else limit_mib * MIB, expandable=expandable)


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest of the small pool
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # from here on a segment of its own
        (10 * MIB + 1, 12 * MIB - 2 * MIB + 512, 12 * MIB),  # what is left is over 1 MiB: split
        (11 * MIB, 12 * MIB, 12 * MIB),  # just 1 MiB is left: not split, and all of it counts
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
    ],
)
def test_one_request(requested: int, allocated: int, reserved: int) -> None:
    result = run(requested)
    assert (result.peak_allocated_bytes, result.peak_reserved_bytes, result.segments) == (allocated, reserved, 1)
    assert result.block_bytes == (allocated,)


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (11 * MIB, 11 * MIB, 20 * MIB),
        (41 * MIB, 41 * MIB, 60 * MIB),
    ],
)
def test_one_request_of_expandable_segments_takes_whole_pages(requested: int, allocated: int, reserved: int) -> None:
    result = run(requested, expandable=True)
    assert (result.peak_allocated_bytes, result.peak_reserved_bytes) == (allocated, reserved)


def test_a_freed_block_serves_the_next_request_of_its_pool_alone() -> None:
    assert run(16 * MIB, "-0", 16 * MIB).peak_reserved_bytes == 16 * MIB
    assert run(16 * MIB, "-0", MIB).peak_reserved_bytes == 18 * MIB


def test_the_smallest_block_that_fits_is_taken_then_the_lowest() -> None:
    # 40 and 30 MiB are free; 30 takes the second, so 40 still fits in the first.
    assert run(40 * MIB, 30 * MIB, "-0", "-1", 30 * MIB, 40 * MIB).peak_reserved_bytes == 70 * MIB
    # Of two free blocks of one size the lower is cut, and what is left of it merges when it comes back.
    again = run(20 * MIB, 20 * MIB, "-0", "-1", 4 * MIB, 20 * MIB, "-2", 20 * MIB)
    assert again.peak_reserved_bytes == 40 * MIB


def test_a_later_segment_lies_below_an_earlier_one() -> None:
    """A segment of 20 MiB is free, and 20 of a later one behind a living block: 4 go there, the first can be given back."""
    steps = (20 * MIB, 40 * MIB, "-1", 20 * MIB, "-0", 4 * MIB, 60 * MIB)
    assert run(*steps, limit_mib=100).out_of_memory is None


def test_neighbours_merge_inside_a_segment_and_never_across() -> None:
    inside = run(4 * MIB, 4 * MIB, 4 * MIB, 8 * MIB, "-0", "-2", "-1", 12 * MIB)
    assert inside.peak_reserved_bytes == 20 * MIB
    across = run(10 * MIB, 10 * MIB, "-0", "-1", 20 * MIB)
    assert across.peak_reserved_bytes == 40 * MIB


def test_out_of_memory_comes_only_after_cached_blocks_were_given_back() -> None:
    served = run(60 * MIB, "-0", 80 * MIB, limit_mib=100)
    assert served.out_of_memory is None
    assert served.cache_releases == 1
    assert served.peak_reserved_bytes == 80 * MIB
    # A segment with a living block in it cannot be given back.
    failed = run(4 * MIB, 16 * MIB, "-1", 90 * MIB, limit_mib=100)
    assert failed.out_of_memory is not None
    assert failed.out_of_memory.event == 3
    assert failed.out_of_memory.requested_bytes == 90 * MIB
    assert failed.out_of_memory.allocated_bytes == 4 * MIB
    assert failed.out_of_memory.reserved_bytes == 20 * MIB
    assert failed.block_bytes[-1] == 0


def test_expandable_segments_give_back_free_pages_beside_living_blocks() -> None:
    steps = (4 * MIB, 16 * MIB, 4 * MIB, 16 * MIB, 4 * MIB, 16 * MIB, "-1", "-3", "-5", 48 * MIB)
    assert run(*steps, limit_mib=100).out_of_memory is not None
    result = run(*steps, limit_mib=100, expandable=True)
    assert result.out_of_memory is None
    assert result.cache_releases == 0  # the free end of the range grows by what is missing
    filled = run(50 * MIB, 10 * MIB, 40 * MIB, "-0", 60 * MIB, limit_mib=120, expandable=True)
    assert filled.out_of_memory is None
    assert filled.cache_releases == 1
    assert filled.peak_reserved_bytes == 120 * MIB


def test_expandable_segments_keep_the_block_that_can_grow_for_last() -> None:
    # 12 MiB are free before a living block and 6 at the end. A request for 5 takes the 12, so 8 more make the range grow.
    result = run(12 * MIB, 2 * MIB, "-0", 5 * MIB, 8 * MIB, expandable=True)
    assert result.peak_reserved_bytes == 40 * MIB


def test_more_is_reserved_at_the_peak_than_is_in_blocks() -> None:
    result = run(4 * MIB)
    assert (result.peak_allocated_bytes, result.reserved_at_peak_bytes) == (4 * MIB, 20 * MIB)
    assert run().reserved_at_peak_bytes == 0


@pytest.mark.parametrize("unit", [2**40, 2**50, 2**60], ids=["TiB", "PiB", "EiB"])
@pytest.mark.parametrize("expandable", [False, True])
def test_no_size_that_int64_counts_is_too_large(unit: int, expandable: bool) -> None:
    result = run(4 * unit, 3 * unit, "-0", unit, 3 * unit, expandable=expandable)
    assert (result.peak_allocated_bytes, result.peak_reserved_bytes) == (
        7 * unit,
        7 * unit + -7 * unit % (20 * MIB) * expandable,
    )


def test_a_block_is_used_again_on_its_own_stream_alone() -> None:
    """A buffer that was gathered on a communication stream, 16 MiB, and one of the stream that computes."""
    sizes, order = [16 * MIB, 16 * MIB, 16 * MIB], [0, ~0, 1, ~1, 2]
    assert replay(sizes, order, streams=[1, 0, 1]).peak_reserved_bytes == 32 * MIB
    assert replay(sizes, order, streams=[1, 1, 1]).peak_reserved_bytes == 16 * MIB
    assert replay(sizes, order).peak_reserved_bytes == 16 * MIB
    # With too little memory the other stream's cached block is given back.
    result = replay(sizes, order, streams=[1, 0, 1], limit_bytes=24 * MIB)
    assert (result.out_of_memory, result.cache_releases, result.peak_reserved_bytes) == (None, 2, 16 * MIB)


def test_storages_come_from_the_pool_of_their_stream() -> None:
    trace = small_trace()
    gathered = trace.storages.born >= 0
    stream = np.where(gathered, 1, 0).astype(np.int8)
    events = step_events(replace(trace, storages=replace(trace.storages, stream=stream)))
    made_inside = events.position != BEFORE
    assert (events.stream[made_inside & (events.category != CATEGORIES.index("temporary"))] == 1).all()
    assert (events.stream[~made_inside] == 0).all()


def names(events: Events) -> list[tuple[str, str, int]]:
    """("+" or "-", category, bytes) of each event."""
    return [
        ("+" if k >= 0 else "-", CATEGORY_NAMES[events.category[max(k, ~k)]], int(events.size_bytes[max(k, ~k)]))
        for k in events.order.tolist()
    ]


def test_a_process_makes_its_model_then_state_with_the_first_update_and_both_workspaces_where_they_are_called() -> None:
    trace = small_trace()
    events = step_events(trace, blas_workspace_bytes=BLAS)
    story = names(events)
    parameters_made = int(((trace.storages.born == BEFORE) & (trace.storages.category == CATEGORIES.index("parameter"))).sum())
    assert {category for _, category, _ in story[:parameters_made]} == {"parameter"}
    assert story[0][0] == "+"
    states = [i for i, (sign, category, _) in enumerate(story) if category == "optimizer_state"]
    spaces = [i for i, (sign, category, _) in enumerate(story) if category == "workspace"]
    assert all(story[i][0] == "+" for i in [*states, *spaces])
    assert len(spaces) == 2
    assert max(spaces) < min(states)
    # Every allocation is made once and freed at most once; what stays is parameters, state and workspaces.
    made = [k for k in events.order.tolist() if k >= 0]
    freed = [~k for k in events.order.tolist() if k < 0]
    assert sorted(made) == list(range(len(events.size_bytes)))
    assert len(set(freed)) == len(freed)
    left = {CATEGORY_NAMES[events.category[k]] for k in set(made) - set(freed)}
    assert left == {"parameter", "optimizer_state", "workspace"}


@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_live_events_peak_where_live_bytes_are_counted(accumulation: int) -> None:
    """Under expandable segments every block is cut to its request, so allocated is exactly what is counted."""
    trace = small_trace().with_accumulation(accumulation)
    events = step_events(trace)
    result = replay(events.size_bytes.tolist(), events.order.tolist(), expandable=True)
    assert result.peak_allocated_bytes == live_bytes(trace).peak_bytes
    by_category = events.by_category(np.array(result.block_bytes), result.peak_event)
    assert by_category == live_bytes(trace).by_category | {"workspace": 0}


def gpt2(**sizes: int) -> Trace:
    family = load_preset("gpt2", precision="amp-bf16")
    assert family is not None
    return family.at(**{"micro_batch": 4, "accumulation": 1, **sizes})


def both(trace: Trace, **options: int) -> tuple[Replay, Replay]:
    events = step_events(trace, **options)
    sizes, order = events.size_bytes.tolist(), events.order.tolist()
    return replay(sizes, order), replay(sizes, order, expandable=True)


def test_a_third_micro_batch_changes_nothing() -> None:
    trace = gpt2(accumulation=8)
    two, four = (both(trace, most_micro_batches=most) for most in (2, 4))
    for less, more in zip(two, four, strict=True):
        assert more.peak_allocated_bytes == less.peak_allocated_bytes
        assert more.peak_reserved_bytes == less.peak_reserved_bytes
    assert len(four[0].block_bytes) > len(two[0].block_bytes)


def test_what_is_replaced_in_a_step_is_there_again_before_the_next() -> None:
    trace = small_trace()
    died = trace.storages.died.copy()
    first = int(np.flatnonzero(trace.storages.born == BEFORE)[0])
    died[first] = 1
    events = step_events(replace(trace, storages=replace(trace.storages, died=died)))
    size = int(trace.storages.size_bytes[first])
    story = [sign for sign, category, held in names(events) if category == "parameter" and held == size]
    assert story.count("-") == 2
    assert story.count("+") >= 2


CATALOG = Catalog()
H100, T4 = CATALOG.chip("h100-80gb-sxm"), CATALOG.chip("t4")


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("chip", [H100, T4], ids=lambda chip: chip.id)
def test_the_forecast_of_a_preset_is_its_replay(accumulation: int, chip) -> None:  # type: ignore[no-untyped-def]
    trace = gpt2(accumulation=accumulation)
    memory = memory_forecast(trace, Cluster(chip), parameters=parameters())
    counted = memory_forecast(trace, Cluster(chip), parameters=parameters(), replay=False)
    assert not memory.counted_only
    assert counted.counted_only
    assert sum(memory.by_category.values()) == memory.peak_allocated_bytes
    assert sum(counted.by_category.values()) == counted.peak_allocated_bytes
    assert set(memory.by_category) == set(counted.by_category) == set(CATEGORY_NAMES)
    assert memory.by_category["workspace"] == counted.by_category["workspace"] == 2 * (33_554_432 if chip is H100 else BLAS)
    # Only what is left of blocks that were not split comes on top of what is counted.
    assert 0 <= memory.peak_allocated_bytes / counted.peak_allocated_bytes - 1 < 0.01
    assert memory.peak_allocated_bytes <= memory.peak_reserved_bytes < memory.device_bytes
    assert memory.peak_reserved_expandable_bytes is not None
    assert memory.fits
    assert memory.cache_releases == 0


def test_a_step_still_fits_where_giving_cached_blocks_back_helps() -> None:
    """60 MiB, freed, then 80: both are reserved where there is room, else the 60 are given back first."""
    trace = small_trace()
    storages = Storages(
        size_bytes=np.array([10 * MIB, 60 * MIB, 80 * MIB]),
        category=np.zeros(3, dtype=np.int8),
        module=np.zeros(3, dtype=np.int32),
        born=np.array([BEFORE, 0, 1]),
        died=np.array([len(trace.sequence), 0, 1]),
    )
    no_product = np.full_like(trace.operations.kind, KINDS.index("other"))
    trace = replace(trace, storages=storages, operations=replace(trace.operations, kind=no_product))

    def forecast(capacity: int | None) -> MemoryForecast:
        return memory_forecast(trace, Cluster(T4, memory_bytes=capacity), parameters=parameters())

    ample = forecast(None)
    context = ample.device_bytes - ample.peak_reserved_bytes
    assert ample.peak_reserved_bytes == 152 * MIB  # and 2 of the kernels' own
    tight = forecast(context + 92 * MIB)
    assert tight.fits
    assert tight.cache_releases == 1  # the 80 MiB serve all that follows
    assert tight.peak_reserved_bytes == 92 * MIB
    assert forecast(context + 89 * MIB).fits is False
    assert forecast(context + 89 * MIB).device_bytes == ample.device_bytes


def test_a_sharded_rank_is_replayed_too() -> None:
    family = load_preset("gpt2", precision="bf16")
    assert family is not None
    strategy = Strategy("amp-bf16", micro_batch=4, mesh=Mesh(dp_shard=8))
    trace, _ = data_parallel(family.at(micro_batch=4, accumulation=1), strategy)
    memory = memory_forecast(trace, Cluster(H100, 8), parameters=parameters())
    assert sum(memory.by_category.values()) == memory.peak_allocated_bytes
    assert memory.by_category["communication_buffer"] > 0
    assert memory.peak_allocated_bytes <= memory.peak_reserved_bytes
    assert memory.device_bytes - memory.peak_reserved_bytes > parameters().communicator_bytes


@pytest.mark.parametrize(
    ("chip", "size_bytes"), [("t4", BLAS), ("v100-sxm2-32gb", BLAS), ("a100-80gb-sxm", BLAS), ("h100-80gb-sxm", 33_554_432)]
)
def test_the_workspace_of_each_architecture(chip: str, size_bytes: int) -> None:
    memory = memory_forecast(gpt2(), Cluster(CATALOG.chip(chip)), parameters=parameters())
    assert memory.by_category["workspace"] == 2 * size_bytes


def test_a_cpu_rounds_and_caches_nothing() -> None:
    trace = small_trace()
    memory = memory_forecast(trace, Cluster(CATALOG.chip("xeon-8380")), parameters=parameters())
    assert memory.peak_allocated_bytes == memory.peak_reserved_bytes == memory.device_bytes
    assert memory.peak_allocated_bytes == live_bytes(trace, granule_bytes=1).peak_bytes <= live_bytes(trace).peak_bytes
    assert sum(memory.by_category.values()) == memory.peak_allocated_bytes
    assert memory.fits is None
    assert memory.counted_only
