"""The virtual accelerator and the recorder, which turn a Program into a Trace."""

from gpuwise.tracing.family import trace_family
from gpuwise.tracing.rank_family import rank_family
from gpuwise.tracing.record import record

__all__ = ["rank_family", "record", "trace_family"]
