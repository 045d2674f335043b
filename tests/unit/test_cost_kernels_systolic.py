"""Terms of TPUs and other chips that run a compiled graph: padding to the array, fusion, provenance of their figures."""

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.cost.calibration import calibration
from gpuwise.cost.kernels import systolic
from gpuwise.cost.kernels.classes import terms_of
from gpuwise.cost.kernels.shapes import Hardware, Shapes
from gpuwise.cost.kernels.times import hardware_of
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import family
from gpuwise.hardware.catalog import Catalog

CATALOG = Catalog()
SMALL, WIDE = (Hardware(1e14, 1e12, 1, 0, array_side=side) for side in (128, 256))


def product(m, n, k):
    m, n, k = (np.atleast_1d(np.asarray(x, float)) for x in (m, n, k))
    zero = np.zeros(np.broadcast(m, n, k).shape)
    return Shapes(
        flops=2 * m * n * k,
        bytes_read=2 * (m * k + n * k),
        bytes_written=2 * m * n,
        kernels=zero + 1,
        batch=zero + 1,
        m=m + zero,
        n=n + zero,
        k=k + zero,
        causal=zero,
        element_bytes=zero + 2,
    )


def compute_s(shapes, hardware=SMALL, kernel_class="gemm"):
    return systolic.terms(kernel_class, shapes, hardware).seconds["compute"]


def test_whole_tiles_are_not_padded():
    assert compute_s(product(4096, 1024, 512)) == pytest.approx(2 * 4096 * 1024 * 512 / 1e14)


@pytest.mark.parametrize(
    ("m", "n", "k", "times"), [(1024, 129, 128, 256 / 129), (1024, 128, 64, 2), (1028, 128, 128, 1032 / 1028)]
)
def test_operands_are_padded_to_the_array(m, n, k, times):
    assert compute_s(product(m, n, k)) == pytest.approx(times * 2 * m * n * k / 1e14)


def test_a_wider_array_pads_more():
    heads = product(2048, 2048, 128)
    assert compute_s(heads, WIDE) == pytest.approx(2 * compute_s(heads, SMALL))


def test_few_rows_wait_for_the_weights_to_load():
    few, full = compute_s(product([4, 128], 1024, 1024))
    assert few == pytest.approx(full)


def test_padding_never_costs_more_than_the_vector_unit():
    """A depthwise convolution: one output and nine numbers a group."""
    shapes = product(3136, 1, 9)
    assert compute_s(shapes, kernel_class="conv_depthwise") == pytest.approx(systolic.VECTOR_TIMES * shapes.flops / 1e14)


@pytest.mark.parametrize("grown", range(3))
def test_a_larger_product_is_never_quicker(grown):
    for hardware in (SMALL, WIDE):
        shape = [96.0, 96.0, 96.0]
        shape[grown] = np.arange(1, 1200, dtype=float)
        seconds = compute_s(product(*shape), hardware)
        assert (np.diff(seconds) >= -1e-18).all()


def test_sides_of_the_arrays_of_the_catalog():
    sides = {
        name: hardware_of(CATALOG.chip(name), parameters()).array_side for name in ("tpu-v3", "tpu-v5p", "tpu-v6e", "tpu-v7")
    }
    assert sides == {"tpu-v3": 128, "tpu-v5p": 128, "tpu-v6e": 256, "tpu-v7": 256}
    assert set(systolic.ARRAY_SIDE) <= {chip.architecture for chip in CATALOG.chips.values()}


def test_elementwise_work_is_mostly_fused_away():
    entry = calibration(CATALOG.chip("tpu-v5e")).find("elementwise").entry
    shapes = product(4096, 4096, 1)
    terms = terms_of("elementwise", shapes, SMALL, "systolic")
    assert entry.join_s(entry.parts_s(terms.seconds, terms.features)) < shapes.moved_bytes / 1e12


@pytest.mark.parametrize("name", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v7", "gaudi2", "gaudi3", "trainium1"])
def test_chips_with_published_runs_have_a_file_of_their_architecture(name):
    result = calibration(CATALOG.chip(name)).find("gemm", "bf16")
    assert result.level == "architecture"
    assert 0.5 < 1 / (result.scale * result.entry.terms["compute"].scale) < 0.95  # share of the peak


def test_the_rest_stand_on_their_datasheet():
    others = [chip for chip in CATALOG.chips.values() if family(chip) == "systolic" and chip.peak_flops_per_s.get("bf16")]
    files = {"TPU v4", "TPU v5e", "TPU v5p", "TPU7x", "Gaudi2", "Gaudi3", "NeuronCore-v2"}
    for chip in others:
        level = calibration(chip).find("gemm", "bf16").level
        assert level == ("architecture" if chip.architecture in files else "family"), chip.id


def test_more_bandwidth_or_arithmetic_is_never_slower():
    shapes = product(np.array([8.0, 100.0, 4096.0]), 512.0, 300.0)
    for faster in (replace(SMALL, peak_flops_per_s=2e14), replace(SMALL, bandwidth_bytes_per_s=2e12)):
        for name, seconds in systolic.terms("gemm", shapes, SMALL).seconds.items():
            assert (systolic.terms("gemm", shapes, faster).seconds[name] <= seconds).all()
