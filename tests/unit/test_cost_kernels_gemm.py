"""Matrix products: what their terms and features say of shapes and chips."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.cost.calibration import calibration
from gpuwise.cost.kernels import gemm
from gpuwise.cost.kernels.shapes import Hardware, Shapes
from gpuwise.cost.kernels.times import class_times
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog

CHIP = Hardware(peak_flops_per_s=1e14, bandwidth_bytes_per_s=1e12, units=100, cache_bytes=4e7, clock_hz=1.8e9)
CATALOG = Catalog()


def products(m, n, k, *, batch=1.0, element=2.0):
    batch, m, n, k = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, dtype=float)) for x in (batch, m, n, k)))
    one = np.ones(m.shape)
    read, written = element * batch * (m * k + n * k), element * batch * m * n
    return Shapes(2 * batch * m * n * k, read, written, one, batch, m, n, k, 0 * one, element * one)


def test_a_wave_more_takes_a_wave_longer():
    """100 units: 100 tiles of 128 x 256 are a wave, one column more than that is two (of some tile shape)."""
    full, more = gemm.terms(products([10 * 128, 10 * 128], [10 * 256, 10 * 256 + 1], 4096), CHIP).seconds["compute"]
    assert full == pytest.approx(10 * 128 * 10 * 256 * 2 * 4096 / 1e14)
    assert more > 1.04 * full


def test_a_deep_product_of_few_tiles_is_split():
    alone = gemm.terms(products(128, 128, 2**15), CHIP).seconds["compute"]
    unsplit = 2 * 64 * 64 * 2**15 / (1e14 / 100)  # a unit to each of four tiles of 64 x 64
    assert alone[0] < unsplit / 3


def test_whole_waves_never_beat_the_peak():
    random = np.random.default_rng(0)
    m, n, k = (2 ** random.uniform(0, 14, 500) for _ in range(3))
    result = gemm.terms(products(np.ceil(m), np.ceil(n), np.ceil(k)), CHIP)
    assert np.all(result.seconds["compute"] >= result.seconds["compute_even"] * (1 - 1e-9))


def test_activations_that_fit_the_cache_cost_half_and_weights_do_not():
    shapes = products(4096, 64, 1024)
    cached, without = (gemm.terms(shapes, replace(CHIP, cache_bytes=size)).seconds["memory"][0] for size in (1e9, 0))
    weights, others = 2 * 64 * 1024, 2 * (4096 * 1024 + 4096 * 64)
    assert without == pytest.approx((weights + others) / 1e12)
    assert cached == pytest.approx((weights + others / 2) / 1e12)


def test_weights_of_which_six_fit_the_cache_come_from_it_and_larger_ones_from_memory():
    """The cache of CHIP gives 24 bytes a clock to each of 100 units; half of one row and its result come from it as well."""
    kept, lost = gemm.terms(products(1, [1024, 4096], 3000), CHIP).seconds["traffic"]
    assert kept == pytest.approx(2 * 1024 * 3000 / (100 * 24 * 1.8e9) + (3000 + 1024) / 1e12)
    assert lost == pytest.approx(2 * 4096 * 3000 / 1e12, rel=1e-3)


def test_a_cache_slower_than_memory_keeps_nothing_back():
    slow = replace(CHIP, clock_hz=1e8)
    shapes = products(1, [1024, 4096], 3000)
    np.testing.assert_allclose(gemm.terms(shapes, slow).seconds["traffic"], shapes.moved_bytes / 1e12, rtol=2e-3)


def test_traffic_grows_with_every_size_and_falls_with_bandwidth_and_cache():
    random = np.random.default_rng(1)
    m, n, k = (np.ceil(2 ** random.uniform(0, 14, 400)) for _ in range(3))

    def traffic_s(shapes, hardware=CHIP):
        return gemm.terms(shapes, hardware).seconds["traffic"] * (1 + 1e-12)

    before = gemm.terms(products(m, n, k), CHIP).seconds["traffic"]
    for larger in (products(1.3 * m, n, k), products(m, 1.3 * n, k), products(m, n, 1.3 * k)):
        assert np.all(traffic_s(larger) >= before)
    for better in (replace(CHIP, bandwidth_bytes_per_s=1.5e12), replace(CHIP, cache_bytes=6e7)):
        assert np.all(gemm.terms(products(m, n, k), better).seconds["traffic"] <= before * (1 + 1e-12))


def test_each_wave_of_tiles_waits_once():
    one, full, more = gemm.terms(products(128, [1, 100 * 128, 100 * 128 + 1], 64), CHIP).seconds["latency_waves"]
    assert one == full == pytest.approx(more / 2)


def test_a_batch_of_products_is_as_many_tiles():
    one, many = gemm.terms(products(128, 128, 64, batch=[1.0, 400.0]), CHIP).features["even_waves"]
    assert many == pytest.approx(400 * one)


def test_latencies_run_with_the_clock():
    slow, fast = (gemm.terms(products(64, 64, 4096), replace(CHIP, clock_hz=clock)) for clock in (1e9, 2e9))
    for name in ("compute_chain", "results", "operands", "latency_depth", "latency_waves"):
        assert slow.seconds[name] == pytest.approx(2 * fast.seconds[name])
    assert slow.floor == pytest.approx(2 * fast.floor)


def test_features_do_not_depend_on_rates():
    shapes = products([1, 100, 5000], 512, 2048)
    fast = replace(CHIP, peak_flops_per_s=1e15, bandwidth_bytes_per_s=1e13, clock_hz=3e9)
    for name, values in gemm.terms(shapes, CHIP).features.items():
        np.testing.assert_array_equal(values, gemm.terms(shapes, fast).features[name])
        assert np.all(values > 0)


def test_an_empty_product_has_finite_terms():
    result = gemm.terms(products(0, 16, 16), CHIP)
    assert all(np.all(np.isfinite(x)) for x in (*result.seconds.values(), *result.features.values()))
    assert all(np.all(x > 0) for x in result.features.values())


CHIPS = ["h100-80gb-sxm", "rtx-4090", "t4", "b200-180gb-sxm"]
SIZES = st.integers(1, 20000)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(CHIPS), SIZES, SIZES, SIZES, st.integers(1, 64), st.floats(1, 9))
def test_a_larger_product_is_never_quicker_with_the_shipped_figures(chip_id, m, n, k, batch, factor):
    chip = CATALOG.chip(chip_id)
    sizes = {"m": m, "n": n, "k": k, "batch": batch}
    for kernel_class, dtype in (("gemm", "float16"), ("gemm", "float32"), ("gemm_batched", "float32")):
        for grown in sizes:
            pair = {name: np.array([size, np.ceil(size * factor) if name == grown else size]) for name, size in sizes.items()}
            element = 2.0 if dtype == "float16" else 4.0
            small, large = class_times(
                kernel_class,
                dtype,
                products(**pair, element=element),
                chip,
                precision="fp32",
                parameters=parameters(),
                calibration=calibration(chip),
            ).device_s
            assert large >= small * (1 - 1e-9), (kernel_class, grown)


def test_experts_of_few_rows_do_not_wait_for_each_wave():
    """256 products of 4,096 columns read what one of all columns reads; tiles of 8 rows hide each other's wait."""
    one, experts = (gemm.terms(products(8, n, 4096, batch=batch), CHIP).seconds for batch, n in ((1, 256 * 4096), (256, 4096)))
    assert experts["memory"] == pytest.approx(one["memory"], rel=0.01)
    assert experts["latency_waves"] < 0.1 * one["latency_waves"]
    full = gemm.terms(products(128, 4096, 4096, batch=256), CHIP).seconds["latency_waves"]
    assert full == pytest.approx(one["latency_waves"])
