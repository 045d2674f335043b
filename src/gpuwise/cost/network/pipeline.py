"""The idle time of a pipeline: what its schedule leaves, if all stages take equally long."""

from __future__ import annotations

from gpuwise.strategy import Strategy

# Idle time of a rank for each rank before it, in passes of one stage: forward, gradients of the input, gradients of the
# weights, which are assumed to take equally long. GPipe, 1F1B and their interleaved forms leave all three (Narayanan et al.
# 2021, "Efficient Large-Scale Language Model Training on GPU Clusters"); zero-bubble schedules fill gaps with gradients of
# weights and leave one (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", its ZB-H1). ZBV and DualPipeV may leave less.
_PASSES = 3
_IDLE_PASSES = {
    "gpipe": 3,
    "1f1b": 3,
    "looped-bfs": 3,
    "interleaved-1f1b": 3,
    "interleaved-zero-bubble": 1,
    "zbv-zero-bubble": 1,
    "dualpipe-v": 1,
}


def idle_micro_batches(strategy: Strategy) -> float:
    """How long a rank of the pipeline idles in a step, in the time it takes for one micro-batch; 0 without a pipeline."""
    stages, parallelism = strategy.mesh.pp, strategy.parallelism
    if stages == 1 or strategy.mode != "train":
        return 0.0
    return (stages - 1) / parallelism.stages_per_rank * _IDLE_PASSES[parallelism.pipeline_schedule] / _PASSES
