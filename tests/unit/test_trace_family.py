"""A family answers at any size as a recording at that size would."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import small_trace

from gpuwise.errors import InputError
from gpuwise.trace import Axis, Trace, TraceFamily, build_family

AXES = (Axis("micro_batch", start=2, step=1, degree=1), Axis("seq_len", start=4, step=4, degree=2, exact_every=2))
DEFAULT = {"micro_batch": 1, "seq_len": 8}


def small_family(**changes: Trace) -> TraceFamily | None:
    grid = product(*(axis.points for axis in AXES))
    return build_family({(n, s): small_trace(micro_batch=n, seq_len=s) for n, s in grid}, AXES, DEFAULT)


def assert_same(a: Trace, b: Trace) -> None:
    assert np.array_equal(a.operations.values[a.sequence.operation], b.operations.values[b.sequence.operation])
    assert np.array_equal(a.storages.size_bytes, b.storages.size_bytes)
    assert [a.operations.name[i] for i in a.sequence.operation] == [b.operations.name[i] for i in b.sequence.operation]
    for table, columns in (("sequence", "module phase micro_step"), ("storages", "category module born died")):
        for column in columns.split():
            assert np.array_equal(getattr(getattr(a, table), column), getattr(getattr(b, table), column))
    assert a.modules == b.modules
    assert a.header == b.header


@given(micro_batch=st.integers(1, 4096), half=st.integers(1, 4096))
def test_a_family_is_the_trace_at_every_size(micro_batch: int, half: int) -> None:
    family = small_family()
    assert family is not None
    assert_same(
        family.at(micro_batch=micro_batch, seq_len=2 * half).check(), small_trace(micro_batch=micro_batch, seq_len=2 * half)
    )


def test_a_size_not_given_is_the_default_and_accumulation_is_set() -> None:
    family = small_family()
    assert family is not None
    trace = family.at(accumulation=3)
    assert trace.header.sizes == DEFAULT
    assert trace.header.units_per_sample == 8
    assert (trace.accumulation, trace.header.strategy.micro_batch) == (3, 1)
    assert_same(trace.with_accumulation(1), small_trace(micro_batch=1, seq_len=8))


@pytest.mark.parametrize("sizes", [{"seq_len": 9}, {"image_size": 224}])
def test_sizes_outside_the_family_are_refused(sizes: dict[str, int]) -> None:
    family = small_family()
    assert family is not None
    assert not family.covers(sizes)
    with pytest.raises(InputError, match="multiple of 2"):
        family.at(**sizes)


@pytest.mark.parametrize("table", ["operations", "sequence", "storages", "modules", "length"])
def test_recordings_of_different_structure_make_no_family(table: str) -> None:
    axis = AXES[0]
    a, b = (small_trace(micro_batch=n) for n in axis.points)
    if table == "operations":
        b = replace(b, operations=replace(b.operations, name=("aten.bmm.default", *b.operations.name[1:])))
    elif table == "sequence":
        b = replace(b, sequence=replace(b.sequence, phase=b.sequence.phase[::-1]))
    elif table == "storages":
        b = replace(b, storages=replace(b.storages, died=np.minimum(b.storages.died + 1, len(b.sequence))))
    elif table == "modules":
        b = replace(b, modules=("", "layers.0", "layers.x"))
    else:
        b = replace(
            b,
            sequence=replace(
                b.sequence, **{c: getattr(b.sequence, c)[:-1] for c in ("operation", "module", "phase", "micro_step")}
            ),
        )
    assert build_family({(2,): a, (3,): b}, (axis,), {}) is None
    assert build_family({(2,): a, (3,): small_trace(micro_batch=3)}, (axis,), {}) is not None


def test_operations_equal_at_one_size_may_differ_at_another() -> None:
    """Two products that coincide at the first grid point are told apart by the second."""

    def trace(n: int) -> Trace:
        base = small_trace(micro_batch=n)
        values = base.operations.values.copy()
        values[1] = values[0]
        values[1, 0] += 1000 * (n - 2)
        return replace(base, operations=replace(base.operations, values=values))

    family = build_family({(n,): trace(n) for n in (2, 3)}, (AXES[0],), {})
    assert family is not None
    for n in (2, 3, 9):
        made, direct = family.at(micro_batch=n), trace(n)
        assert np.array_equal(
            made.operations.values[made.sequence.operation], direct.operations.values[direct.sequence.operation]
        )


@given(start=st.integers(1, 512), step=st.integers(1, 256), degree=st.integers(1, 4), at=st.integers(0, 1000), data=st.data())
def test_newton_s_basis_is_exact_on_whole_steps(start: int, step: int, degree: int, at: int, data: st.DataObject) -> None:
    axis = Axis("n", start, step, degree)
    basis = axis.basis(start + at * step)
    assert basis == [comb(at, i) for i in range(degree + 1)]
    polynomial = data.draw(st.lists(st.integers(-1000, 1000), min_size=degree + 1, max_size=degree + 1))

    def value(x: int) -> int:
        return sum(c * x**i for i, c in enumerate(polynomial))

    differences = [int(np.diff([value(p) for p in axis.points], n=i)[0]) for i in range(degree + 1)]
    assert sum(d * int(b) for d, b in zip(differences, basis, strict=True)) == value(start + at * step)
