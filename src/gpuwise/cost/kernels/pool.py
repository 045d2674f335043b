"""Pooling: a thread reads the elements of one window one after the other, most of them from caches, so that windows that
overlap cost time that their bytes do not explain."""

from __future__ import annotations

from gpuwise.cost.kernels import streaming
from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes

ELEMENT_S = 4e-10  # what a unit is taken to spend on an element of a window, before the calibrated scale


def terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """memory: all bytes at full bandwidth. windows: elements of all windows (columns m and k, where recorded) dealt to the
    chip's units. Features: those of gpuwise.cost.kernels.streaming."""
    moved = streaming.terms(shapes, hardware)
    windows = ELEMENT_S * shapes.m * shapes.k / hardware.units
    return KernelTerms({"memory": moved.seconds["memory"], "windows": windows}, moved.features)
