"""How long small steps take on one core of this machine: rows that benchmarks.fit fits the CPU's eager kernels on.

    python -m benchmarks.cpu_steps [--only TEXT] [--write]

One thread, and the processor time of this process: on a shared machine that is far steadier than the clock on the wall, though
caches and memory are shared still. The median of at least five steps, after two to warm up; --write replaces
benchmarks/results/cpu_steps.csv.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from gpuwise.hardware.detect import detect_cpu
from gpuwise.job import Job, checked_batch, resolve
from gpuwise.runtime.build.program import build
from gpuwise.strategy import Strategy

RESULTS = Path(__file__).parent / "results" / "cpu_steps.csv"
# Job, sequence length (0: none), samples, modes; `compile` for steps that torch.compile makes.
CASES = [
    ("tabular-mlp", 0, 512, ("infer", "train")),
    ("gpt2", 128, 1, ("infer", "train")),
    ("bert-base", 128, 2, ("infer", "train")),
    ("timm:resnet18", 0, 1, ("infer", "train", "compile")),
    ("timm:resnet18", 0, 8, ("infer", "train")),
    ("timm:resnet50", 0, 2, ("infer", "train")),
    ("timm:mobilenetv3_small_100", 0, 4, ("infer", "train", "compile")),
    ("timm:efficientnet_b0", 0, 2, ("infer", "train")),
    ("timm:convnext_atto", 0, 4, ("infer", "train")),
    ("timm:vit_tiny_patch16_224", 0, 4, ("infer", "train", "compile")),
    ("timm:regnetx_002", 0, 4, ("infer", "train")),
    ("timm:densenet121", 0, 2, ("infer", "train")),
    ("timm:mixer_s32_224", 0, 4, ("infer", "train")),
    ("timm:vgg11", 0, 1, ("infer", "train")),
]
WARM_UP, FEWEST, LONGEST_S = 2, 5, 8.0


def strategy_of(samples: int, mode: str) -> Strategy:
    direction = "train" if mode == "train" else "infer"
    return Strategy(precision="fp32", micro_batch=samples, mode=direction, compile=mode == "compile")


def job_of(name: str, seq_len: int) -> Job:
    return resolve(name, seq_len=seq_len or None)


def measure(run: Callable[[], object]) -> list[float]:
    """Processor seconds of each of several steps."""
    for _ in range(WARM_UP):
        run()
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < FEWEST or time.perf_counter() - begun < LONGEST_S:
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="jobs whose name contains this text")
    parser.add_argument("--write", action="store_true", help="replace the rows of these jobs in the results file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cpu, rows = detect_cpu(), []
    for name, seq_len, samples, modes in CASES:
        for mode in modes if options.only in name else ():
            strategy, job = strategy_of(samples, mode), job_of(name, seq_len)
            program, batch = build(job, strategy, "cpu"), checked_batch(job, samples)
            seconds = measure(partial(program.step, [batch]) if mode == "train" else partial(program.infer, batch))
            rows.append(
                {
                    "job": name,
                    "seq_len": seq_len,
                    "samples": samples,
                    "mode": mode,
                    "median_s": statistics.median(seconds),
                    "least_s": min(seconds),
                    "steps": len(seconds),
                    "threads": 1,
                    "cpu": cpu.name,
                    "cores": cpu.cores,
                    "torch": torch.__version__,
                    "date": date.today().isoformat(),
                }
            )
            least = f"least {min(seconds):.4f}, {len(seconds)} steps"
            print(f"{name:28} {samples:4} {mode:8} {statistics.median(seconds):.4f} s ({least})", flush=True)
    if options.write:
        table = pd.DataFrame(rows)
        if RESULTS.exists():
            known = pd.read_csv(RESULTS)
            table = pd.concat([known[~known.job.isin(table.job)], table], ignore_index=True)
        RESULTS.parent.mkdir(exist_ok=True)
        table.round(6).to_csv(RESULTS, index=False)


if __name__ == "__main__":
    main()
