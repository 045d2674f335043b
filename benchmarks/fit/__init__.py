"""Fits the calibration files of gpuwise.cost on public measurements: python -m benchmarks.fit --help."""
