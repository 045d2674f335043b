"""How long the search for the best strategy on every cluster of the catalog takes.

    python -m benchmarks.search_catalog [--runs 5] [--check 20] [--most-devices 1024]

Clusters are all chips with offers in their machines' sizes, and powers of two of such machines. The strategies are all meshes
of data, tensor and pipeline parallelism (replicas and shards of each kind, stages of a rank), recompute, sequence and loss
parallel, and micro-batches. A run starts from the recorded preset, prices its blocks on each chip and finds the fastest that
fits.

Beside it, in the same process: as many of the best strategies as --check says, each forecast alone, and how far both differ.
Aims: 2 s of wall for Llama-3 8B, and Llama-3 405B within 20 % of that.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.support.accuracy_tables import table
from benchmarks.support.catalog_clusters import clusters_of
from gpuwise.api.sources import PresetSource, source_of
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.best import BestOnCluster, best_on
from gpuwise.plan.compose.blocks import JobBlocks
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.space import legal
from gpuwise.strategy import Strategy

JOBS = ("llama3-8b", "llama3-405b")
GLOBAL_BATCH = 512
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
HEAD = ("job", "clusters", "fit", "strategies", "CPU s", "wall s", "MB")


@dataclass(frozen=True)
class Run:
    """One search.

    Attributes:
        cpu_s, wall_s: seconds.
        best: of each cluster.
    """

    cpu_s: float
    wall_s: float
    best: tuple[tuple[Cluster, BestOnCluster], ...]


def searched(job: str, clusters: Sequence[Cluster]) -> Run:
    """A search from the recorded preset on."""
    wall, cpu = time.perf_counter(), time.process_time()
    source = source_of(job)
    if isinstance(source, PresetSource):
        source.search_recorded()  # as plan does
    traces = source.traces()
    by_precision: dict[str, list[Cluster]] = defaultdict(list)
    for cluster in clusters:
        by_precision[legal.precisions_for(cluster.chip)[0]].append(cluster)
    best: list[tuple[Cluster, BestOnCluster]] = []
    blocks: dict[str, JobBlocks] = {}
    for precision, alike in sorted(by_precision.items()):  # amp-bf16 first
        techniques = Strategy(precision, optimizer="adamw")
        blocks[precision] = JobBlocks(traces, techniques, micro_batches=MICRO_BATCHES, like=blocks.get("amp-bf16"))
        try:
            of_clusters = best_on(blocks[precision], alike, global_batch=GLOBAL_BATCH)
        except UnsupportedError as error:  # there is no recording in this precision
            of_clusters = [BestOnCluster((), None, error.what)] * len(alike)
        best += zip(alike, of_clusters, strict=True)
    return Run(time.process_time() - cpu, time.perf_counter() - wall, tuple(best))


def forecast_alone(traces: StepTraces, run: Run, most: int) -> tuple[int, float, float, float]:
    """Forecasts of some best strategies alone: how many, CPU s, and how far time and memory differ at most."""
    pricer, cpu = StepPricer(traces), time.process_time()
    those = [(cluster, one.points[0]) for cluster, one in run.best if one.points]
    chosen = those[:: max(1, len(those) // most)][:most]
    apart = []
    for cluster, point in chosen:
        forecast = pricer.forecast(point.strategy, cluster, replay=False)
        seconds = abs(point.step_s / forecast.step_time_s.value - 1)
        apart.append((seconds, abs(point.device_bytes / forecast.memory.device_bytes - 1)))
    return len(chosen), time.process_time() - cpu, max(one[0] for one in apart), max(one[1] for one in apart)


def spread(values: Sequence[float]) -> str:
    """The median, and the least and the most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--check", type=int, default=20, help="strategies of each job to forecast alone")
    parser.add_argument("--most-devices", type=int, default=1024)
    options = parser.parse_args()
    clusters = clusters_of(Catalog(), most_devices=options.most_devices)
    rows, lines = [], []
    for job in JOBS:
        runs = [searched(job, clusters) for _ in range(options.runs)]
        points = sum(one.considered for _, one in runs[-1].best)
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        fit = sum(bool(one.points) for _, one in runs[-1].best)
        seconds = [spread([run.cpu_s for run in runs]), spread([run.wall_s for run in runs])]
        rows.append([job, f"{len(clusters):,}", f"{fit:,}", f"{points:,}", *seconds, f"{megabytes:.0f}"])
        count, cpu_s, time_apart, memory_apart = forecast_alone(source_of(job).traces(), runs[-1], options.check)
        alone_h = points * cpu_s / count / 3600
        lines.append(
            f"{job}: {count} forecast alone take {1000 * cpu_s / count:.0f} ms of CPU each, all would take {alone_h:,.0f} h; "
            f"time differs by {time_apart:.2%} at most, memory by {memory_apart:.2%}"
        )
    print(table(list(HEAD), rows))
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
