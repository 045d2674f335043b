"""Peak memory of a training step: what the recording says, against what this machine's CPU really allocates.

    python -m benchmarks.memory_on_cpu [--only TEXT] [--threads N]

Every configuration is recorded with the CPU's kernels under fake tensors, then the same Program runs for real under
PyTorch's profiler, whose records of allocations and frees are added up to the largest number of live bytes. The CPU
allocator does not round, so neither does the prediction here. Some kernels take a buffer for each thread, and others under
another instruction set: ONEDNN_MAX_CPU_ISA=AVX2 and ATEN_CPU_CAPABILITY=avx2 measure what an older processor allocates.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.support.memory_cases import Case, cases
from gpuwise.job import Job, checked_batch
from gpuwise.runtime.build.program import Program, build
from gpuwise.strategy import Strategy
from gpuwise.trace.memory import live_bytes
from gpuwise.tracing import record


@dataclass(frozen=True)
class Row:
    """One configuration, in bytes."""

    name: str
    predicted: int
    measured: int
    convolutions: bool = False

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def compare(case: Case, *, threads: int = 1) -> Row:
    """Predicted and measured peak of one configuration."""
    return Row(
        case.name,
        predicted_bytes(case.job, case.strategy, threads=threads),
        measured_bytes(case.job, case.strategy, threads=threads),
        case.convolutions,
    )


def predicted_bytes(job: Job, strategy: Strategy, *, threads: int = 1) -> int:
    """Peak of the recorded step with the CPU's kernels, in bytes as requested."""
    with on_threads(threads):
        trace = record(job, strategy, target="cpu").with_accumulation(strategy.accumulation)
    return live_bytes(trace, granule_bytes=1).peak_bytes


def measured_bytes(job: Job, strategy: Strategy, *, threads: int = 1) -> int:
    """Peak of the second real step, everything made before it included."""
    with (
        on_threads(threads),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        ) as profile,
    ):
        program = build(job, strategy, "cpu")
        _step(program)
        with torch.profiler.record_function("second step"):
            _step(program)
    events = profile.profiler.kineto_results.events()
    start_ns = next(e.start_ns() for e in events if e.name() == "second step")
    changes = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    live = np.cumsum([change.nbytes() for change in changes])
    return int(live[[change.start_ns() >= start_ns for change in changes]].max())


def _step(program: Program) -> None:
    for _ in range(program.strategy.accumulation):
        program.forward_backward(checked_batch(program.job, program.strategy.micro_batch))
    program.update()


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="configurations whose name contains this text")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    only = arguments.only
    warnings.simplefilter("ignore")
    rows = []
    print(f"{'configuration':<36} {'predicted':>14} {'measured':>14} {'error':>12}")
    for case in cases():
        if only.lower() in case.name.lower():
            rows.append(compare(case, threads=arguments.threads))
            print(f"{case.name:<36} {rows[-1].predicted:>14,} {rows[-1].measured:>14,} {rows[-1].error:>12.5%}", flush=True)
    for title, wanted in (("all", (False, True)), ("without convolutions", (False,))):
        results = [abs(row.error) for row in rows if row.convolutions in wanted]
        if results:
            print(f"{title}: median {statistics.median(results):.5%}, largest {max(results):.5%} of {len(results)}")


if __name__ == "__main__":
    main()
