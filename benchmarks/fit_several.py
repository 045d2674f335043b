"""Fits four figures to half of the published steps of MPT on eight GPUs of one machine (benchmarks/fit/split.py has the rule):

    python -m benchmarks.fit_several --reference FOLDER --cache FOLDER

The share of the boost clock at which an A100 and an H100 compute products for minutes (power_watts_per_tensor_tflops of
cost/data/efficiency.toml), and factors on attention and cross entropy of llm-foundry in 2023 (FOUNDRY_KERNELS of
benchmarks/support/published_several.py). Prints them with the errors of both halves. The H100's and the factors are copied by
hand; the A100's confirms that of another source.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from benchmarks.check_published import forecast, trace_of
from benchmarks.support.accuracy_several import is_fitted
from benchmarks.support.published import cases
from benchmarks.support.published_case import Case
from gpuwise.cost.calibration import calibration
from gpuwise.cost.clock import sustained_tensor_share
from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.parameters import Parameters, parameters
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.types import Chip
from gpuwise.trace import Trace

CHIPS = {"a100": "a100-80gb-sxm", "h100": "h100-80gb-sxm"}
PARTS = (*CHIPS, "attention", "loss", "others")


def parts(case: Case, cache: Path, catalog: Catalog) -> np.ndarray:
    """Seconds of PARTS: products at boost clock by generation, attention, the loss, and all else."""
    chip, plain = catalog.chip(case.chip_id), replace(case, kernels=())
    trace, _ = trace_of(plain, cache)
    sustained = _by_class(trace, chip, parameters())
    whole_s = forecast(plain, cache, catalog, parameters()).step_time_s.value
    at_boost = _by_class(trace, chip, replace(parameters(), power_watts_per_tensor_tflops={}))
    seconds = dict.fromkeys(PARTS, 0.0)
    for name, value in at_boost.items():
        if name.startswith("gemm"):
            seconds[case.chip_id.partition("-")[0]] += value
    for name, value in sustained.items():
        part = next((part for part in ("attention", "loss") if name.startswith(part)), None)
        if part:
            seconds[part] += value
    products_s = sum(value for name, value in sustained.items() if name.startswith("gemm"))
    # The rest, communication and the host's time among it.
    seconds["others"] = whole_s - products_s - seconds["attention"] - seconds["loss"]
    return np.array(list(seconds.values()))


def _by_class(trace: Trace, chip: Chip, figures: Parameters) -> dict[str, float]:
    """Seconds of the step by class of kernels."""
    times = kernel_times(trace, chip, figures, calibration(chip))
    per_class = np.bincount(times.kernel_class, weights=trace.counts() * times.device_s, minlength=len(times.names))
    return dict(zip(times.names, per_class.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    catalog = Catalog()
    rows = [case for case in cases(options.reference) if case.subset == "MPT FSDP" and case.count * case.machines == 8]
    seconds = np.array([parts(case, options.cache, catalog) for case in rows])
    measured, fitted = np.array([case.seconds for case in rows]), np.array([is_fitted(case) for case in rows])

    def errors(factors: np.ndarray) -> np.ndarray:
        return np.log(seconds @ np.append(factors, 1.0) / measured)

    best = minimize(lambda factors: np.abs(errors(factors)[fitted]).sum(), np.ones(4), method="Nelder-Mead").x
    for (name, chip_id), factor in zip(CHIPS.items(), best, strict=False):
        shipped = sustained_tensor_share(catalog.chip(chip_id), parameters())
        print(f"{name}: products at {1 / factor:.3f} of the boost clock, shipped {shipped:.3f}")
    print(f"attention {best[2]:.2f}, cross entropy {best[3]:.2f}")
    for name, half in (("fitted", fitted), ("unseen", ~fitted)):
        size = np.abs(np.expm1(errors(best)[half]))
        print(f"{name}: {half.sum()} rows, median error {np.median(size):.1%}, mean {size.mean():.1%}")


if __name__ == "__main__":
    main()
