"""How many micro-batches are in flight on a rank of a pipeline."""

from __future__ import annotations

from gpuwise.errors import InputError
from gpuwise.strategy import Strategy
from gpuwise.strategy.pipeline import V_SCHEDULES


def in_flight(strategy: Strategy, rank: int) -> float:
    """Micro-batches whose activations a rank holds at most, in those of all its stages.

    Forward passes of a stage less backward passes, as torch.distributed.pipelining orders them (schedules.py, PyTorch 2.13);
    where a schedule splits backward, it is done when the gradients of the weights are.
    """
    ranks, stages, micro_batches = strategy.mesh.pp, strategy.parallelism.stages_per_rank, strategy.accumulation
    schedule = strategy.parallelism.pipeline_schedule
    if schedule in ("gpipe", "looped-bfs"):
        return micro_batches
    if schedule == "1f1b":
        return min(ranks - rank, micro_batches)
    if schedule in V_SCHEDULES:
        more = schedule == "dualpipe-v" and rank == ranks - 1
        return min(2 * ranks + more, micro_batches + rank + 1) / 2
    each_round = micro_batches // max(1, micro_batches // ranks)
    after = ranks - 1 - rank
    warm_up = (stages - 1) * each_round + after * (2 if schedule == "interleaved-1f1b" else 1)
    late = rank if schedule == "interleaved-zero-bubble" else 0
    return min(warm_up + late + 1, micro_batches * stages) / stages


def check_stages(strategy: Strategy, blocks: int) -> None:
    """Raises InputError where there are fewer blocks than stages."""
    ranks, per_rank = strategy.mesh.pp, strategy.parallelism.stages_per_rank
    if ranks > 1 and ranks * per_rank > blocks:
        each = f" with {per_rank} stages each" if per_rank > 1 else ""
        raise InputError(
            f"{ranks} pipeline ranks{each} do not divide the model: it has {blocks} repeated blocks.",
            [f"--mesh pp={max(1, blocks // per_rank)} or less"],
        )
