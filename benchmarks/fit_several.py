"""Fits three figures to half of the published steps of MPT on eight GPUs of one machine (benchmarks/fit/split.py has the rule):

    python -m benchmarks.fit_several --reference FOLDER --cache FOLDER

What bf16 products of an A100 keep up for minutes (sustained_bf16_products of cost/data/efficiency.toml), and factors on
attention and cross entropy of llm-foundry in 2023 (FOUNDRY_KERNELS of benchmarks/support/published_several.py). Prints them
with the errors of both halves; the figures are copied by hand.
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
from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import capability, sustained_tensor_share
from gpuwise.hardware.catalog import Catalog

SCALED = ("products", "attention", "loss")
A100 = "8.0"


def parts(case: Case, cache: Path, catalog: Catalog) -> np.ndarray:
    """Seconds of products on an A100 at what its power keeps up, of attention, of the loss, and of all else."""
    chip, plain = catalog.chip(case.chip_id), replace(case, kernels=())
    figures = replace(parameters(), sustained_bf16_products={})
    trace, _ = trace_of(plain, cache)
    times = kernel_times(trace, chip, figures, calibration(chip))
    seconds = dict.fromkeys((*SCALED, "others"), 0.0)
    per_class = np.bincount(times.kernel_class, weights=trace.counts() * times.device_s, minlength=len(times.names))
    for name, value in zip(times.names, per_class.tolist(), strict=True):
        kind = {"gemm": "products" if capability(chip) == A100 else "others"}.get(name.split(".")[0], name.split(".")[0])
        seconds[next((part for part in SCALED if kind.startswith(part)), "others")] += value
    whole_s = forecast(plain, cache, catalog, figures).step_time_s.value
    seconds["others"] += whole_s - sum(seconds.values())  # communication, and what the host takes
    return np.array(list(seconds.values()))


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

    best = minimize(lambda factors: np.abs(errors(factors)[fitted]).sum(), np.ones(3), method="Nelder-Mead").x
    share = sustained_tensor_share(catalog.chip("a100-80gb-sxm"), parameters()) / best[0]
    print(f"sustained_bf16_products of the A100 {share:.3f}, attention {best[1]:.2f}, cross entropy {best[2]:.2f}")
    for name, half in (("fitted", fitted), ("unseen", ~fitted)):
        size = np.abs(np.expm1(errors(best)[half]))
        print(f"{name}: {half.sum()} rows, median error {np.median(size):.1%}, mean {size.mean():.1%}")


if __name__ == "__main__":
    main()
