"""Job + Strategy -> Program, and the loop that runs it."""

from gpuwise.results.training import ForecastCheck, MemoryCheck, StepTime, TrainResult
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.runtime.run.training import TrainedStep, Training

__all__ = [
    "ForecastCheck",
    "MemoryCheck",
    "Program",
    "StepTime",
    "TrainResult",
    "TrainSettings",
    "TrainedStep",
    "Training",
]
