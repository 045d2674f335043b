"""The stages of a pipeline: which blocks each rank runs, and how many micro-batches are in flight there."""

from __future__ import annotations

from gpuwise.errors import InputError
from gpuwise.strategy import Strategy

TWO_WAYS = ("zbv-zero-bubble", "dualpipe-v")  # micro-batches pass the ranks forth and back: the first rank has the last stage


def stages_of_rank(strategy: Strategy, rank: int) -> tuple[int, ...]:
    """The stages that a rank of the pipeline runs."""
    ranks, parallelism = strategy.mesh.pp, strategy.parallelism
    if parallelism.pipeline_schedule in TWO_WAYS:
        return rank, 2 * ranks - 1 - rank
    return tuple(rank + turn * ranks for turn in range(parallelism.stages_per_rank))


def in_flight(strategy: Strategy, rank: int) -> float:
    """Micro-batches whose activations a rank holds at most, in those of all its stages.

    Forward passes of a stage less backward passes, as torch.distributed.pipelining orders them (schedules.py, PyTorch 2.13);
    for zero-bubble schedules backward is done when the gradients of the weights are. The V-shaped schedules hold as many as
    1F1B's first rank.
    """
    ranks, stages, micro_batches = strategy.mesh.pp, strategy.parallelism.stages_per_rank, strategy.accumulation
    schedule = strategy.parallelism.pipeline_schedule
    if schedule in ("gpipe", "looped-bfs"):
        return micro_batches
    if schedule == "1f1b":
        return min(ranks - rank, micro_batches)
    if schedule in TWO_WAYS:
        return min(ranks + (schedule == "dualpipe-v") / 2, micro_batches)
    each_round = micro_batches // max(1, micro_batches // ranks)
    after = ranks - 1 - rank
    warm_up = (stages - 1) * each_round + after * (2 if schedule == "interleaved-1f1b" else 1)
    late = rank if schedule == "interleaved-zero-bubble" else 0
    return min(warm_up + late + 1, micro_batches * stages) / stages


def check_pipeline(strategy: Strategy, blocks: int) -> None:
    """Raises InputError where the blocks do not make as many stages, or a step has too few micro-batches for them."""
    ranks, per_rank = strategy.mesh.pp, strategy.parallelism.stages_per_rank
    if ranks == 1:
        return
    if ranks * per_rank > blocks:
        each = f" of {per_rank} stages each" if per_rank > 1 else ""
        raise InputError(
            f"{ranks} pipeline ranks{each} do not divide the model: it has {blocks} repeated blocks.",
            [f"--mesh pp={max(1, blocks // per_rank)} or less"],
        )
    if strategy.mode == "train" and strategy.accumulation < ranks:
        raise InputError(
            f"a pipeline over {ranks} devices needs at least {ranks} micro-batches a step, and has {strategy.accumulation}.",
            [f"--accumulate {ranks}, or more to idle less"],
        )
