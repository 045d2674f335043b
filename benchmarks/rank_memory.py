"""Memory of each rank of a training step: what its recording says, against what gloo ranks on this CPU really hold.

    python -m benchmarks.rank_memory [--only TEXT] [--write]

Each rank is recorded with the CPU's kernels in a fake world. Then the ranks train for real, each in a process of its own,
and every storage is counted from its birth to its death (gpuwise.measure.live_storages). Compared are the peak of a step
and what stays after it. --only: strategies whose name contains the text. --write: puts the rows into
benchmarks/results/rank_memory.json, and makes docs/rank-memory.md of all rows there. All strategies take some ten minutes on
two cores.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.dist.ranks import on_ranks

from gpuwise.job import Job, checked_batch
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.measure.live_storages import LiveStorages
from gpuwise.runtime.build.program import build
from gpuwise.runtime.parallel.world import make_world
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace.memory import live_bytes
from gpuwise.tracing import record

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "rank_memory.json"
PAGE = ROOT / "docs" / "rank-memory.md"
WARM_UP_STEPS, STEPS = 3, 3
MODEL = LlamaConfig(vocabulary=1024, width=128, layers=4, heads=4, kv_heads=4, hidden=384)
SEQ_LEN = 64
GOAL = 0.005

_PIPELINE = Strategy(mesh=Mesh(pp=2), accumulation=4)
STRATEGIES = {
    "replicas": Strategy(mesh=Mesh(dp_replicate=2)),
    "replicas, accumulated": Strategy(mesh=Mesh(dp_replicate=2), accumulation=4),
    "replicas, gradients in bf16": Strategy(mesh=Mesh(dp_replicate=2), parallelism=Parallelism(compress_gradients=True)),
    "shards of parameters": Strategy(mesh=Mesh(dp_shard=4)),
    "shards of parameters, amp, recomputed": Strategy("amp-bf16", recompute="full", micro_batch=2, mesh=Mesh(dp_shard=2)),
    "shards of parameters, accumulated": Strategy(mesh=Mesh(dp_shard=2), accumulation=4),
    "shards of parameters, amp, accumulated": Strategy("amp-bf16", mesh=Mesh(dp_shard=2), accumulation=4),
    "shards of gradients": Strategy(mesh=Mesh(dp_shard=2), parallelism=Parallelism(shard="gradients"), accumulation=3),
    "shards of optimizer state": Strategy(mesh=Mesh(dp_shard=2), parallelism=Parallelism(shard="optimizer"), accumulation=3),
    "replicas of shards": Strategy(mesh=Mesh(dp_replicate=2, dp_shard=2), micro_batch=2),
    "tensor": Strategy(mesh=Mesh(tp=2)),
    "tensor and sequence": Strategy(mesh=Mesh(tp=2), parallelism=Parallelism(sequence_parallel=True)),
    "tensor, sequence and loss": Strategy(
        mesh=Mesh(tp=2), parallelism=Parallelism(sequence_parallel=True, loss_parallel=True), micro_batch=2
    ),
    "shards and tensor": Strategy(mesh=Mesh(dp_shard=2, tp=2)),
    "context, gathered": Strategy(mesh=Mesh(cp=2)),
    "context, all to all": Strategy(mesh=Mesh(cp=2), parallelism=Parallelism(context="all-to-all")),
    "context, ring": Strategy(mesh=Mesh(cp=2), parallelism=Parallelism(context="ring")),
    "pipeline, 1f1b": _PIPELINE,
    "pipeline, gpipe": _PIPELINE.but(parallelism=Parallelism(pipeline_schedule="gpipe")),
    "pipeline, interleaved": _PIPELINE.but(
        parallelism=Parallelism(pipeline_schedule="interleaved-1f1b", stages_per_rank=2),
    ),
    "pipeline of shards": Strategy(mesh=Mesh(pp=2, dp_shard=2), accumulation=4),
}


def job() -> Job:
    return Job(
        partial(Llama, MODEL),
        partial(next_token_batch, vocabulary=MODEL.vocabulary, seq_len=SEQ_LEN),
        loss=token_loss,
        seq_len=SEQ_LEN,
        sample_unit="token",
        tokens_per_sample=SEQ_LEN,
    )


def compare(strategy: Strategy, make_job: Callable[[], Job] = job) -> list[dict[str, Any]]:
    """Bytes of each rank: peak and kept after a step, as forecast and as measured."""
    measured = on_ranks(strategy.mesh.devices, measured_bytes, strategy, make_job)
    return [
        {"rank": rank, "peak": (forecast[0], peak), "kept": (forecast[1], kept)}
        for rank, (peak, kept) in enumerate(measured)
        for forecast in [forecast_bytes(strategy, rank, make_job)]
    ]


def forecast_bytes(strategy: Strategy, rank: int, make_job: Callable[[], Job] = job) -> tuple[int, int]:
    """The recorded peak of a rank's step, and what stays after it, in bytes as requested."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trace = record(make_job(), strategy, target="cpu", rank=rank).with_accumulation(strategy.accumulation)
    finally:
        torch.set_num_threads(threads)
    live = live_bytes(trace, granule_bytes=1)
    return live.peak_bytes, live.persistent_bytes


def measured_bytes(strategy: Strategy, make_job: Callable[[], Job] = job) -> tuple[int, int]:
    """The same of a real step of this rank of torch.distributed."""
    warnings.simplefilter("ignore")
    with LiveStorages() as live:
        program = build(make_job(), strategy, "cpu", make_world(strategy.mesh, "cpu"))
        for step in range(WARM_UP_STEPS + STEPS):
            batches = [checked_batch(program.job, strategy.micro_batch) for _ in range(strategy.accumulation)]
            with live.measuring() if step >= WARM_UP_STEPS else nullcontext():
                program.step(batches)
            program.parts.clear()
            del batches
        return live.peak_bytes, live.live_bytes


def error(pair: tuple[int, int]) -> float:
    """Forecast over measured, less one."""
    return pair[0] / pair[1] - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="strategies whose name contains this text")
    parser.add_argument("--write", action="store_true", help="write results and page")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for name, strategy in STRATEGIES.items():
        if options.only.lower() in name:
            new = [{"name": name, "mesh": str(strategy.mesh), "torch": torch.__version__, **row} for row in compare(strategy)]
            for row in new:
                print(
                    f"{name:<40} {row['mesh']:<16} {row['rank']} {error(row['peak']):>+9.4%} {error(row['kept']):>+9.4%}",
                    flush=True,
                )
            rows += new
            if options.write:
                keep(new)
    worst = max((abs(error(row["peak"])) for row in rows), default=0.0)
    print(f"{len(rows)} ranks: largest difference of a peak {worst:.4%}, goal {GOAL:.1%}")
    if options.write:
        PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


def keep(new: list[dict[str, Any]]) -> None:
    """Puts the rows of a strategy into the results, in place of older ones; strategies that went are dropped."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    kept = [row for row in rows if row["name"] in STRATEGIES and row["name"] != new[0]["name"]]
    order = list(STRATEGIES)
    rows = sorted([*kept, *new], key=lambda row: (order.index(row["name"]), row["rank"]))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def page(rows: list[dict[str, Any]]) -> str:
    """docs/rank-memory.md."""
    peaks, versions = [abs(error(row["peak"])) for row in rows], ", ".join(sorted({row["torch"] for row in rows}))
    within, worst = sum(peak <= GOAL for peak in peaks), max(peaks)
    table = [
        "| strategy | mesh | rank | peak measured, bytes | forecast | after a step, bytes | forecast |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        figures = " | ".join(f"{row[kind][1]:,} | {error(row[kind]):+.4%}" for kind in ("peak", "kept"))
        table.append(f"| {row['name']} | {row['mesh']} | {row['rank']} | {figures} |")
    parts = [
        "# Memory of each rank",
        "A small decoder trains on several ranks over gloo. Each rank was forecast by recording it with the CPU's kernels, "
        "without running it. Measured is the sum of all storages that the rank's operators made, each from its birth to its "
        "death, and what kernels hold inside. What gloo allocates for itself is left out. The forecast columns give forecast "
        "over measured, less one.",
        f"{len(rows)} ranks of {len({row['name'] for row in rows})} strategies: {within} peaks are within {GOAL:.1%}, and the "
        f"largest difference is {worst:.4%}.",
        f"`python -m benchmarks.rank_memory --write` (PyTorch {versions}).",
        "\n".join(table),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
