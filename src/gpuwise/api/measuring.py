"""measure: the real speed of this machine, and the calibration that later forecasts on it use."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuwise.api.plain_arguments import plainly

if TYPE_CHECKING:
    from gpuwise.results.measurement import MachineMeasurement, Progress


@plainly
def measure(*, quick: bool = False, progress: Callable[[Progress], None] | None = None) -> MachineMeasurement:
    """Runs microbenchmarks on this machine.

    The result has the ceilings of arithmetic and bandwidth beside those of the datasheet. A calibration file is written that
    `forecast(..., on="here")` uses at once. gpuwise.report.machine_picture draws the result.

    Arguments:
        quick: whether to measure fewer shapes, in about a minute on two cores; the whole sweep takes about five.
        progress: called with a Progress before each microbenchmark and after the last.

    Ctrl-C ends it early: the result then has the measurements so far, with `complete` False.

    Raises:
        MissingDependencyError: PyTorch or scipy is missing.
        UnsupportedError: there is no device to measure.
        InputError: the calibration cannot be written.
    """
    for package in ("torch", "scipy"):
        if importlib.util.find_spec(package) is None:  # not imported here: the benchmarks run in processes of their own
            from gpuwise.job.dependencies import require

            require(package, purpose="measure this machine", extra="measure")
    from gpuwise.measure.run import measure as run

    return run(quick=quick, on_progress=progress)
