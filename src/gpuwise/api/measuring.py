"""measure: what this machine really does, and the calibration that forecasts on it use from then on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwise.results.measurement import MachineMeasurement, Progress


def measure(*, quick: bool = False, progress: Callable[[Progress], None] | None = None) -> MachineMeasurement:
    """Microbenchmarks of this machine, its ceilings of arithmetic and bandwidth beside those of the datasheet, and a
    calibration file that `forecast(..., on="here")` uses at once. gpuwise.report.machine_picture draws it.

    Arguments:
        quick: fewer shapes, within about a minute on two cores; the whole sweep takes about five.
        progress: called before each microbenchmark, and after the last, with how far it is and the latest figure.

    Ctrl-C ends it early: the result has what was measured until then, with `complete` False.

    Raises:
        MissingDependencyError: without PyTorch or scipy.
        UnsupportedError: where there is nothing to measure on.
        InputError: where the calibration cannot be written.
    """
    for package in ("torch", "scipy"):
        if importlib.util.find_spec(package) is None:  # not imported here: the benchmarks run in processes of their own
            from gpuwise.job.dependencies import require

            require(package, purpose="measure this machine")
    from gpuwise.measure.run import measure as run

    return run(quick=quick, on_progress=progress)
