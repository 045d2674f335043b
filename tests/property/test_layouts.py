"""Laws of the space of layouts: arrays hold exactly what plain enumeration and the table of techniques allow."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.plan.space.layouts import ModelLimits, accumulations, fills_pipeline, layouts
from gpuwise.strategy import Mesh, Parallelism, Strategy, check_techniques
from gpuwise.strategy.parallelism import SHARDS
from gpuwise.trace.parallel.pipeline import check_stages

MICRO_BATCHES = (1, 2, 3, 4, 8)


ADAMW = Strategy("bf16", optimizer="adamw")


def plain(devices: int, limits: ModelLimits, global_batch: int, most_stages: int, techniques: Strategy) -> set[Strategy]:
    """All legal strategies, one after the other."""
    strategies = set()
    degrees = [degree for degree in range(1, devices + 1) if devices % degree == 0]
    of_devices = [d for d in product(limits.context_degrees, *[degrees] * 4) if prod(d) == devices]
    settings = product(of_devices, limits.expert_degrees, range(1, most_stages + 1), SHARDS, MICRO_BATCHES)
    for (cp, tp, pp, replicate, split), ep, stages, shard, micro_batch in settings:
        mesh = Mesh(tp=tp, pp=pp, dp_replicate=replicate, dp_shard=split, cp=cp, ep=ep)
        repeated = (pp == 1 and stages > 1) or (split * cp == 1 and shard != SHARDS[0])  # has no effect
        if mesh.devices != devices or tp not in limits.tensor_degrees or repeated:
            continue
        accumulation, rest = divmod(global_batch, micro_batch * mesh.data_parallel)
        if rest or not accumulation:
            continue
        schedule = "1f1b" if stages == 1 else "interleaved-1f1b"
        parallelism = Parallelism(shard=shard, pipeline_schedule=schedule, stages_per_rank=stages)
        strategy = techniques.but(micro_batch=micro_batch, accumulation=accumulation, mesh=mesh, parallelism=parallelism)
        try:
            check_techniques(strategy)
            check_stages(strategy, limits.blocks)
        except (InputError, UnsupportedError):
            continue
        strategies.add(strategy)
    return strategies


@pytest.mark.parametrize(
    ("devices", "blocks", "degrees", "global_batch"),
    [(1, 4, (1,), 6), (8, 4, (1, 2, 4, 8), 16), (12, 10, (1, 2, 3), 24), (16, 32, (1, 2, 4), 48), (6, 1, (1, 2), 12)],
)
def test_arrays_hold_what_plain_enumeration_allows(
    devices: int, blocks: int, degrees: tuple[int, ...], global_batch: int
) -> None:
    check_space(devices, ModelLimits(blocks, degrees), global_batch, ADAMW)


@pytest.mark.parametrize(("devices", "context"), [(8, (1, 2, 4, 8)), (12, (1, 2, 4))])
def test_parts_of_sequences_take_the_place_of_any_other_axis(devices: int, context: tuple[int, ...]) -> None:
    check_space(devices, ModelLimits(6, (1, 2, 4), context_degrees=context), 24, ADAMW)


def test_parts_of_experts_go_with_shards_alone() -> None:
    check_space(8, ModelLimits(6, (1, 2), context_degrees=(1, 2), expert_degrees=(1, 2, 4, 8)), 24, ADAMW)


@pytest.mark.parametrize(
    "techniques",
    [
        ADAMW.but(optimizer="adamw-8bit"),
        ADAMW.but(optimizer="adafactor"),
        ADAMW.but(optimizer="sgd", optimizer_kernels="fused"),
        ADAMW.but(adapter="lora"),
        ADAMW.but(adapter="qlora", recompute="full"),
        ADAMW.but(precision="fp8"),
        ADAMW.but(optimizer_in_backward=True),
    ],
    ids=str,
)
def test_techniques_leave_out_the_layouts_that_they_exclude(techniques: Strategy) -> None:
    check_space(8, ModelLimits(6, (1, 2, 4), context_degrees=(1, 2)), 24, techniques)


def check_space(devices: int, limits: ModelLimits, global_batch: int, techniques: Strategy) -> None:
    """Compares the arrays of a space with all legal strategies."""
    space = layouts(devices, limits, most_stages=4).under(techniques)
    pruned = []
    for row in range(len(space)):
        mesh, parallelism = space.mesh(row), space.parallelism(row)
        counts = accumulations(global_batch, data_parallel=mesh.data_parallel, micro_batches=MICRO_BATCHES)
        legal = fills_pipeline(counts, pp=mesh.pp, stages_per_rank=parallelism.stages_per_rank)
        for column in np.flatnonzero(legal).tolist():
            strategy = techniques.but(
                micro_batch=MICRO_BATCHES[column],
                accumulation=int(counts[column]),
                mesh=mesh,
                parallelism=parallelism,
            )
            assert strategy.global_batch == global_batch
            assert mesh.devices == devices
            pruned.append(strategy)
    assert len(pruned) == len(set(pruned))
    assert set(pruned) == plain(devices, limits, global_batch, 4, techniques)
