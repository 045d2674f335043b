"""Counts, accumulation and live bytes of a trace made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from trace_samples import ROWS, small_rank, small_trace

from gpuwise.errors import FileFormatError, UnsupportedError
from gpuwise.trace import CATEGORIES, Trace, live_bytes
from gpuwise.trace.memory import rounded


def brute_force(trace: Trace) -> list[int]:
    """Live bytes at every position that runs, each counted on its own."""
    live = []
    for position in range(len(trace.sequence)):
        if trace.accumulation == 1 and trace.sequence.micro_step[position] == 1:
            live.append(0)
            continue
        total = -(-int(trace.operations.column("workspace_bytes")[trace.sequence.operation[position]]) // 512) * 512
        for size, born, died in zip(trace.storages.size_bytes, trace.storages.born, trace.storages.died, strict=True):
            skipped = trace.accumulation == 1 and born >= 0 and trace.sequence.micro_step[born] == 1
            if born <= position <= died and not skipped:
                total += -(-int(size) // 512) * 512
        live.append(total)
    return live


@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_live_bytes_are_those_counted_one_by_one(accumulation: int) -> None:
    trace = small_trace().with_accumulation(accumulation)
    live = live_bytes(trace)
    expected = brute_force(trace)
    assert live.allocated_bytes.tolist() == expected
    assert live.peak_bytes == max(expected) == expected[live.peak_position]
    assert sum(live.by_category.values()) == live.peak_bytes
    assert set(live.by_category) == set(CATEGORIES)
    assert live.persistent_bytes == 4096 + 512 + 8704


def test_an_accumulated_step_peaks_where_gradients_meet_the_next_activations() -> None:
    once, twice = live_bytes(small_trace()), live_bytes(small_trace().with_accumulation(2))
    assert once.by_category["gradient"] < twice.by_category["gradient"] == 4096 + 512
    assert once.peak_bytes < twice.peak_bytes


def test_a_pipeline_counts_the_micro_batches_that_were_not_recorded() -> None:
    trace = small_trace()
    trace = replace(trace, header=replace(trace.header, micro_batches=4))
    assert trace.with_accumulation(4).counts().tolist() == small_trace().with_accumulation(2).counts().tolist()
    assert trace.with_accumulation(9).counts().tolist() == small_trace().with_accumulation(7).counts().tolist()
    with pytest.raises(UnsupportedError, match="4 micro-batches or more"):
        trace.with_accumulation(3)


def test_the_payload_of_a_collective_is_the_full_tensor() -> None:
    trace = small_rank()
    read = trace.operations.column("bytes_read")
    assert trace.operations.payload_bytes.tolist() == [0, 0, read[2], 0]


def test_positions_of_the_second_micro_batch_count_once_less_than_the_accumulation() -> None:
    for accumulation in (1, 2, 7):
        trace = small_trace().with_accumulation(accumulation)
        assert trace.accumulation == accumulation
        assert trace.counts().tolist() == [2 + 2 * (accumulation - 1), 2 + 2 * (accumulation - 1), accumulation - 1, 1]
        assert trace.counts("forward").tolist() == [2 * accumulation, 0, 0, 0]
        assert trace.counts("optimizer").tolist() == [0, 0, 0, 1]
        assert trace.repeats.sum() == 5 + 5 * (accumulation - 1)
        assert trace.samples == 2 * accumulation


def test_flops_by_phase_add_up_and_model_flops_count_the_masked_half() -> None:
    trace = small_trace().with_accumulation(3)
    tokens = 8
    assert trace.flops("forward") == 3 * 2 * 100 * tokens
    assert trace.flops("backward") == 3 * 2 * 200 * tokens + 2 * 10
    assert sum(trace.flops(p) for p in ("forward", "backward", "recompute", "optimizer")) == trace.flops()
    assert trace.model_flops == 2 * trace.flops("forward") + trace.flops("backward")


def test_with_accumulation_leaves_the_trace_as_it_was() -> None:
    trace = small_trace()
    assert trace.repeats.tolist() == [0 if row[3] == 1 else 1 for row in ROWS]
    more = trace.with_accumulation(4)
    assert more.repeats.tolist() == [3 if row[3] == 1 else 1 for row in ROWS]
    assert trace.accumulation == 1
    assert trace.operations is more.operations


def test_sizes_round_up_to_the_granule() -> None:
    assert rounded(np.array([0, 1, 512, 513])).tolist() == [0, 512, 512, 1024]


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("sequence", "operation", 4),
        ("sequence", "operation", -1),
        ("sequence", "module", 3),
        ("sequence", "phase", 4),
        ("sequence", "micro_step", 3),
        ("storages", "category", 7),
        ("storages", "module", -1),
        ("storages", "born", 10),
        ("storages", "born", -2),
        ("storages", "died", 11),
        ("storages", "died", -1),
        ("operations", "kind", 18),
    ],
)
def test_check_refuses_an_index_outside_its_table(table: str, column: str, value: int) -> None:
    trace = small_trace()
    part = getattr(trace, table)
    wrong = getattr(part, column).copy()
    wrong[-1] = value
    with pytest.raises(FileFormatError, match="damaged"):
        replace(trace, **{table: replace(part, **{column: wrong})}).check()


def test_check_refuses_columns_of_different_lengths() -> None:
    trace = small_trace()
    for table, column in (("sequence", "phase"), ("storages", "died"), ("operations", "kind"), ("operations", "values")):
        part = getattr(trace, table)
        with pytest.raises(FileFormatError, match="differ in length"):
            replace(trace, **{table: replace(part, **{column: getattr(part, column)[:-1]})}).check()


def test_a_storage_cannot_die_before_it_is_born() -> None:
    trace = small_trace()
    died = trace.storages.died.copy()
    died[-1] = 5
    with pytest.raises(FileFormatError, match="dies before"):
        replace(trace, storages=replace(trace.storages, died=died)).check()
