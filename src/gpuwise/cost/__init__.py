"""A Trace on a Chip: kernel times, communication, memory, energy -> Forecast. No PyTorch here."""

from gpuwise.cost.forecast import Forecast, Interval, MemoryForecast

__all__ = ["Forecast", "Interval", "MemoryForecast"]
