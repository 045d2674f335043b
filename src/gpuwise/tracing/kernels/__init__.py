"""Whose kernels a step takes: those of a CUDA build, of older GPUs or of a CPU, and what they hold inside one call."""
