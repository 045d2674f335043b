"""The job's data as micro-batches, with a position that can be saved and continued from."""

from gpuwise.runtime.data.loader import MicroBatchLoader

__all__ = ["MicroBatchLoader"]
