"""What gpuwise does on a real GPU, measured in three parts of at most 8 minutes: python -m benchmarks.gpu_session."""
