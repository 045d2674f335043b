"""Pooling: a thread reads the elements of one window one after the other, most of them from caches, so that windows that
overlap cost time that their bytes do not explain."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels import streaming
from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes

ELEMENT_S = 4e-10  # what a unit is taken to spend on an element of a window, before the calibrated scale
# Of a resize in PyTorch's layout: a thread a pixel of the result, which waits for memory once an image and channel
# (upsample_bilinear2d_out_frame in aten/src/ATen/native/cuda/UpSampleBilinear2d.cu); before the calibrated scale.
LOOP_S, BLOCK = 3e-7, 1024


def terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """memory: all bytes at full bandwidth. windows: elements of all windows (columns m and k, where recorded) dealt to the
    chip's units. loop: of a bilinear resize, the images and channels (m) that the thread of a pixel (of n) goes through, in
    waves of blocks over the units. Features: those of gpuwise.cost.kernels.streaming."""
    moved = streaming.terms(shapes, hardware)
    windows = ELEMENT_S * shapes.m * shapes.k / hardware.units
    loop = LOOP_S * shapes.m * np.ceil(shapes.n / BLOCK / hardware.units)
    return KernelTerms({"memory": moved.seconds["memory"], "windows": windows, "loop": loop}, moved.features)
