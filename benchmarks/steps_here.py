"""What gpuwise does about steps on this CPU, with and without, in fresh processes that alternate:

    python -m benchmarks.steps_here [--rounds N] [--only freed|bound|observed|flushed]

freed: memory that is freed is kept (gpuwise.runtime.build.host_memory) or goes back to the system; steps of common presets.
bound: threads stay on their cores (OMP_PROC_BIND) or not; a step of the suite's MLP.
flushed: numbers too small to be normal are taken as zero (torch.set_flush_denormal) or not; vision transformers, whose masks
leave such numbers after a softmax, and one without a mask. gpuwise leaves PyTorch's default, which does not.
observed: what a step's operations add up to when each is timed (gpuwise.measure.observe), over the step that nobody watched.

Medians of the rounds, and the range of the rounds' own medians. 8 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from statistics import median

# Preset, sequence length (0: none), samples a step.
STEPS = (("alexnet", 0, 8), ("resnet50", 0, 4), ("vit-b16", 0, 2), ("bert-base", 128, 2), ("gpt2", 128, 2))
MASKED = (("timm:swin_tiny_patch4_window7_224", 2), ("timm:swinv2_tiny_window8_256", 1), ("timm:maxvit_tiny_tf_224", 1))
BOUND = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
TIMED, WARM = 7, 2
SHORT_TIMED = 1500
LEAST_S = 0.02  # of a network whose sum is compared: shorter ones are mostly what operations take beside their kernels


def step_s(name: str, seq_len: int, samples: int, *, keep: bool, flushed: bool = False, timed: int = TIMED) -> float:
    """Median seconds of steps of a preset or a member of the suite in this process."""
    import torch

    from gpuwise.job import checked_batch, resolve
    from gpuwise.measure.suite import SUITE
    from gpuwise.measure.suite_jobs import suite_job
    from gpuwise.measure.timing import wall_seconds
    from gpuwise.runtime.build.host_memory import keep_freed_memory
    from gpuwise.runtime.build.program import build
    from gpuwise.strategy import Strategy

    if keep:
        keep_freed_memory()
    torch.set_flush_denormal(flushed)
    torch.manual_seed(0)
    job = suite_job(SUITE[name]) if name == "mlp" else resolve(name, seq_len=seq_len or None)
    program, batch = build(job, Strategy(precision="fp32", micro_batch=samples), "cpu"), checked_batch(job, samples)
    return median([wall_seconds(lambda: program.step([batch])) for _ in range(WARM + timed)][WARM:])


def apart(request: dict[str, object], **environment: str) -> float:
    """That in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.steps_here", "--child", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return float(done.stdout)


def compared(name: str, without: list[float], having: list[float]) -> None:
    def figures(found: list[float]) -> str:
        return f"{median(found) * 1e3:9.4g} ms ({min(found) * 1e3:.4g} to {max(found) * 1e3:.4g})"

    ratio = median([a / b for a, b in zip(having, without, strict=True)])
    print(f"{name:24} without {figures(without):36} with {figures(having):36} ratio {ratio:.3f}", flush=True)


def freed(rounds: int) -> None:
    for name, seq_len, samples in STEPS:
        request = {"name": name, "seq_len": seq_len, "samples": samples}
        results = [[apart({**request, "keep": keep}) for keep in (False, True)] for _ in range(rounds)]
        compared(f"{name}, {samples} samples", [a for a, _ in results], [b for _, b in results])


def bound(rounds: int) -> None:
    request = {"name": "mlp", "seq_len": 0, "samples": 512, "keep": True, "timed": SHORT_TIMED}
    results = [(apart(request), apart(request, **BOUND)) for _ in range(3 * rounds)]
    compared("perceptron, 512 samples", [a for a, _ in results], [b for _, b in results])


def flushed(rounds: int) -> None:
    for name, samples in MASKED:
        request = {"name": name, "seq_len": 0, "samples": samples, "keep": True}
        results = [[apart({**request, "flushed": flush}) for flush in (False, True)] for _ in range(rounds)]
        compared(f"{name}, {samples} samples", [a for a, _ in results], [b for _, b in results])


def observed(rounds: int) -> None:
    import numpy as np
    import torch

    from gpuwise.measure.networks import NETWORKS
    from gpuwise.measure.observe import observe
    from gpuwise.runtime.build.host_memory import keep_freed_memory
    from gpuwise.strategy import Strategy

    keep_freed_memory()
    ratios, operations = [], 0
    for _, job, samples in NETWORKS:
        seen = observe(job, Strategy(precision="fp32", micro_batch=samples), torch.device("cpu"), steps=rounds)
        operations += seen.seconds.shape[1]
        if np.median(seen.step_s) > LEAST_S:
            ratios.append(float(np.median(seen.seconds, axis=0).sum() / np.median(seen.step_s)))
    print(
        f"{len(NETWORKS)} networks, {operations:,} operations; of {len(ratios)} steps over {1e3 * LEAST_S:.0f} ms the "
        f"operations add up to {min(ratios):.1%} to {max(ratios):.1%} of the step, median {median(ratios):.1%}"
    )


PARTS = {"freed": freed, "bound": bound, "observed": observed, "flushed": flushed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.child:
        print(step_s(**json.loads(options.child)))
        return
    for name in [options.only] if options.only else PARTS:
        PARTS[name](options.rounds)


if __name__ == "__main__":
    main()
