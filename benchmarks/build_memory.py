"""Memory that each rank takes while it builds a model: rank 0 alone builds it whole, or every rank does.

    python -m benchmarks.build_memory

Each rank is a process over gloo, and its device is the CPU, so that rank 0's host copy counts, too. Shown is by how much the
process grows at its peak, from Linux; buffers of gloo are included. Some two minutes on two cores.
"""

from __future__ import annotations

import argparse
import re
import warnings
from functools import partial
from pathlib import Path

import torch
from tests.dist.ranks import on_ranks

from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.runtime.build import job_model
from gpuwise.runtime.build.program import build
from gpuwise.runtime.parallel.regions import local_of
from gpuwise.runtime.parallel.world import make_world
from gpuwise.strategy import Mesh, Strategy
from gpuwise.units import format_bytes

MODEL = LlamaConfig(vocabulary=32_000, width=1024, layers=12, heads=16, kv_heads=16, hidden=2816)
SEQ_LEN = 64
STRATEGIES = {
    "dp_shard=2": Strategy(mesh=Mesh(dp_shard=2)),
    "dp_shard=4": Strategy(mesh=Mesh(dp_shard=4)),
    "tp=2": Strategy(mesh=Mesh(tp=2)),
    "dp_shard=2,tp=2": Strategy(mesh=Mesh(dp_shard=2, tp=2)),
    "pp=2": Strategy(mesh=Mesh(pp=2), accumulation=2),
}


def job() -> Job:
    return Job(
        partial(Llama, MODEL),
        partial(next_token_batch, vocabulary=MODEL.vocabulary, seq_len=SEQ_LEN),
        loss=token_loss,
        optimizer="sgd",
        seq_len=SEQ_LEN,
        sample_unit="token",
        tokens_per_sample=SEQ_LEN,
    )


def build_bytes(strategy: Strategy, *, whole: bool) -> tuple[int, int]:
    """By how much this rank of torch.distributed grows at most while it builds, and the bytes of its parameters.

    Arguments:
        whole: whether every rank builds the whole model.
    """
    warnings.simplefilter("ignore")
    if whole:
        job_model.defers = lambda world: False
    world = make_world(strategy.mesh, "cpu")
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the process begins anew
    before = _status_bytes("VmRSS")
    program = build(job(), strategy, "cpu", world)
    return _status_bytes("VmHWM") - before, sum(local_of(p).nbytes for p in program.model.parameters())


def _status_bytes(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the mesh of one strategy")
    options = parser.parse_args()
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Llama(MODEL).parameters())
    print(f"{parameters / 1e6:.0f} million parameters, {format_bytes(4 * parameters)}")
    print(f"{'mesh':<16} {'rank':>4} {'its parameters':>15} {'every rank builds':>18} {'rank 0 builds':>14}")
    for name, strategy in STRATEGIES.items():
        if options.only in ("", name):
            before, after = (
                on_ranks(strategy.mesh.devices, partial(build_bytes, whole=whole), strategy) for whole in (True, False)
            )
            for rank, ((old, own), (new, _)) in enumerate(zip(before, after, strict=True)):
                figures = f"{format_bytes(own):>15} {format_bytes(old):>18} {format_bytes(new):>14}"
                print(f"{name:<16} {rank:>4} {figures}", flush=True)


if __name__ == "__main__":
    main()
