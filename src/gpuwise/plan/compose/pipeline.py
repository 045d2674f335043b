"""The time of pipelines of many strategies at once, in closed form where gpuwise.cost.timeline.pipeline simulates one."""

from __future__ import annotations

import numpy as np

CLOSED_FORMS = ("1f1b", "interleaved-1f1b")


def pipeline_s(
    stages_per_rank: np.ndarray | int,
    *,
    ranks: np.ndarray | int,
    micro_batches: np.ndarray,
    forward_s: np.ndarray,
    backward_s: np.ndarray,
    send_s: np.ndarray,
) -> np.ndarray:
    """When each of the ranks that differ has done its last action, seconds from the beginning of the step.

    The longest of the paths through one rank: the way there of the first micro-batch, all work of that rank, what it waits for
    the ranks behind it before its first and after its last turns, and the way back. Of 1f1b these are the simulated seconds. Of
    interleaved-1f1b they are the same where ranks are equal; where ranks differ by as much as 10 %, the simulation takes up to
    2 % more or less, and up to 7 % more where there are as many micro-batches as ranks; with fewer they agree within 2 %.

    Arguments:
        stages_per_rank: 1 runs 1f1b, more run interleaved-1f1b.
        ranks: of the pipeline, at least two.
        micro_batches: of a step.
        forward_s, backward_s: of one micro-batch on one stage: of the first rank, of each in the middle, and of the last. Shape
            (3, ...); of two ranks, the second row does not count.
        send_s: of one micro-batch to a neighbour.
    """
    ranks, interleaved = np.asarray(ranks), np.asarray(stages_per_rank) > 1
    waits = np.where(interleaved, 0.0, 1.0) * send_s  # the sender goes on when its send is done: see WAITING_SCHEDULES
    hop_s = send_s - waits
    forward_s = np.stack([forward_s[0] + waits, forward_s[1] + waits, forward_s[2] + 0.0 * waits])
    backward_s = np.stack([backward_s[0] + 0.0 * waits, backward_s[1] + waits, backward_s[2] + waits])
    both_s, middle = forward_s + backward_s, ranks - 2
    # A micro-batch goes around all ranks between two stages of one. Rounds of more micro-batches than ranks leave time for it.
    spare = np.maximum(0, micro_batches // np.maximum(1, micro_batches // ranks) - ranks)
    longest = np.zeros(np.broadcast_shapes(both_s.shape[1:], np.shape(micro_batches)))
    for rank in (0 * ranks, 0 * ranks + 1, ranks - 2, ranks - 1):
        kind = np.where(rank == 0, 0, np.where(rank == ranks - 1, 2, 1))
        own_forward_s, own_backward_s = (_chosen(kind, part) for part in (forward_s, backward_s))
        behind = ranks - 1 - rank
        before_s = (rank > 0) * both_s[0] + np.clip(rank - 1, 0, middle) * both_s[1] + 2 * hop_s * rank
        behind_s = (behind > 0) * both_s[2] + np.clip(behind - 1, 0, middle) * both_s[1] + 2 * hop_s * behind
        ahead = np.where(interleaved, 2, 1) * behind  # forward passes beyond its first that the rank runs ahead
        waits_s = np.maximum(0.0, behind_s - ahead * own_forward_s) + np.maximum(0.0, behind_s - ahead * own_backward_s)
        work_s = micro_batches * stages_per_rank * (own_forward_s + own_backward_s)
        around_s = sum(np.maximum(0.0, ranks * hop_s - spare * part) for part in (own_forward_s, own_backward_s))
        waits_s = waits_s + (np.asarray(stages_per_rank) - 1) * around_s
        longest = np.maximum(longest, before_s + work_s + waits_s)
    # Where an interleaved pipeline has fewer micro-batches than ranks, each rank waits between its stages: the first passes all
    # stages of all ranks one after the other, and the others follow it.
    passes_s = stages_per_rank * (both_s[0] + middle * both_s[1] + both_s[2])
    passes_s = passes_s + (micro_batches - 1) * np.maximum(np.maximum(both_s[0], both_s[2]), (middle > 0) * both_s[1])
    passes_s = passes_s + 2 * hop_s * (stages_per_rank * ranks - 1)
    longest = np.where(interleaved & (micro_batches < ranks), np.maximum(longest, passes_s), longest)
    result: np.ndarray = np.stack([longest, longest - backward_s[0], longest - backward_s[0] - middle * backward_s[1]])
    return result


def _chosen(kind: np.ndarray, of_kinds: np.ndarray) -> np.ndarray:
    """The values of the first rank, of one in the middle or of the last, as `kind` says. of_kinds: shape (3, ...)."""
    return np.where(kind == 0, of_kinds[0], np.where(kind == 1, of_kinds[1], of_kinds[2]))
