"""How long recording one step takes, and how much host memory it needs: an 8B Llama at sequence length 4096.

    python -m benchmarks.record_speed [JOB] [--seq-len N] [--precision P] [--recompute R] [--repeat N]

Aims: 5 seconds and 1 GB. Prints elapsed and processor seconds (the second is what counts on a busy machine) of each
repetition, and the largest resident memory of the process, PyTorch included.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time

from gpuwise.job import resolve
from gpuwise.strategy import PRECISIONS, RECOMPUTES, Strategy
from gpuwise.tracing import record

AIM_S, AIM_BYTES = 2.5, 0.7e9


def resident_bytes() -> int:
    """Largest resident memory so far; Linux counts it in KiB, macOS in bytes."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", nargs="?", default="llama3-8b")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--recompute", choices=RECOMPUTES, default="none")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"PyTorch and gpuwise loaded: {resident_bytes() / 1e6:,.0f} MB resident")
    strategy = Strategy(precision=options.precision, recompute=options.recompute)
    seconds = []
    for _ in range(options.repeat):
        start, processor = time.perf_counter(), time.process_time()
        trace = record(resolve(options.job, seq_len=options.seq_len), strategy)
        elapsed, used = time.perf_counter() - start, time.process_time() - processor
        seconds.append(used)
        print(
            f"{len(trace.sequence):,} positions, {len(trace.operations):,} distinct operations, "
            f"{len(trace.storages):,} storages: {elapsed:.2f} s elapsed, {used:.2f} s of processor"
        )
    median = statistics.median(seconds)  # the first one also loads what PyTorch loads late
    met = "met" if median <= AIM_S and resident_bytes() <= AIM_BYTES else "missed"
    print(
        f"median: {median:.2f} s of processor and {resident_bytes() / 1e6:,.0f} MB resident "
        f"(aims {AIM_S:.1f} s and {AIM_BYTES / 1e6:,.0f} MB: {met})"
    )


if __name__ == "__main__":
    main()
