"""Early ends of a run: stop signals, a cloud that reclaims its machine, and time limits."""

from gpuwise.runtime.interruption.deadline import Deadline
from gpuwise.runtime.interruption.notices import Notice, NoticeSource
from gpuwise.runtime.interruption.providers import source_for
from gpuwise.runtime.interruption.reading import ReadGivenUp, ReadWatch
from gpuwise.runtime.interruption.signals import AT_ONCE, StopSignals
from gpuwise.runtime.interruption.stop import Stop, StopRequest
from gpuwise.runtime.interruption.watcher import Watcher

__all__ = [
    "AT_ONCE",
    "Deadline",
    "Notice",
    "NoticeSource",
    "ReadGivenUp",
    "ReadWatch",
    "Stop",
    "StopRequest",
    "StopSignals",
    "Watcher",
    "source_for",
]
