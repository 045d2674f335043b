"""Compares forecasts with published end-to-end results.

    python -m benchmarks.check_published --reference FOLDER --cache FOLDER [--subset TEXT] [--rows]

Prints the error by subset and precision, and by chip, rows seen by the fit apart from rows kept out. Needs PyTorch,
transformers and timm to record the models the first time; the recordings are kept in --cache.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.support.figures import error_line
from benchmarks.support.published import cases
from benchmarks.support.published_case import Case
from benchmarks.support.published_recordings import step_of
from gpuwise.cost import Forecast
from gpuwise.cost.calibration import Calibration, CalibrationFile, calibration
from gpuwise.cost.parameters import Parameters, parameters
from gpuwise.cost.price import price
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import link_inside
from gpuwise.hardware.types import Chip
from gpuwise.trace import Trace
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.data_parallel import data_parallel


def trace_of(case: Case, cache: Path) -> tuple[Trace, Communication]:
    """What one rank of a published row does, and what it exchanges."""
    return data_parallel(step_of(case, cache), case.strategy)


def forecast(case: Case, cache: Path, catalog: Catalog, figures: Parameters) -> Forecast:
    """Our forecast of a published row. Raises GpuwiseError where it cannot be had."""
    chip = catalog.chip(case.chip_id)
    trace, communication = trace_of(case, cache)
    cluster = Cluster(
        chip,
        case.count,
        case.machines,
        inside=link_inside(chip, case.count, catalog=catalog),
        between=catalog.link(case.network) if case.machines > 1 else None,
        between_serves=case.serves,
    )
    return price(
        trace,
        communication,
        cluster,
        strategy=case.strategy,
        data=case.data,
        parameters=figures,
        calibration=calibration_of(case, chip),
    )


def calibration_of(case: Case, chip: Chip) -> Calibration:
    """The shipped figures of a chip, with the case's own factors on kernels."""
    shipped = calibration(chip)
    if not case.kernels:
        return shipped
    own = CalibrationFile(case.subset, shipped.files[0].level, chip.id, {}, dict(case.kernels))
    return Calibration((own, *shipped.files), shipped.spreads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--subset", default="", help="only subsets whose name holds this text")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    catalog = Catalog()
    errors: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    refused: dict[str, int] = defaultdict(int)
    for case in cases(options.reference):
        if options.subset not in case.subset or case.chip_id not in catalog.chips:
            continue
        try:
            result = forecast(case, options.cache, catalog, parameters())
        except GpuwiseError as error:
            refused[f"{case.subset}: {error.what}"] += 1
            continue
        subset = f"{case.subset} {'fp16' if case.half else case.strategy.precision}"
        errors[subset, case.chip_id, case.kept_out].append(float(np.log(case.seconds / result.step_time_s.value)))
        if options.rows:
            bound = " ".join(f"{name} {share:.2f}" for name, share in result.bound.items())
            what = f"{case.job:36} {case.chip_id:16} {case.strategy.precision:9} {case.strategy.mode:6}"
            sizes = f"n={case.strategy.micro_batch:5} x{case.count * case.machines:4}"
            value = result.step_time_s.value
            times = f"measured {case.seconds:9.4f} s, forecast {value:9.4f} s, ratio {value / case.seconds:5.2f}"
            print(f"{what} {sizes} {times} {bound}")
    for subset in sorted({key[0] for key in errors}):
        for kept_out in (False, True):
            joined = [e for key, values in errors.items() if key[0] == subset and key[2] == kept_out for e in values]
            print(f"{subset}, {'kept out' if kept_out else 'seen'}: {error_line(np.array(joined))}")
            for key, values in sorted(errors.items()):
                if key[0] == subset and key[2] == kept_out:
                    print(f"    {key[1]:24} {error_line(np.array(values))}")
    for reason, count in refused.items():
        print(f"refused {count} rows: {reason}")


if __name__ == "__main__":
    main()
