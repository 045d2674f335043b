"""Fits what a host takes to launch steps, and says how well forecasts of launch-bound steps hold.

    python -m benchmarks.fit_host --reference FOLDER --cache FOLDER

Prints the seconds of an operation on each host that was measured, the share of one that a cast takes, and how many operations
a checkpointed block counts as, also by models of one width alone, which share their layers; then the errors of launch-bound
steps by host, models that set these figures apart from those kept out (benchmarks/fit/split.py). They are copied by hand:
host_operation_s, host_factor and host_spread of cost/data/efficiency.toml, the others of cost/host.py. Needs PyTorch and timm
to record the models the first time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.support.figures import error_line
from benchmarks.support.launch_bound import LAUNCH_BOUND, LaunchedStep, errors, launched_steps
from gpuwise.cost.host import CAST, CHECKPOINT, calls, host_factor, host_s
from gpuwise.cost.parameters import parameters

HOST_OVER_KERNELS = 1.3  # by forecast, of steps that the host bounds for any time of its kernels
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


def of_a_checkpoint(steps: Sequence[LaunchedStep]) -> float:
    """Operations of forward that a checkpointed block counts as, from steps without stages; all else as shipped."""
    figures = parameters()
    checkpoints, rest = [], []
    for step in steps:
        trace = step.trace
        runs = float((calls(trace) >= CHECKPOINT) @ trace.repeats)
        # Blocks are computed again in the phase "recompute", whose operations take what those of forward do.
        shipped_s = host_s(trace, step.cluster.chip, figures, step.ranks[0].communication)
        each_s = host_factor(step.cluster.chip, figures) * figures.host_operation_s["recompute"]
        checkpoints.append(runs * each_s / step.seconds)
        rest.append(1 - shipped_s / step.seconds + CHECKPOINT * runs * each_s / step.seconds)
    return float(np.dot(checkpoints, rest) / np.dot(checkpoints, checkpoints))


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
    several = [step for step in setting if step.strategy.mode == "train"]
    print(f"a checkpointed block: {of_a_checkpoint(several):.1f} operations, shipped {CHECKPOINT}, {len(several)} steps")
    for width in sorted({step.model.partition("x")[0] for step in several}):
        of_width = [step for step in several if step.model.startswith(width)]
        print(f"    by models of width {width}: {of_a_checkpoint(of_width):.1f}, {len(of_width)} steps")
    for (host, out), part in rows[rows.launch > LAUNCH_BOUND].groupby(["host", "kept_out"]):
        print(
            f"{host}, {'kept out' if out else 'seen'}: {error_line(part.log_error.to_numpy())}, inside {part.inside.mean():.0%}"
        )


if __name__ == "__main__":
    main()
