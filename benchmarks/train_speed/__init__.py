"""How fast gpuwise trains, beside hand-written loops and other trainers: python -m benchmarks.train_speed."""
