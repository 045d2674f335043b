"""What every contestant imports, imported once: their processes are forked from one that has this module."""

from gpuwise.job.torchvision_cpu import make_importable

make_importable()  # torchmetrics, which Lightning needs, imports torchvision

import accelerate  # noqa: E402, F401
import lightning.pytorch  # noqa: E402
import lightning.pytorch.strategies  # noqa: E402, F401

import benchmarks.parallel_speed.contestants  # noqa: E402, F401
