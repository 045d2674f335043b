"""The Job: what to train, and how the JOB argument of a command becomes one.

Importing this package needs no PyTorch; resolving or building a job does.
"""

from gpuwise.job.batches import checked_batch
from gpuwise.job.blocks import repeated_blocks
from gpuwise.job.classical import ClassicalJob
from gpuwise.job.job import SCHEDULES, Job, fingerprint
from gpuwise.job.resolve import resolve

__all__ = ["SCHEDULES", "ClassicalJob", "Job", "checked_batch", "fingerprint", "repeated_blocks", "resolve"]
