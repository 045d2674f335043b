"""Peak memory of a compiled training step: what the recording says, against torch.compile on this machine's CPU.

    python -m benchmarks.compiled_memory [--only TEXT]

Needs a C++ compiler. Every configuration runs in a process of its own, so that none frees what another left. Recordings
follow Inductor's rules without compiling (gpuwise.tracing.compile); the last column says by how much they differ.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from benchmarks.memory_on_cpu import Row, compare
from benchmarks.support.memory_cases import Case, cases
from gpuwise.strategy import Strategy

# Of the eager configurations, one of each family; their batches larger, so that activations make the peak.
LARGER = {
    "MLP, adamw": 256,
    "BERT, adamw": 4,
    "GPT-2, adamw": 4,
    "GPT-2, amp-bf16": 16,
    "Llama, adamw": 16,
    "Llama, adamw, full": 16,
    "Llama, selective": 16,
    "Llama, bf16, recomputed": 16,
    "ResNet-50, momentum": 4,
}


def compiled_cases() -> Iterator[Case]:
    eager = {case.name: case for case in cases()}
    for name, micro_batch in LARGER.items():
        case = eager[name.removesuffix(", full")]
        strategy: Strategy = case.strategy.but(compile=True, micro_batch=micro_batch)
        if name.endswith(", full"):
            strategy = strategy.but(recompute="full")
        yield replace(case, name=f"{name}, batch {micro_batch}", strategy=strategy)


def measure(name: str) -> Row:
    """Row of the configuration of this name, in a process that runs nothing else."""
    warnings.simplefilter("ignore")
    return compare(next(case for case in compiled_cases() if case.name == name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="configurations whose name contains this text")
    only = parser.parse_args().only.lower()
    names = [case.name for case in compiled_cases() if only in case.name.lower()]
    errors = []
    print(f"{'configuration':<36} {'predicted':>14} {'measured':>14} {'error':>12}")
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for row in processes.map(measure, names):
            errors.append(abs(row.error))
            print(f"{row.name:<36} {row.predicted:>14,} {row.measured:>14,} {row.error:>12.5%}", flush=True)
    if errors:
        print(f"median {statistics.median(errors):.5%}, largest {max(errors):.5%} of {len(errors)}")


if __name__ == "__main__":
    main()
