"""Job + Strategy -> Program, and the loop that runs it."""

from gpuwise.runtime.loop import train
from gpuwise.runtime.program import Program, build
from gpuwise.runtime.result import ForecastCheck, StepTime, TrainResult

__all__ = ["ForecastCheck", "Program", "StepTime", "TrainResult", "build", "train"]
