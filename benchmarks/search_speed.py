"""How long the search over all of Calculon's 13,165,632 strategies of GPT-3 175B on 512 GPUs takes, pricing of blocks included.

    python -m benchmarks.search_speed --cache FOLDER [--runs 5] [--check 20]

Aims: 1.5 s of one core and 500 MB. A run loads the recordings, prices the blocks of every tensor-parallel degree, recompute and
micro-batch, and composes every point. Beside it the same point in plain Python, on points that are compared. The first time,
recordings are made into --cache, which needs PyTorch and takes a minute.

Calculon itself is not run: it is not on PyPI. 1,885 points a second of one core were measured with it earlier (with its logger
silenced), where all points take two hours.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.support.calculon_blocks import Fabric
from benchmarks.support.calculon_point import point_s
from benchmarks.support.calculon_space import BATCH, DEVICES, HEADS, HIDDEN, LAYERS, NAMES, SearchCount, search
from benchmarks.support.megatron_shape import GptShape
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.space.layouts import divisors
from gpuwise.strategy import Strategy
from gpuwise.trace import TraceFamily, load, save

SHAPE = GptShape(HIDDEN, LAYERS, HEADS, 2048, 51_200)
POINTS = 13_165_632
MEMORY_BYTES = 80e9
CALCULON_POINTS_PER_S = 1885


def recording(recompute: str, cache: Path) -> TraceFamily:
    """The recorded step; selective recompute is of attention's core."""
    path = cache / f"{SHAPE.name}-{recompute}.npz"
    if not path.exists():
        from benchmarks.support.megatron_model import gpt_job
        from gpuwise.tracing.family import trace_family

        strategy = Strategy(precision="bf16", recompute="full" if recompute == "full" else "none")
        cache.mkdir(parents=True, exist_ok=True)
        save(trace_family(gpt_job(SHAPE, core_again=recompute == "selective", fused=True), strategy), path)
    family = load(path)
    assert isinstance(family, TraceFamily)
    return family


def table_of(cluster: Cluster, cache: Path) -> BlockTable:
    """The table of blocks, which prices them at their first use."""
    traces = StepTraces(lambda variant: recording(variant.recompute, cache))
    strategy = Strategy(precision="bf16", optimizer="adamw")
    return BlockTable(traces, cluster.chip, strategy, micro_batches=divisors(BATCH).tolist(), by_heads=True)


def megabytes() -> float:
    """The most memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--check", type=int, default=20, help="points of each mesh to compare with plain Python")
    options = parser.parse_args()
    catalog = Catalog()
    chip = catalog.chip("a100-80gb-sxm")
    inside, between = catalog.link(chip.link_id or ""), replace(catalog.link("ib-hdr"), per_direction_bytes_per_s=200e9)
    cluster = Cluster(chip, 8, DEVICES // 8, inside=inside, between=between)
    fabric = Fabric(cluster, 8)
    for recompute in ("none", "selective", "full"):
        recording(recompute, options.cache)
    before, wall_s, cpu_s = megabytes(), [], []
    result, priced = SearchCount(), 0
    for _ in range(options.runs):
        wall, cpu = time.perf_counter(), time.process_time()
        table = table_of(cluster, options.cache)
        result, _ = search(table, fabric, memory_bytes=MEMORY_BYTES)
        wall_s.append(time.perf_counter() - wall)
        cpu_s.append(time.process_time() - cpu)
        priced = table.priced
    after = megabytes()
    middle = statistics.median(cpu_s)
    same = "as" if result.points == POINTS else "NOT as"
    print(f"{result.points:,} points ({same} Calculon's), {result.fitting:,} fit and can be reached")
    print(f"{priced:,} blocks priced; CPU s: median {middle:.2f} ({min(cpu_s):.2f} to {max(cpu_s):.2f}) of {len(cpu_s)} runs")
    print(f"wall s: median {statistics.median(wall_s):.2f}; {result.points / middle / 1e6:.1f} M points a second of one core")
    print(f"memory: {after:.0f} MB at most, of which {before:.0f} MB before the first run")
    hours = POINTS / CALCULON_POINTS_PER_S / 3600
    print(f"Calculon, measured earlier: {CALCULON_POINTS_PER_S:,} points a second, {hours:.1f} hours")
    for seconds, point in result.best:
        print(f"{seconds:8.3f} s  " + " ".join(f"{name}={value}" for name, value in zip(NAMES, point, strict=True)))
    if options.check:
        table = table_of(cluster, options.cache)
        _, samples = search(table, fabric, memory_bytes=MEMORY_BYTES, sample=options.check)
        start = time.process_time()
        worst = max(abs(point_s(table, fabric, point) / seconds - 1) for seconds, point in samples)
        rate = len(samples) / (time.process_time() - start)
        print(f"{len(samples):,} points in plain Python, {rate:,.0f} a second: worst difference {worst:.1e}")
        if worst > 1e-9:
            sys.exit("arrays and plain Python differ")


if __name__ == "__main__":
    main()
