"""Output of a run: a live panel or plain lines, the log, and writers for TensorBoard and Weights & Biases."""

from gpuwise.runs.log_records import read_log
from gpuwise.runtime.show.displays import Display, LineDisplay, Silent
from gpuwise.runtime.show.kinds import display
from gpuwise.runtime.show.log import RunLog, StepRecord
from gpuwise.runtime.show.log_stream import LogStream, is_stream
from gpuwise.runtime.show.update import LastCheckpoint, ProgressUpdate
from gpuwise.runtime.show.writers import Fanout, Writer, writer

__all__ = [
    "Display",
    "Fanout",
    "LastCheckpoint",
    "LineDisplay",
    "LogStream",
    "ProgressUpdate",
    "RunLog",
    "Silent",
    "StepRecord",
    "Writer",
    "display",
    "is_stream",
    "read_log",
    "writer",
]
