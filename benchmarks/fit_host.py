"""Fits what a host takes to launch steps, and says how well forecasts of launch-bound steps hold.

    python -m benchmarks.fit_host --reference FOLDER --cache FOLDER

Prints the seconds of an operation on each host that was measured, the share of one that a cast takes, and how many operations
a checkpointed block and a micro-batch count as; then the errors of launch-bound steps by host, models that set
these figures apart from those kept out (benchmarks/fit/split.py). They are copied by hand: host_operation_s, host_factor and
host_spread of cost/data/efficiency.toml, the others of cost/host.py. Needs PyTorch and timm to record the models the first
time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from benchmarks.support.figures import error_line
from benchmarks.support.launch_bound import LAUNCH_BOUND, LaunchedStep, errors, launched_steps
from gpuwise.cost.host import CAST, CHECKPOINT, MICRO_BATCH, calls, collective_s
from gpuwise.cost.parameters import parameters
from gpuwise.trace.tables import PHASES

HOST_OVER_KERNELS = 1.3  # by forecast, of steps that the host bounds whatever its kernels take
_CASTS = np.arange(0.2, 0.8, 0.05)


def seconds_of_an_operation(step: LaunchedStep, *, cast: float) -> float:
    """What one operation of forward takes the host of an inference that its host bounds."""
    trace = step.trace
    operations = float((trace.repeats * np.where(calls(trace) == CAST, cast, 1.0)).sum())
    kernels = float(trace.counts() @ trace.operations.column("kernels"))
    return (step.seconds - kernels * parameters().host_kernel_s) / operations


def fitted_cast(steps: Sequence[LaunchedStep]) -> float:
    """The share of an operation at which operations of one host differ least between models and precisions."""
    hosts = sorted({step.host for step in steps})

    def spread(cast: float) -> float:
        logs = [[np.log(seconds_of_an_operation(s, cast=cast)) for s in steps if s.host == host] for host in hosts]
        return float(sum(np.square(np.array(one) - np.mean(one)).sum() for one in logs))

    return float(min(_CASTS, key=spread))


def beside_operations(steps: Sequence[LaunchedStep]) -> tuple[float, float]:
    """Operations of forward that a checkpointed block and a micro-batch count as, from steps without stages."""
    figures, rows, rest = parameters(), [], []
    of_phase = np.array([figures.host_operation_s[phase] for phase in PHASES])
    for step in steps:
        trace, counted = step.trace, calls(step.trace)
        again = counted >= CHECKPOINT
        plain = (np.where(again, counted - CHECKPOINT, counted) * of_phase[trace.sequence.phase]) @ trace.repeats
        kernels = float(trace.counts() @ trace.operations.column("kernels")) * figures.host_kernel_s
        collectives = sum(c.calls for c in step.ranks[0].communication.collectives if c.group.axis == "tp")
        rows.append([float(again @ trace.repeats), trace.accumulation])
        rest.append(step.seconds - plain - kernels - collectives * collective_s(figures))
    weight = 1 / np.array([step.seconds for step in steps])
    design = np.array(rows) * figures.host_operation_s["forward"]
    checkpoint, micro_batch = nnls(design * weight[:, None], np.array(rest) * weight)[0]
    return float(checkpoint), float(micro_batch)


def bound_by_launches(steps: Sequence[LaunchedStep], rows: pd.DataFrame) -> list[LaunchedStep]:
    """Those that set the figures, of models that are not kept out: inference of one sample and micro-batches of one without
    stages, on up to four tensor-parallel ranks (of eight the collectives last longer than launches); and small models
    in a desktop, whose calls all take as long."""
    single = (rows.host_over_kernels > HOST_OVER_KERNELS) & (rows.micro_batch == 1) & (rows.tp < 8)
    chosen = (single | (rows.host == "desktop")) & ~rows.kept_out
    return [step for step, yes in zip(steps, chosen, strict=True) if yes and step.strategy.mesh.pp == 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    steps = list(launched_steps(options.reference, options.cache))
    rows = errors(iter(steps), parameters())
    setting = bound_by_launches(steps, rows)
    single = [step for step in setting if step.strategy.mode == "infer"]
    cast = fitted_cast(single)
    print(f"a cast: {cast:.2f} operations, shipped {CAST}")
    for host in sorted({step.host for step in single}):
        each = 1e6 * np.array([seconds_of_an_operation(step, cast=cast) for step in single if step.host == host])
        mean = np.exp(np.log(each).mean())
        print(f"{host}: {mean:.1f} µs an operation, {each.min():.1f} to {each.max():.1f}, {len(each)} steps")
    named = zip(("a checkpointed block", "a micro-batch"), (CHECKPOINT, MICRO_BATCH), strict=True)
    several = [step for step in setting if step.strategy.mode == "train"]
    for (name, shipped), value in zip(named, beside_operations(several), strict=True):
        print(f"{name}: {value:.1f} operations, shipped {shipped}, {len(several)} steps")
    for (host, out), part in rows[rows.launch > LAUNCH_BOUND].groupby(["host", "kept_out"]):
        print(
            f"{host}, {'kept out' if out else 'seen'}: {error_line(part.log_error.to_numpy())}, inside {part.inside.mean():.0%}"
        )


if __name__ == "__main__":
    main()
