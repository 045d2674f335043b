"""How long recording one step takes, and how much host memory it needs: an 8B Llama at sequence length 4096.

    python -m benchmarks.record_speed [JOB] [--mesh MESH] [--rank N] [--sequence-parallel] [--compare] [--family]

Prints elapsed and processor seconds (the second is what counts on a busy machine) of each repetition, and the largest resident
memory of the process, PyTorch included. A rank of a mesh is recorded in a fake world of all its ranks. --compare records all
blocks of the model, too, in turns with the few that usually show the others, and says whether both recordings are equal.
--family records the family of meshes that the mesh belongs to, and says whether the step that follows from it is equal, too.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from unittest.mock import patch

import numpy as np

from gpuwise.job import resolve
from gpuwise.strategy import PRECISIONS, RECOMPUTES, Mesh, Parallelism, Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import rank_family, record

AIM_S, AIM_BYTES = 2.5, 0.7e9  # of one device
MESH_AIM_S, MESH_AIM_BYTES = 3.0, 1e9  # of a rank of several


def resident_bytes() -> int:
    """Largest resident memory so far; Linux counts it in KiB, macOS in bytes."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def recorded(options: argparse.Namespace, strategy: Strategy) -> tuple[Trace, float]:
    """A recording, and its seconds of processor."""
    start, processor = time.perf_counter(), time.process_time()
    trace = record(resolve(options.job, seq_len=options.seq_len), strategy, rank=options.rank)
    elapsed, used = time.perf_counter() - start, time.process_time() - processor
    print(
        f"{len(trace.sequence):,} positions, {len(trace.operations):,} distinct operations, "
        f"{len(trace.storages):,} storages: {elapsed:.2f} s elapsed, {used:.2f} s of processor",
        flush=True,
    )
    return trace, used


def all_blocks() -> AbstractContextManager[object]:
    """A context in which each block of a model is recorded."""
    return patch.object(importlib.import_module("gpuwise.tracing.record"), "few_blocks", lambda job, strategy: None)


def equal(a: Trace, b: Trace) -> bool:
    """Whether two traces are equal in every column."""
    pairs = [
        (getattr(getattr(a, table), field.name), getattr(getattr(b, table), field.name))
        for table in ("operations", "sequence", "storages", "waits", "header")
        for field in fields(getattr(a, table))
    ]
    return a.modules == b.modules and all(np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y for x, y in pairs)


def compare_family(options: argparse.Namespace, strategy: Strategy, trace: Trace) -> None:
    """The family of the mesh, and the step that follows from it."""
    start = time.process_time()
    family = rank_family(resolve(options.job, seq_len=options.seq_len), strategy)
    recorded = time.process_time()
    step = family.at(options.mesh) if family is not None else None
    made = time.process_time()
    same = "does not show this mesh" if step is None else "is equal in every column" if equal(step, trace) else "is NOT EQUAL"
    print(f"family: {recorded - start:.2f} s of processor, then {made - recorded:.4f} s a mesh; its step {same}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", nargs="?", default="llama3-8b")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--recompute", choices=RECOMPUTES, default="none")
    parser.add_argument("--mesh", type=Mesh.parse, default=Mesh(), help="such as dp_shard=8,tp=8; one device by default")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--compare", action="store_true", help="also with all blocks, in turns")
    parser.add_argument("--family", action="store_true", help="also the family over the degrees of the mesh")
    options = parser.parse_args()
    print(f"PyTorch and gpuwise loaded: {resident_bytes() / 1e6:,.0f} MB resident")
    strategy = Strategy(
        precision=options.precision,
        recompute=options.recompute,
        accumulation=options.accumulate,
        mesh=options.mesh,
        parallelism=Parallelism(sequence_parallel=options.sequence_parallel),
    )
    ways = {"": nullcontext, "all blocks: ": all_blocks} if options.compare else {"": nullcontext}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    traces: dict[str, Trace] = {}
    for _ in range(options.repeat):
        for way, context in ways.items():
            print(end=way)
            with context():
                traces[way], used = recorded(options, strategy)
            seconds[way].append(used)
    median = statistics.median(seconds[""])  # the first one also loads what PyTorch loads late
    aim_s, aim_bytes = (AIM_S, AIM_BYTES) if options.mesh.devices == 1 else (MESH_AIM_S, MESH_AIM_BYTES)
    met = "met" if median <= aim_s and resident_bytes() <= aim_bytes else "missed"
    print(
        f"median: {median:.2f} s of processor and {resident_bytes() / 1e6:,.0f} MB resident "
        f"(aims {aim_s:.1f} s and {aim_bytes / 1e6:,.0f} MB: {met})"
    )
    if options.compare:
        same = "equal in every column" if equal(*traces.values()) else "NOT EQUAL"
        print(f"all blocks, median: {statistics.median(seconds['all blocks: ']):.2f} s of processor; the recordings are {same}")
    if options.family:
        compare_family(options, strategy, traces[""])


if __name__ == "__main__":
    main()
