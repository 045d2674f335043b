"""A digest tells two steps apart by what they run, and by nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trace_samples import small_rank, small_trace

from gpuwise.notes import Note
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import Operations, Trace
from gpuwise.trace.digest import digest

STRATEGY = Strategy(micro_batch=2, optimizer="adamw")


def permuted(trace: Trace) -> Trace:
    """The same step, its distinct operations and storages listed in another order, and one operation that never runs."""
    ops, order = trace.operations, np.array([2, 0, 3, 1])
    place = np.argsort(order)
    names, dtypes = (*(ops.name[i] for i in order), "aten.never.default"), (*(ops.dtype[i] for i in order), "float32")
    values = np.vstack([ops.values[order], ops.values[:1] + 1])
    listed = Operations(names, np.append(ops.kind[order], np.int8(0)), dtypes, values)
    sequence = replace(trace.sequence, operation=place[trace.sequence.operation].astype(np.int64))
    back = np.arange(len(trace.storages))[::-1]
    held = {name: getattr(trace.storages, name)[back] for name in ("size_bytes", "category", "module", "born", "died")}
    return replace(trace, operations=listed, sequence=sequence, storages=replace(trace.storages, **held))


def test_it_is_of_what_runs_not_of_how_it_is_told():
    trace = small_trace()
    header = replace(
        trace.header,
        job="other",
        fingerprint="f" * 16,
        assumption_notes=(Note("other", "another guess"),),
        blocks=(),
        strategy=STRATEGY.but(optimizer=None),
    )
    answer = replace(trace, header=header, modules=("", "a", "b"))
    assert len(digest(trace, STRATEGY)) == 32
    assert digest(answer, STRATEGY) == digest(permuted(trace), STRATEGY) == digest(trace, STRATEGY)
    assert digest(trace, STRATEGY.but(mesh=Mesh(), optimizer=None)) == digest(trace, STRATEGY)


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "tf32"},
        {"accumulation": 2},
        {"compile": True},
        {"channels_last": True},
        {"mode": "infer"},
        {"offload": "optimizer"},
    ],
)
def test_a_strategy_that_runs_otherwise_has_another(change: dict[str, object]):
    assert digest(small_trace(), STRATEGY.but(**change)) != digest(small_trace(), STRATEGY)


def test_any_number_of_the_step_changes_it():
    trace = small_trace()
    ops, sequence, storages = trace.operations, trace.sequence, trace.storages
    flops = ops.values.copy()
    flops[0, 0] += 1
    swapped = sequence.operation.copy()
    swapped[[0, 2]] = swapped[[2, 0]]
    sizes = storages.size_bytes.copy()
    sizes[0] += 1
    died = storages.died.copy()
    died[-1] += 1
    others = [
        small_trace(micro_batch=3),
        small_trace(seq_len=5),
        replace(trace, header=replace(trace.header, target="cpu")),
        replace(trace, operations=replace(ops, values=flops)),
        replace(trace, operations=replace(ops, dtype=("bfloat16", *ops.dtype[1:]))),
        replace(trace, operations=replace(ops, name=("aten.bmm.default", *ops.name[1:]))),
        replace(trace, sequence=replace(sequence, operation=swapped)),
        replace(trace, storages=replace(storages, size_bytes=sizes)),
        replace(trace, storages=replace(storages, died=died)),
    ]
    results = {digest(other, STRATEGY) for other in (trace, *others)}
    assert len(results) == len(others) + 1


def test_groups_streams_and_waits_change_it():
    rank = small_rank()
    one_stream = replace(rank.sequence, stream=np.zeros_like(rank.sequence.stream))
    others = [
        replace(rank, header=replace(rank.header, groups=rank.header.groups[::-1])),
        replace(rank, sequence=one_stream),
        replace(rank, storages=replace(rank.storages, stream=np.ones_like(rank.storages.stream))),
        replace(rank, waits=replace(rank.waits, on=rank.waits.on - 1)),
    ]
    assert len({digest(other, STRATEGY) for other in (rank, *others)}) == len(others) + 1


def test_it_is_the_same_in_another_process():
    code = (
        "from gpuwise.strategy import Strategy\nfrom gpuwise.trace.digest import digest\n"
        "from trace_samples import small_trace\n"
        "print(digest(small_trace(), Strategy(micro_batch=2, optimizer='adamw')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    assert done.stdout.strip() == digest(small_trace(), STRATEGY)
