"""Products of matrices with odd rows are a class of their own: told by a layer's sizes, never by the batch's."""

import numpy as np
import pytest

from gpuwise.cost.kernels.alignment import unaligned
from gpuwise.cost.kernels.classes import classes
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header
from gpuwise.trace.tables import COLUMNS, KINDS, PHASES, Operations, OperationSequence, Storages
from gpuwise.trace.trace import Trace


def linear(samples, inputs, outputs, dtype="bfloat16", batch=1):
    """A linear layer's three products: forward, gradient of its input, gradient of its weight."""
    sizes = [(samples, outputs, inputs), (samples, inputs, outputs), (outputs, inputs, samples)]
    rows = []
    for m, n, k in sizes:
        numbers = {"flops": 2 * m * n * k, "kernels": 1, "batch": batch, "m": m, "n": n, "k": k}
        rows.append([numbers.get(name, 0) for name in COLUMNS])
    operations = Operations(("aten.mm.default",) * 3, np.full(3, KINDS.index("gemm")), (dtype,) * 3, np.array(rows))
    phase = np.array([PHASES.index(name) for name in ("forward", "backward", "backward")])
    zeros = np.zeros(3, dtype=np.int64)
    header = Header("hand", "", {"micro_batch": 1}, Strategy(precision="amp-bf16"), 10, 10)
    nothing = Storages(*[np.zeros(0, dtype=np.int64)] * 5)
    return Trace(header, operations, OperationSequence(np.arange(3), zeros, phase, zeros), nothing, ("",))


@pytest.mark.parametrize(("inputs", "outputs"), [(768, 50_257), (50_257, 768), (513, 1024)])
def test_an_odd_layer_has_all_three_products_unaligned(inputs, outputs):
    assert unaligned(linear(4096, inputs, outputs)).all()


def test_a_padded_vocabulary_is_aligned():
    assert not unaligned(linear(4096, 768, 50_304)).any()


@pytest.mark.parametrize("samples", [1, 197, 198, 4097])
def test_the_number_of_samples_never_matters(samples):
    assert not unaligned(linear(samples, 768, 3072)).any()
    assert unaligned(linear(samples, 768, 50_257)).all()


def test_only_single_products_in_half_precision_are_meant():
    assert not unaligned(linear(4096, 768, 50_257, dtype="float32")).any()
    assert not unaligned(linear(4096, 768, 50_257, batch=8)).any()
    assert not unaligned(linear(4096, 768, 1)).any()


def test_they_are_a_class_of_their_own():
    assert set(classes(linear(4096, 768, 50_257))) == {("gemm_unaligned", "bfloat16")}
    assert set(classes(linear(4096, 768, 50_304))) == {("gemm", "bfloat16")}
