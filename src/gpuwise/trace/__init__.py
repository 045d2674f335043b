"""The trace of one rank's step: its tables in memory, its file, and other steps composed from it. No PyTorch here."""

from gpuwise.trace.family import Axis, TraceFamily, build_family, family_of_one
from gpuwise.trace.files import load, save
from gpuwise.trace.header import Header, RankGroup
from gpuwise.trace.loading import Loading, LoadingLog
from gpuwise.trace.memory import Live, live_bytes
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.data_parallel import data_parallel
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.trace.tables import (
    BEFORE,
    CATEGORIES,
    COLUMNS,
    KINDS,
    NO_GROUP,
    NO_LAYOUT,
    PHASES,
    OperationRow,
    Operations,
    OperationSequence,
    OperationValues,
    Storages,
    Waits,
)
from gpuwise.trace.trace import Trace

__all__ = [
    "BEFORE",
    "CATEGORIES",
    "COLUMNS",
    "KINDS",
    "NO_GROUP",
    "NO_LAYOUT",
    "PHASES",
    "Axis",
    "Communication",
    "Header",
    "Live",
    "Loading",
    "LoadingLog",
    "OperationRow",
    "OperationSequence",
    "OperationValues",
    "Operations",
    "RankGroup",
    "Storages",
    "Trace",
    "TraceFamily",
    "Waits",
    "build_family",
    "data_parallel",
    "family_of_one",
    "live_bytes",
    "load",
    "recorded_as",
    "save",
]
