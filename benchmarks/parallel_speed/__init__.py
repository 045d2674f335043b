"""Speed of gpuwise on several ranks, beside plain PyTorch, accelerate and Lightning: python -m benchmarks.parallel_speed."""
