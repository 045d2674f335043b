"""How much of a step's computation hides communication: streams of recorded steps, simulated over ever slower links.

    python -m benchmarks.overlap

Prints the communication and what of it is hidden, as shares of the computation that it may run beside, without any slowdown of
one by the other. Where communication lasts longer than computation, what is hidden is what can be: the figure behind
overlap_share of gpuwise/cost/data/efficiency.toml. Takes a minute; needs no GPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpuwise.cost.parameters import parameters
from gpuwise.cost.rank_time import rank_times
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.parallel.ranks import RankStep
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.trace.trace import Trace
from gpuwise.tracing import record

DEVICES, SEQ_LEN, VOCABULARY = 8, 2048, 32_000
LAYERS = (4, 12, 32)
MESHES = (Mesh(dp_shard=DEVICES), Mesh(dp_replicate=DEVICES))
BANDWIDTHS_BYTES_PER_S = (300e9, 100e9, 50e9, 25e9, 12e9, 6e9)


def job_of(layers: int) -> Job:
    config = LlamaConfig(vocabulary=VOCABULARY, width=2048, layers=layers, heads=16, kv_heads=16, hidden=5504)
    return Job(
        partial(Llama, config),
        partial(next_token_batch, vocabulary=VOCABULARY, seq_len=SEQ_LEN),
        loss=token_loss,
        seq_len=SEQ_LEN,
        sample_unit="token",
        tokens_per_sample=SEQ_LEN,
    )


def hidden(recorded: Trace, mesh: Mesh, bandwidth_bytes_per_s: float) -> tuple[float, float]:
    """Communication and its hidden part, as shares of what it may run beside: forward and backward, or backward of replicas."""
    wire = Link("inside", "a wire", "scale-up", allreduce_busbw_bytes_per_s=bandwidth_bytes_per_s)
    cluster = Cluster(load_catalog().chip("h100-80gb-sxm"), DEVICES, inside=wire)
    step = RankStep("", *split_communication(recorded), recorded=recorded)
    figures = replace(parameters(), overlap_slowdown=0.0)
    (time,) = rank_times([step], cluster, strategy=recorded.header.strategy, parameters=figures)
    window_s = time.phase_s["backward"] + (time.phase_s["forward"] if mesh.dp_shard > 1 else 0.0)
    return time.exchange.total_s / window_s, (time.exchange.total_s - time.exchange.exposed_s) / window_s


def main() -> None:
    for layers in LAYERS:
        for mesh in MESHES:
            recorded = record(job_of(layers), Strategy(mesh=mesh, precision="bf16", micro_batch=4))
            shares = [hidden(recorded, mesh, bandwidth) for bandwidth in BANDWIDTHS_BYTES_PER_S]
            cells = ", ".join(f"{covered:.2f} of {whole:.2f}" for whole, covered in shares)
            print(f"{layers} blocks, {mesh}: hidden {cells}", flush=True)


if __name__ == "__main__":
    main()
