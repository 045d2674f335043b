"""The kernels of each target (a CUDA build, older GPUs, a CPU), and the memory they take inside one call."""
