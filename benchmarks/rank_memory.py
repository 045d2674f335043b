"""Peak memory of each rank of a training step: what the recording says, against what gloo ranks on this CPU really allocate.

    python -m benchmarks.rank_memory [--only TEXT]

Each strategy is recorded with the CPU's kernels in a fake world; then its ranks train for real, each in a process of its own
under PyTorch's profiler, as in benchmarks.memory_on_cpu. What gloo itself holds is not PyTorch's memory, and is in neither.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.distributed as dist
from torch._C._profiler import _ExperimentalConfig

from gpuwise.job import Job, checked_batch
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.parallel.world import make_world
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace.memory import live_bytes
from gpuwise.tracing import record

TIMEOUT_S = 240.0
MODEL = LlamaConfig(vocabulary=1024, width=128, layers=4, heads=4, kv_heads=4, hidden=384)
SEQ_LEN = 64

STRATEGIES = {
    "replicas": Strategy(mesh=Mesh(dp_replicate=2)),
    "replicas, accumulated": Strategy(mesh=Mesh(dp_replicate=2), accumulation=4),
    "replicas, gradients in bf16": Strategy(mesh=Mesh(dp_replicate=2), parallelism=Parallelism(compress_gradients=True)),
    "shards of parameters": Strategy(mesh=Mesh(dp_shard=4)),
    "shards of parameters, amp, recomputed": Strategy("amp-bf16", recompute="full", micro_batch=2, mesh=Mesh(dp_shard=2)),
    "shards of parameters, accumulated": Strategy(mesh=Mesh(dp_shard=2), accumulation=4),
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
    "pipeline, 1f1b": Strategy(mesh=Mesh(pp=2), accumulation=4),
    "pipeline, gpipe": Strategy(mesh=Mesh(pp=2), accumulation=4, parallelism=Parallelism(pipeline_schedule="gpipe")),
    "pipeline, interleaved": Strategy(
        mesh=Mesh(pp=2),
        accumulation=4,
        parallelism=Parallelism(pipeline_schedule="interleaved-1f1b", stages_per_rank=2),
    ),
    "pipeline of shards": Strategy(mesh=Mesh(pp=2, dp_shard=2), accumulation=4),
}


@dataclass(frozen=True)
class RankRow:
    """One rank of one strategy, in bytes."""

    name: str
    rank: int
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def job() -> Job:
    return Job(
        partial(Llama, MODEL),
        partial(next_token_batch, vocabulary=MODEL.vocabulary, seq_len=SEQ_LEN),
        loss=token_loss,
        seq_len=SEQ_LEN,
        sample_unit="token",
        tokens_per_sample=SEQ_LEN,
    )


def compare(name: str, ranks: Sequence[int] | None = None) -> list[RankRow]:
    """Predicted and measured peak of these ranks of a strategy; None (default): of the first and the last."""
    strategy = STRATEGIES[name]
    measured = measured_bytes(strategy)
    chosen = ranks if ranks is not None else (0, strategy.mesh.devices - 1)
    return [RankRow(name, rank, predicted_bytes(strategy, rank), measured[rank]) for rank in chosen]


def predicted_bytes(strategy: Strategy, rank: int) -> int:
    """Peak of the recorded step of a rank with the CPU's kernels, in bytes as requested."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return live_bytes(record(job(), strategy, target="cpu", rank=rank), granule_bytes=1).peak_bytes
    finally:
        torch.set_num_threads(threads)


def measured_bytes(strategy: Strategy) -> list[int]:
    """Peak of the second real step of each rank. Raises RuntimeError where a rank fails."""
    context = multiprocessing.get_context("spawn")
    ranks, processes, pipes = strategy.mesh.devices, [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(theirs, rank, ranks, f"{folder}/store", strategy), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        try:
            results = [pipe.recv() if pipe.poll(TIMEOUT_S) else "no answer" for pipe in pipes]
        except EOFError:
            results = ["a rank ended without a word"]
        finally:
            for process in processes:
                process.kill()
                process.join()
    if failures := [result for result in results if isinstance(result, str)]:
        raise RuntimeError(failures[0])
    return results


def _rank(pipe: Connection, rank: int, ranks: int, store: str, strategy: Strategy) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        peak = _measured(strategy)
        dist.barrier()
        pipe.send(peak)
    except BaseException as error:  # the parent prints it
        pipe.send(f"rank {rank}: {type(error).__name__}: {error}")


def _measured(strategy: Strategy) -> int:
    activities = [torch.profiler.ProfilerActivity.CPU]
    # gloo's own threads free tensors, too.
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True, experimental_config=everywhere
    ) as profile:
        program = build(job(), strategy, "cpu", make_world(strategy.mesh, "cpu"))
        _step(program)
        with torch.profiler.record_function("second step"):
            _step(program)
    events = profile.profiler.kineto_results.events()
    start_ns = next(e.start_ns() for e in events if e.name() == "second step")
    changes = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    live = np.cumsum([change.nbytes() for change in changes])
    return int(live[[change.start_ns() >= start_ns for change in changes]].max())


def _step(program: Program) -> None:
    strategy = program.strategy
    program.accumulate_gradients([checked_batch(program.job, strategy.micro_batch) for _ in range(strategy.accumulation)])
    program.update()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="strategies whose name contains this text")
    only = parser.parse_args().only.lower()
    warnings.simplefilter("ignore")
    print(f"{'strategy':<40} {'mesh':<24} {'rank':>4} {'predicted':>12} {'measured':>12} {'error':>9}")
    rows: list[RankRow] = []
    for name in STRATEGIES:
        if only in name:
            for row in compare(name):
                rows.append(row)
                figures = f"{row.rank:>4} {row.predicted:>12,} {row.measured:>12,} {row.error:>9.3%}"
                print(f"{name:<40} {STRATEGIES[name].mesh!s:<24} {figures}", flush=True)
    if rows:
        print(f"largest difference: {max(abs(row.error) for row in rows):.3%} of {len(rows)} ranks")


if __name__ == "__main__":
    main()
