"""Turns of gathers and scatters on CPUs, as the recorder counts them, and rolled images."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpuwise.tracing.describe import describe  # noqa: E402
from gpuwise.tracing.operator_call import OperatorCall  # noqa: E402

aten = torch.ops.aten
TABLE, INDICES = torch.zeros(50, 8), torch.zeros(3, 4, dtype=torch.long)


def values_of(op, *args):
    out = op(*args)
    return describe(OperatorCall(op, args, {}, [out]), [out]).values


@pytest.mark.parametrize(
    ("op", "args", "turns", "rows", "width"),
    [
        (aten.embedding.default, (TABLE, INDICES), 12, 50, 8),
        (aten.index_select.default, (TABLE, 0, INDICES[0]), 4, 50, 8),
        (aten.index_select.default, (TABLE, 1, INDICES[0]), 200, 400, 1),
        (aten.index.Tensor, (TABLE, [INDICES]), 96, 400, 1),
        (aten.gather.default, (TABLE, 0, INDICES), 12, 400, 1),
        (aten.index_add.default, (TABLE, 0, INDICES[0], torch.ones(4, 8)), 32, 400, 1),
        (aten.embedding_dense_backward.default, (torch.ones(3, 4, 8), INDICES, 50, -1, False), 12, 50, 8),
        (aten.slice_backward.default, (TABLE, [60, 8], 0, 0, 50, 1), 0, 0, 0),
    ],
)
def test_turns_and_tables(op, args, turns, rows, width):
    values = values_of(op, *args)
    assert (values.m, values.n, values.k) == (turns, rows, width)


def test_a_roll_copies_once_for_each_dimension():
    image = torch.zeros(2, 6, 6, 4)
    once, twice = (values_of(aten.roll.default, image, [1] * count, [1, 2][:count]) for count in (1, 2))
    assert (once.bytes_read, once.bytes_written) == (1152, 1152)
    assert (twice.bytes_read, twice.bytes_written) == (2304, 2304)
