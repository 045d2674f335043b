"""Convolutions as implicit matrix products: tiles, waves, reuse of inputs, Winograd."""

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.cost.calibration import calibration
from gpuwise.cost.kernels import conv
from gpuwise.cost.kernels.limits import most_flops_per_s
from gpuwise.cost.kernels.shapes import Hardware, Shapes
from gpuwise.cost.kernels.times import class_times
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog

CHIP = Hardware(peak_flops_per_s=1e13, bandwidth_bytes_per_s=1e12, units=80, cache_bytes=4e6)


def convolution(images, channels, outputs, side, *, kernel=3, stride=1, groups=1, element=4.0, backward=False, known=True):
    """A padded convolution that divides an image's side by its stride."""
    sizes = (np.atleast_1d(np.asarray(x, dtype=float)) for x in (images, channels, outputs, side, kernel))
    images, channels, outputs, side, kernel = np.broadcast_arrays(*sizes)
    one = np.ones(images.shape)
    m, n, k, passes = images * (side // stride) ** 2, outputs / groups, channels / groups * kernel**2, 1 + backward
    inputs, weights, results = images * channels * side**2, outputs * k, m * outputs
    read = element * (inputs + weights + results * backward)
    written = element * (inputs + weights if backward else results)
    return Shapes(
        flops=2 * groups * m * n * k * passes,
        bytes_read=read,
        bytes_written=written,
        kernels=one * passes,
        batch=one * groups,
        m=m,
        n=n,
        k=k,
        causal=0 * one,
        element_bytes=one * element,
        images=images if known else one,
    )


def of(shapes, name="compute", chip=CHIP):
    return float(conv.terms(shapes, chip).seconds[name][0])


def test_a_convolution_that_fills_the_chip_runs_at_its_peak():
    full = convolution(80, 256, 128, 128, kernel=1)
    assert of(full) == pytest.approx(float(full.flops[0]) / CHIP.peak_flops_per_s)


def test_a_last_wave_takes_as_long_as_a_full_one():
    tiles = [conv.filled(1.0, np.array([rows]), np.array([128.0]), 80) for rows in (128.0 * 80, 128.0 * 81)]
    assert tiles[0] == 1
    assert tiles[1] < 0.9


def test_few_channels_do_not_fill_a_tile():
    assert conv.filled(1.0, np.array([1e6]), np.array([8.0]), 80) < 0.25


def test_depthwise_convolutions_are_not_priced_by_tiles():
    depthwise = convolution(32, 128, 128, 56, groups=128)
    assert of(depthwise) == pytest.approx(float(depthwise.flops[0]) / CHIP.peak_flops_per_s)


@pytest.mark.parametrize(("kernel", "stride", "expected"), [(1, 1, 1), (3, 1, 9), (5, 1, 25), (3, 2, 2.25), (1, 2, 0.25)])
@pytest.mark.parametrize("backward", [False, True])
def test_reuse_of_inputs_tells_kernel_and_stride(kernel, stride, expected, backward):
    shapes = convolution(8, 64, 96, 56, kernel=kernel, stride=stride, backward=backward)
    assert conv.reuse(shapes) == pytest.approx(expected)


def test_winograd_does_less_than_a_direct_convolution_where_it_applies():
    shapes = convolution(32, 256, 256, 56)
    assert of(shapes) / 4 < of(shapes, "winograd") < of(shapes) / 1.5
    assert of(convolution(32, 256, 256, 56, backward=True), "winograd") == pytest.approx(2 * of(shapes, "winograd"))


@pytest.mark.parametrize("options", [{"kernel": 1}, {"kernel": 5}, {"stride": 2}, {"groups": 4}, {"kernel": 7, "stride": 2}])
def test_other_convolutions_are_direct(options):
    shapes = convolution(32, 36, 64, 56, **options)
    assert of(shapes, "winograd") == of(shapes)


def test_images_smaller_than_a_tile_waste_it():
    seven, eight = convolution(32, 256, 256, 7), convolution(32, 256, 256, 8)
    assert conv.image_tiles(seven, 4.0) == conv.image_tiles(eight, 4.0) == 32 * 4
    unknown = convolution(32, 256, 256, 7, known=False)
    assert conv.image_tiles(unknown, 4.0) == 100  # one image of 39.6 × 39.6


@pytest.mark.parametrize("backward", [False, True])
def test_a_larger_batch_or_slower_chip_never_takes_less_time(backward):
    random = np.random.default_rng(0)
    channels, outputs = (random.integers(1, 512, 400).astype(float) for _ in range(2))
    images, side = random.integers(1, 32, 400).astype(float), random.integers(3, 64, 400).astype(float)
    small, large = (convolution(factor * images, channels, outputs, side, backward=backward) for factor in (1, 3))
    slow = replace(CHIP, peak_flops_per_s=5e12, bandwidth_bytes_per_s=6e11)
    result, larger, slower = conv.terms(small, CHIP), conv.terms(large, CHIP), conv.terms(small, slow)
    for name, seconds in result.seconds.items():
        assert (larger.seconds[name] >= seconds * (1 - 1e-9)).all(), name
        assert (slower.seconds[name] >= seconds).all(), name
    for name, values in result.features.items():
        assert (values > 0).all()
        if name != "winograd_waves":
            np.testing.assert_array_equal(slower.features[name], values)
    # That one is the measure of its term: under any curve over it that falls no faster than its square root, the term grows.
    curved = [t.seconds["winograd"] / t.features["winograd_waves"] ** 0.5 for t in (result, larger, slower)]
    assert (curved[1] >= curved[0] * (1 - 1e-9)).all()
    assert (curved[2] >= curved[0] * (1 - 1e-9)).all()


def volumes(images, channels, outputs, side, *, kernel=3):
    """A padded convolution of volumes at stride 1, in fp32."""
    m, k = images * side**3, channels * kernel**3
    one = np.ones(1)
    return Shapes(
        flops=2 * one * m * outputs * k,
        bytes_read=4 * one * (m * channels + outputs * k),
        bytes_written=4 * one * m * outputs,
        kernels=one,
        batch=one,
        m=m * one,
        n=outputs * one,
        k=k * one,
        causal=0 * one,
        element_bytes=4 * one,
        images=images * one,
    )


@pytest.mark.parametrize(
    ("shapes", "fewer"),
    [
        (convolution(32, 64, 64, 56), True),  # 3×3: Winograd's
        (convolution(32, 64, 64, 56, kernel=5), True),  # Fourier transforms
        (convolution(32, 256, 64, 56, kernel=1), False),
        (convolution(32, 64, 128, 56, stride=2), False),
        (volumes(4, 32, 32, 128), False),
        (volumes(4, 32, 32, 128, kernel=1), False),
    ],
)
def test_only_filters_of_images_at_stride_1_need_fewer_multiplications(shapes, fewer):
    assert bool(conv.leaves_out(shapes)[0]) is fewer


@pytest.mark.parametrize("name", ["v100-sxm2-32gb", "t4", "p4"])
def test_volumes_in_fp32_run_at_the_peak_at_most(name):
    chip, figures = Catalog().chip(name), parameters()
    shapes = volumes(4, 32, 32, 128)
    times = class_times("conv", "float32", shapes, chip, precision="fp32", parameters=figures, calibration=calibration(chip))
    peak = most_flops_per_s(chip, times.units)
    assert float(shapes.flops[0] / times.device_s[0]) <= peak
