"""Kernel models: terms that follow from shapes and datasheets, one module a kind of kernel; `times` joins them."""

from gpuwise.cost.kernels.times import ClassTimes, KernelTimes, class_times, kernel_times

__all__ = ["ClassTimes", "KernelTimes", "class_times", "kernel_times"]
