"""Steps composed as arrays from a table of blocks, against the forecast of each step alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpuwise.api.devices import device_of
from gpuwise.api.sources import source_of
from gpuwise.cost.timeline.pipeline import PipelineStep, StageTime, finish_s
from gpuwise.errors import UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.plan.compose.memory import device_bytes
from gpuwise.plan.compose.pipeline import pipeline_s
from gpuwise.plan.compose.ranks import pipeline_ranks
from gpuwise.plan.compose.shallow import shallow_step
from gpuwise.plan.compose.steps import MeshSteps
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace.parallel.segments import segments_of

BATCH, MICRO_BATCHES = 128, (1, 2, 4)
VARIANTS = (
    BlockVariant(),
    BlockVariant("full", loss_parallel=True),
    BlockVariant("full", sequence_parallel=True),
    BlockVariant("selective"),
    BlockVariant("selective", sequence_parallel=True, loss_parallel=True),
)
MESHES = [
    (Mesh(tp=8, pp=8), {}),
    (Mesh(tp=8, pp=4, dp_replicate=2), {"shard": "gradients"}),
    (Mesh(tp=4, pp=4, dp_shard=4), {"shard": "optimizer"}),
    (Mesh(tp=4, pp=4, dp_shard=4), {"pipeline_schedule": "interleaved-1f1b", "stages_per_rank": 2}),
    (Mesh(pp=4, dp_replicate=16), {}),
    (Mesh(dp_shard=64), {}),
    (Mesh(dp_replicate=8, dp_shard=8), {"shard": "gradients"}),
    (Mesh(tp=8, dp_shard=8), {"shard": "optimizer"}),
    (Mesh(tp=2, dp_replicate=32), {}),
    (Mesh(dp_replicate=64), {}),
]
SLOW_MESHES = [MESHES[1], MESHES[3], MESHES[7]]


def strategies(steps: MeshSteps) -> Iterator[tuple[int, int, Strategy]]:
    """The strategies of composed steps, with their indices."""
    for row, variant in enumerate(steps.variants):
        for column, micro_batch in enumerate(steps.table.micro_batches.tolist()):
            parallelism = replace(
                steps.strategy.parallelism,
                sequence_parallel=variant.sequence_parallel,
                loss_parallel=variant.loss_parallel,
            )
            yield (
                row,
                column,
                steps.strategy.but(
                    recompute=variant.recompute,
                    parallelism=parallelism,
                    micro_batch=micro_batch,
                    accumulation=int(steps.accumulation[column]),
                ),
            )


@pytest.fixture(scope="module", params=["bf16", "amp-bf16"])
def priced(request: pytest.FixtureRequest) -> tuple[BlockTable, StepPricer]:
    traces, chip = source_of("llama3-70b").traces(), load_catalog().chip("h100-80gb-sxm")
    techniques = Strategy(precision=request.param, optimizer="adamw")
    return BlockTable(traces, chip, techniques, micro_batches=MICRO_BATCHES), StepPricer(traces)


def check_against_forecasts(
    table: BlockTable,
    pricer: StepPricer,
    on: str,
    strategy: Strategy,
    variants: Sequence[BlockVariant] = VARIANTS,
) -> None:
    """Compares time and memory of composed steps with the forecast of each strategy alone."""
    cluster, mesh, parallelism = device_of(on, load_catalog()).cluster, strategy.mesh, strategy.parallelism
    accumulation = BATCH // mesh.data_parallel // table.micro_batches
    ranks = pipeline_ranks(
        table.whole, pp=mesh.pp, schedule=parallelism.pipeline_schedule, stages_per_rank=parallelism.stages_per_rank
    )
    variants = variants if mesh.tp > 1 else [one for one in variants if not one.sequence_parallel]
    steps = MeshSteps(table, cluster, strategy, variants, ranks, np.maximum(1, accumulation))
    composed_s, needed, checked = steps.step_s(), device_bytes(steps), 0
    for row, column, alone in strategies(steps):
        if accumulation[column] >= mesh.pp:
            forecast = pricer.forecast(alone, cluster, replay=False)
            assert composed_s[row, column] == pytest.approx(forecast.step_time_s.value, rel=0.001)
            assert needed[row, column] == pytest.approx(forecast.memory.device_bytes, rel=0.005)
            checked += 1
    assert checked >= 2


@pytest.mark.parametrize(
    ("mesh", "settings"),
    [pytest.param(*case, marks=pytest.mark.slow) if case in SLOW_MESHES else case for case in MESHES],
    ids=str,
)
def test_composed_steps_take_and_need_as_much_as_each_alone(
    priced: tuple[BlockTable, StepPricer], mesh: Mesh, settings: dict[str, object]
) -> None:
    table, pricer = priced
    parallelism = Parallelism(**settings)  # type: ignore[arg-type]
    check_against_forecasts(table, pricer, "h100-sxm:8x8", table.techniques.but(mesh=mesh, parallelism=parallelism))


@pytest.mark.parametrize(
    ("mesh", "settings"),
    [
        (Mesh(cp=8, dp_shard=8), {}),
        (Mesh(cp=4, dp_replicate=16), {"shard": "optimizer"}),
        (Mesh(cp=4, tp=8, dp_shard=2), {"shard": "gradients"}),
        (Mesh(cp=2, tp=4, pp=8), {"shard": "optimizer"}),
        (Mesh(cp=4, pp=4, dp_shard=4), {"pipeline_schedule": "interleaved-1f1b", "stages_per_rank": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["bf16", "amp-fp16"])
def test_parts_of_sequences_take_and_need_as_much_as_each_alone(
    precision: str, mesh: Mesh, settings: dict[str, object]
) -> None:
    traces, chip = source_of("llama3-70b", seq_len=32768).traces(), load_catalog().chip("h100-80gb-sxm")
    table = BlockTable(traces, chip, Strategy(precision, optimizer="adamw"), micro_batches=(1, 2))
    variants = [replace(variant, cp=mesh.cp) for variant in VARIANTS]
    strategy = table.techniques.but(mesh=mesh, parallelism=Parallelism(**settings))  # type: ignore[arg-type]
    check_against_forecasts(table, StepPricer(traces), "h100-sxm:8x8", strategy, variants)


@pytest.mark.parametrize(
    ("mesh", "settings"),
    [
        (Mesh(pp=4, dp_replicate=2), {}),
        (Mesh(pp=2, dp_shard=4), {"shard": "gradients"}),
        (Mesh(pp=4, dp_shard=2), {"pipeline_schedule": "interleaved-1f1b", "stages_per_rank": 2}),
        (Mesh(pp=2, tp=2, dp_replicate=2), {}),
        (Mesh(dp_shard=8), {}),
        (Mesh(dp_replicate=8), {}),
        (Mesh(tp=4, dp_replicate=2), {}),
        (Mesh(tp=4), {}),
        (Mesh(pp=2, tp=4), {}),
    ],
    ids=str,
)
def test_models_with_a_tied_weight_take_and_need_as_much_as_each_alone(mesh: Mesh, settings: dict[str, object]) -> None:
    traces, chip = source_of("gpt2").traces(), load_catalog().chip("h100-80gb-sxm")
    techniques = Strategy("amp-bf16", optimizer="adamw")
    table, parallelism = BlockTable(traces, chip, techniques, micro_batches=(1, 4)), Parallelism(**settings)  # type: ignore[arg-type]
    on = f"h100-sxm:{mesh.devices}"
    check_against_forecasts(table, StepPricer(traces), on, techniques.but(mesh=mesh, parallelism=parallelism))


@pytest.mark.parametrize(
    "techniques",
    [
        Strategy("amp-bf16", optimizer="adamw-8bit"),
        Strategy("amp-bf16", optimizer="adamw", adapter="lora"),
        Strategy("amp-bf16", optimizer="adamw", adapter="qlora"),
    ],
    ids=["adamw-8bit", "lora", "qlora"],
)
def test_steps_of_other_techniques_take_and_need_as_much_as_each_alone(techniques: Strategy) -> None:
    traces, chip = source_of("llama2-7b").traces(), load_catalog().chip("h100-80gb-sxm")
    table, pricer = BlockTable(traces, chip, techniques, micro_batches=(1, 4)), StepPricer(traces)
    variants = (BlockVariant(), BlockVariant("full"))
    for mesh in (Mesh(dp_replicate=8), Mesh(dp_shard=8), Mesh(pp=2, dp_shard=4), Mesh(pp=8)):
        if techniques.adapter == "none" or mesh.dp_shard == 1:  # adapters are recorded without shards
            check_against_forecasts(table, pricer, "h100-sxm:8", techniques.but(mesh=mesh), variants)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("per_rank", [1, 2, 3])
@pytest.mark.parametrize(("apart", "share"), [(0.07, 0.998), (0.2, 0.99)])
def test_pipelines_in_closed_form_take_as_long_as_simulated_ones(ranks: int, per_rank: int, apart: float, share: float) -> None:
    schedule = "1f1b" if per_rank == 1 else "interleaved-1f1b"
    parallelism, random = Parallelism(pipeline_schedule=schedule, stages_per_rank=per_rank), np.random.default_rng(ranks)
    kinds = [0, *[1] * (ranks - 2), min(2, ranks - 1)]
    for micro_batches in (ranks, ranks + 1, 2 * ranks, 5 * ranks):
        forward_s = random.uniform(1 - apart, 1 + apart, size=min(3, ranks)) / per_rank
        backward_s = 2 * random.uniform(1 - apart, 1 + apart, size=min(3, ranks)) / per_rank
        send_s = float(random.choice([0.0, 0.02, 0.1, 0.3])) / per_rank
        stages = [
            StageTime(
                forward_s[kinds[stage % ranks]], backward_s[kinds[stage % ranks]] / 2, backward_s[kinds[stage % ranks]] / 2
            )
            for stage in range(ranks * per_rank)
        ]
        simulated = finish_s(PipelineStep(parallelism, ranks, micro_batches, tuple(stages), send_s))
        differ = [0, 1, 2] if ranks > 2 else [0, 1, 1]
        closed_s = pipeline_s(
            per_rank,
            ranks=ranks,
            micro_batches=np.array(micro_batches),
            forward_s=forward_s[differ],
            backward_s=backward_s[differ],
            send_s=np.array(send_s),
        )
        assert share * simulated[0] <= closed_s[0] <= simulated[0] * (1 + 1e-9)


@pytest.mark.parametrize(("ranks", "per_rank", "micro_batches"), [(4, 2, 1), (4, 2, 2), (4, 5, 3), (8, 3, 2), (12, 6, 4)])
def test_an_interleaved_pipeline_with_fewer_micro_batches_than_ranks_waits_between_its_stages(
    ranks: int, per_rank: int, micro_batches: int
) -> None:
    parallelism = Parallelism(pipeline_schedule="interleaved-1f1b", stages_per_rank=per_rank)
    stages = tuple(StageTime(1.0, 1.0, 1.0) for _ in range(ranks * per_rank))
    simulated = finish_s(PipelineStep(parallelism, ranks, micro_batches, stages, 0.02))
    closed_s = pipeline_s(
        per_rank,
        ranks=ranks,
        micro_batches=np.array(micro_batches),
        forward_s=np.ones(3),
        backward_s=np.full(3, 2.0),
        send_s=np.array(0.02),
    )
    assert closed_s[0] == pytest.approx(simulated[0])


def test_five_blocks_stand_for_all() -> None:
    whole = source_of("llama3-8b").traces().family(Strategy(precision="bf16")).at(micro_batch=1, accumulation=2)
    shallow = shallow_step(whole)
    assert shallow.blocks == len(whole.header.blocks) == 32
    assert len(shallow.trace.header.blocks) == 5
    sections = shallow.sections(shallow.trace)
    segments = segments_of(whole)
    assert (sections == 2).sum() == (segments == 1).sum()
    assert len(shallow.trace.sequence) < len(whole.sequence) / 5


def test_models_without_equal_blocks_are_not_composed() -> None:
    resnet = source_of("resnet50").traces().family(Strategy(precision="amp-bf16")).at(micro_batch=8, accumulation=2)
    with pytest.raises(UnsupportedError, match="blocks"):
        shallow_step(resnet)
