"""Health checks of a run: losses, stalls, memory and disk. Each finding is a sentence with numbers."""

from gpuwise.runtime.health.bad_batch import write_bad_batch
from gpuwise.runtime.health.bad_input import bad_input
from gpuwise.runtime.health.disk import DiskWatch
from gpuwise.runtime.health.first_update import FirstUpdate
from gpuwise.runtime.health.losses import LossEvent, LossWatch
from gpuwise.runtime.health.out_of_memory import MemoryView, explain, is_out_of_memory
from gpuwise.runtime.health.stall import Stall, StallWatch

__all__ = [
    "DiskWatch",
    "FirstUpdate",
    "LossEvent",
    "LossWatch",
    "MemoryView",
    "Stall",
    "StallWatch",
    "bad_input",
    "explain",
    "is_out_of_memory",
    "write_bad_batch",
]
