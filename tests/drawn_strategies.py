"""Strategies that gpuwise trains, drawn at random: of one device with every technique, or of several."""

from __future__ import annotations

from random import Random

from gpuwise.errors import GpuwiseError
from gpuwise.strategy import (
    ADAPTERS,
    CONTEXTS,
    OFFLOADS,
    OPTIMIZER_KERNELS,
    OPTIMIZERS,
    PIPELINE_SCHEDULES,
    PRECISIONS,
    RECOMPUTES,
    SHARDS,
    Mesh,
    Parallelism,
    Strategy,
    check_techniques,
)

_SIMPLER = ("precision", "recompute", "mesh", "optimizer", "optimizer_kernels", "optimizer_in_backward", "keep_gradients")
_SIMPLER += ("offload", "adapter", "compile", "channels_last", "parallelism", "accumulation")


def drawn_strategy(seed: int) -> Strategy:
    """A legal strategy; half of them are of several devices."""
    random = Random(seed)
    drawn = _of_a_mesh(random) if random.random() < 0.5 else _of_a_device(random)
    while True:
        try:
            check_techniques(drawn)
            return drawn
        except GpuwiseError:
            drawn = drawn.but(**{name: getattr(Strategy(), name) for name in random.sample(_SIMPLER, 1)})


def _of_a_device(random: Random) -> Strategy:
    return Strategy(
        precision=random.choice(PRECISIONS),
        micro_batch=random.randint(1, 512),
        accumulation=random.choice([1, 2, 8]),
        recompute=random.choice(RECOMPUTES),
        optimizer=random.choice([None, *OPTIMIZERS]),
        optimizer_kernels=random.choice([None, None, *OPTIMIZER_KERNELS]),
        optimizer_in_backward=random.random() < 0.1,
        keep_gradients=random.random() < 0.1,
        offload=random.choice(["none", *OFFLOADS]),
        adapter=random.choice(["none", "none", *ADAPTERS]),
        adapter_rank=random.choice([16, 8]),
        compile=random.random() < 0.4,
        channels_last=random.random() < 0.1,
    )


def _of_a_mesh(random: Random) -> Strategy:
    axes = random.sample(["dp_replicate", "dp_shard", "dp_shard", "tp", "pp", "cp"], random.choice([1, 1, 2, 3]))
    schedule = random.choice(["1f1b", "1f1b", *PIPELINE_SCHEDULES])
    parallelism = Parallelism(
        shard=random.choice(SHARDS),
        sequence_parallel=random.random() < 0.5,
        loss_parallel=random.random() < 0.5,
        context=random.choice(CONTEXTS),
        pipeline_schedule=schedule,
        stages_per_rank=1 if schedule in ("gpipe", "1f1b") else 2,
        compress_gradients=random.random() < 0.3,
    )
    return Strategy(
        precision=random.choice(["fp32", "tf32", "amp-bf16", "amp-bf16", "amp-fp16", "bf16"]),
        micro_batch=random.choice([1, 2, 16]),
        accumulation=random.choice([4, 8, 16]),
        recompute=random.choice(RECOMPUTES),
        mesh=Mesh(**{axis: random.choice([2, 4]) for axis in axes}),
        optimizer=random.choice([None, "adamw", "adamw", "sgd", "momentum", "adam"]),
        compile=random.random() < 0.2,
        parallelism=parallelism,
    )
