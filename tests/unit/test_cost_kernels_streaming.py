"""Kernels that move bytes: what their terms and features say of shapes and chips."""

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.cost.kernels import rows, streaming
from gpuwise.cost.kernels.classes import terms_of
from gpuwise.cost.kernels.shapes import Hardware, Shapes

CHIP = Hardware(peak_flops_per_s=1e13, bandwidth_bytes_per_s=1e12, units=100, cache_bytes=4e6)


def shapes(read, written, *, m=0.0, k=0.0, element=4.0):
    read, written, m, k = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (read, written, m, k)))
    none = np.zeros(read.shape)
    return Shapes(none, read, written, none + 1, none, m, none, k, none, none + element)


def layer_norm(number_of_rows, length, element):
    """Bytes of layer norm forward: numbers and weights read; numbers, and two statistics of a row in float32, written."""
    numbers = number_of_rows * length
    return shapes(element * (numbers + 2 * length), element * numbers + 8 * number_of_rows, element=element)


def test_memory_is_all_bytes_at_full_bandwidth_and_features_count_units_and_cache():
    result = streaming.terms(shapes([3e6, 3e9], [1e6, 1e9]), CHIP)
    np.testing.assert_allclose(result.seconds["memory"], [4e-6, 4e-3])
    np.testing.assert_allclose(result.features["unit_bytes"], [4e4, 4e7])
    np.testing.assert_allclose(result.features["cached"], [1, 1000])


def test_a_chip_without_a_known_cache_gets_no_credit_for_one():
    result = streaming.terms(shapes(1e3, 1e3), replace(CHIP, cache_bytes=0))
    assert result.features["cached"] >= 1000


def test_scattered_indices_are_sorted_first_and_other_operations_have_none():
    result = streaming.terms(shapes(1e6, 1e6, m=[0, 1, 4096]), CHIP).seconds["rows"]
    expected = [0, 1 + streaming.SORTED, 4096 + streaming.SORTED]
    np.testing.assert_allclose(result, streaming.INDEX_S * np.array(expected) / CHIP.units)


def test_features_are_positive_for_an_operation_that_moves_nothing():
    for kernel_class in ("elementwise", "softmax", "loss", "norm_layer", "norm_batch_backward", "scatter"):
        features = terms_of(kernel_class, shapes(0, 0), CHIP).features
        assert all((values > 0).all() and np.isfinite(values).all() for values in features.values())


@pytest.mark.parametrize("element", [2.0, 4.0])
def test_rows_of_a_layer_norm_follow_from_its_bytes(element):
    number, length = np.array([4096.0, 100.0, 16384.0, 1.0]), np.array([1024.0, 4096.0, 64.0, 8.0])
    result = rows.norm_terms(layer_norm(number, length, element), CHIP)
    np.testing.assert_allclose(result.features["length"], length)
    np.testing.assert_allclose(result.seconds["rows"], rows.ROW_S * number / CHIP.units)


def test_recorded_rows_are_taken_where_a_trace_has_them():
    result = rows.norm_terms(shapes(1e6, 5e5, m=128, k=1000), CHIP)
    assert result.features["length"] == 1000
    assert result.seconds["rows"] == pytest.approx(rows.ROW_S * 128 / CHIP.units)
    assert rows.softmax_terms(shapes(1e6, 1e6, m=10, k=25000), CHIP).features["length"] == 25000


def test_rows_of_unknown_length_are_those_of_attention_scores_and_of_a_vocabulary():
    given = shapes(4 * 2**20, 4 * 2**20)
    softmax, loss = (terms_of(name, given, CHIP) for name in ("softmax", "loss"))
    assert softmax.features["length"] == rows.USUAL_LENGTH < loss.features["length"] == rows.USUAL_VOCABULARY
    assert softmax.seconds["rows"] == pytest.approx(rows.ROW_S * 2**20 / rows.USUAL_LENGTH / CHIP.units)


@pytest.mark.parametrize("kernel_class", ["elementwise", "softmax", "loss", "norm_layer", "norm_group"])
def test_terms_grow_with_the_bytes_and_never_with_the_bandwidth(kernel_class):
    random = np.random.default_rng(0)
    read, written = (np.exp(random.uniform(np.log(10), np.log(1e10), 500)) for _ in range(2))
    small = terms_of(kernel_class, shapes(read, written), CHIP)
    large = terms_of(kernel_class, shapes(3 * read, 3 * written), CHIP)
    wide = terms_of(kernel_class, shapes(read, written), replace(CHIP, bandwidth_bytes_per_s=2e12))
    for name, seconds in small.seconds.items():
        assert (large.seconds[name] >= seconds * (1 - 1e-9)).all(), name
        assert (wide.seconds[name] <= seconds).all(), name
    for name, values in small.features.items():
        np.testing.assert_array_equal(wide.features[name], values)
