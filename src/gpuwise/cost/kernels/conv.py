"""Convolutions as implicit matrix products: m output positions, n output channels, k numbers of a kernel, batch groups.

A library chooses among a few sizes of output tile; its choice is priced as the quickest of them, in whole waves over the
chip's units. How often an input is read again (`reuse`: 9 for 3×3 at stride 1) follows from the bytes, and tells where
Winograd's algorithms do fewer multiplications (Lavin and Gray, arXiv:1509.09308): cuDNN takes them in fp32.
"""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes

# Rows × columns of output tiles that cuDNN has kernels for, and the time of one multiplication relative to the largest:
# fitted with the figures of `winograd` on fp32 convolutions of P4, T4, V100 and A100 (sitar-lab/NeuSight), all chips alike.
TILES = ((128.0, 128.0, 1.0), (128.0, 64.0, 1.1), (128.0, 32.0, 1.2), (64.0, 64.0, 1.65), (32.0, 32.0, 2.3))

# Of a unit's vector lanes, before the calibrated scale: 128 multiply-adds at 1 GHz.
VECTOR_FLOPS_PER_S = 256e9


def terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """compute: operations at the peak in whole tiles and waves (depthwise without tiles). memory: operands and result once at
    full bandwidth. winograd: the quickest of a direct 3×3 convolution and Winograd's, transforms and all; else as compute.
    library: bytes of depthwise ones that cuDNN computes; direct: multiplications in groups on the vector units.

    Features: depth k; columns n; rows m; waves, the work of a unit in the largest tiles, idle places counted; winograd_waves,
    the term of that name in the same measure (with its term alone it rises, so that neither grows while the other rests);
    reuse, of each input; cached, bytes over those of the cache.
    """
    groups, m, n, k = _sizes(shapes)
    depthwise = (groups > 1) & (n <= 1)  # kernels of their own, without tiles
    in_library = depthwise & _in_library(shapes)
    fill = np.where(depthwise, 1.0, filled(groups, m, n, hardware.units))
    compute_s = shapes.flops / hardware.peak_flops_per_s / fill
    read_again = reuse(shapes)
    memory_s = shapes.moved_bytes / hardware.bandwidth_bytes_per_s
    winograd_s = np.where(_is_3x3(shapes, read_again), winograd(shapes, hardware), compute_s)
    full_tile_s = 2 * TILES[0][0] * TILES[0][1] * k * hardware.units / hardware.peak_flops_per_s
    return KernelTerms(
        {
            "compute": compute_s,
            "memory": memory_s,
            "library": np.where(in_library, memory_s, 0.0),
            "direct": np.where(_direct(shapes), shapes.flops / (VECTOR_FLOPS_PER_S * hardware.units), 0.0),
            "winograd": winograd_s,
        },
        {
            "k": k,
            "m": m,
            "n": n,
            "waves": np.maximum(groups * m * n / fill / (TILES[0][0] * TILES[0][1] * hardware.units), 1e-6),
            "winograd_waves": np.maximum(winograd_s / full_tile_s, 1e-6),
            "reuse": read_again,
            "cached": np.maximum(shapes.moved_bytes / np.maximum(hardware.cache_bytes, 1.0), 1e-6),
        },
    )


def _sizes(shapes: Shapes) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    groups, m, n, k = (np.maximum(x, 1.0) for x in (shapes.batch, shapes.m, shapes.n, shapes.k))
    return groups, m, n, k


def filled(groups: np.ndarray | float, m: np.ndarray, n: np.ndarray, units: np.ndarray | float) -> np.ndarray:
    """Share of a chip's multipliers at work, at best: tiles hang over the edges and the last wave is not full."""
    cost = np.full(np.shape(m), np.inf)
    for rows, columns, relative in TILES:
        waves = np.ceil(groups * np.ceil(m / rows) * np.ceil(n / columns) / units)
        cost = np.minimum(cost, relative * waves * rows * columns * units)
    return groups * m * n / cost


def reuse(shapes: Shapes) -> np.ndarray:
    """How many times a matrix product reads each input: about (kernel size / stride)². At least 1/16, at most 1024."""
    groups, m, n, k = _sizes(shapes)
    passed_back = np.where(shapes.kernels > 1, m * n, 0.0)  # a backward call reads the result's gradient, too
    inputs = shapes.bytes_read / shapes.element_bytes - groups * (n * k + passed_back)
    return np.clip(groups * m * k / np.maximum(inputs, 1.0), 1 / 16, 1024.0)


def _in_library(shapes: Shapes) -> np.ndarray:
    """Depthwise convolutions that PyTorch gives to cuDNN and not to a kernel of its own: in fp16, of 1×1, 3×3 or 5×5 and 32
    channels or more, at stride 2 of 256 (use_cudnn_depthwise in aten/src/ATen/native/Convolution.cpp; widths left out)."""
    strided = shapes.k > 2 * reuse(shapes)
    return (shapes.element_bytes == 2) & np.isin(shapes.k, (1, 9, 25)) & (shapes.batch >= np.where(strided, 256, 32))


def _direct(shapes: Shapes) -> np.ndarray:
    """Convolutions in groups whose multiplications may run on the vector units: depthwise ones of PyTorch's own kernels, and
    wider ones unless their groups fill the tiles of tensor cores: by published trainings in channels-last those of ResNeXt
    (4, 8, 16 or 32 channels each in a multiple of 32 groups) do, those of RegNet and NFNet do not."""
    groups, _, n, _ = _sizes(shapes)
    fills = (groups % 32 == 0) & np.isin(n, (4, 8, 16, 32))
    return (groups > 1) & np.where(n <= 1, ~_in_library(shapes), ~fills)


def _is_3x3(shapes: Shapes, read_again: np.ndarray) -> np.ndarray:
    """3×3 at stride 1 in one group: inputs read 9 times, a little less where the edges are not padded."""
    return (shapes.batch <= 1) & (shapes.k % 9 == 0) & (read_again > 6.5) & (read_again < 9.1)


def leaves_out(shapes: Shapes) -> np.ndarray:
    """Which fp32 convolutions an algorithm may compute with fewer multiplications than are counted: at stride 1 those of images
    with filters of 3×3 and more, by Winograd's or by Fourier transforms. There is none for 1×1 and strided ones, and cuDNN has
    Winograd's for images alone (cudnnConvolutionFwdAlgo_t): 3×3×3 at stride 1, whose inputs are read 27 times, has none."""
    read_again = reuse(shapes)
    volumes = (shapes.k % 27 == 0) & (read_again > 20) & (read_again < 27.5)
    return np.asarray((read_again > 6.5) & ~volumes)


def winograd(shapes: Shapes, hardware: Hardware) -> np.ndarray:
    """Seconds of the quickest way to a 3×3 convolution at stride 1: directly, by tiles of 2×2 outputs in one kernel (16
    multiplications instead of 36), or by tiles of 4×4 through memory (36 instead of 144). Factors are fitted: see TILES.
    """
    _, m, n, k = _sizes(shapes)
    channels, calls = k / 9, np.maximum(shapes.kernels, 1.0)
    peak, byte_s = hardware.peak_flops_per_s, shapes.element_bytes / hardware.bandwidth_bytes_per_s
    tiles2, tiles4 = image_tiles(shapes, 2.0), image_tiles(shapes, 4.0)
    moved, weights = m * (channels + n), channels * n
    direct = 2 * m * n * (k + 5) / peak / filled(1.0, m, n, hardware.units) + byte_s * (moved + 36 * weights)
    fused = 2 * 16 * tiles2 * n * (channels + 37) / peak / filled(1.0, tiles2, n, hardware.units)
    fused = 1.1 * fused + byte_s * (0.85 * moved + 550 * weights)
    staged = 2 * 36 * tiles4 * n * (channels + 6) / peak / filled(36.0, tiles4, n, hardware.units)
    staged = staged + 36 * byte_s * (4.5 * tiles4 * (channels + n) + 6.8 * weights)
    return calls * np.minimum(direct, np.minimum(fused, staged))


def image_tiles(shapes: Shapes, side: float) -> np.ndarray:
    """Tiles of side × side outputs that cover all images, taken as squares; images smaller than a tile need a whole one."""
    images = np.maximum(np.minimum(shapes.images, shapes.m), 1.0)
    return images * np.ceil(np.sqrt(np.maximum(shapes.m, 1.0) / images) / side - 1e-9) ** 2
