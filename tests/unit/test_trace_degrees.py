"""The step of a rank on more ranks follows from recordings on two and four: equal to a recording on that mesh."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_trace_repeat import differences
from test_trace_sharded import language_job
from tests.quick import quick

from gpuwise.errors import InputError
from gpuwise.job import Job
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import live_bytes
from gpuwise.trace.parallel.divided import MeshAxis, divided_dimensions
from gpuwise.tracing import rank_family, record

SEQUENCE = Parallelism(sequence_parallel=True)
LOSS = Parallelism(sequence_parallel=True, loss_parallel=True)


def llama(**changes: Any) -> Job:
    sizes = {"vocabulary": 512, "width": 256, "layers": 2, "heads": 16, "kv_heads": 16, "hidden": 768} | changes
    return language_job(lambda: Llama(LlamaConfig(**sizes)), vocabulary=sizes["vocabulary"], seq_len=32)


def check_equal(job: Job, strategy: Strategy, *meshes: Mesh, position: int = 0) -> None:
    family = rank_family(job, strategy, position=position)
    assert family is not None
    for mesh in meshes or (strategy.mesh,):
        rank = position * (mesh.devices // mesh.pp)
        trace, direct = family.at(mesh), record(job, strategy.but(mesh=mesh), rank=rank)
        assert trace is not None
        assert differences(trace.check(), direct) == []
        assert live_bytes(trace).peak_bytes == live_bytes(direct).peak_bytes


QUICK = [
    Strategy("bf16", mesh=Mesh(tp=8)),
    Strategy("bf16", mesh=Mesh(tp=8), parallelism=LOSS, optimizer="sgd", optimizer_kernels="for-loop"),
    Strategy("bf16", mesh=Mesh(dp_shard=8)),
    Strategy("fp32", mesh=Mesh(dp_replicate=5)),
]
SLOW = [
    Strategy("bf16", mesh=Mesh(cp=8)),
    Strategy("amp-bf16", mesh=Mesh(tp=8), parallelism=SEQUENCE, accumulation=3, recompute="full"),
    Strategy("amp-bf16", mesh=Mesh(dp_shard=8), parallelism=Parallelism(shard="optimizer"), accumulation=4),
    Strategy("bf16", mesh=Mesh(dp_shard=8), parallelism=Parallelism(shard="gradients"), recompute="selective"),
    Strategy("bf16", mesh=Mesh(dp_replicate=3, dp_shard=16)),
    Strategy("bf16", mesh=Mesh(pp=2, tp=8), accumulation=3, parallelism=SEQUENCE),
    Strategy("bf16", mesh=Mesh(pp=2, dp_shard=8), accumulation=2, parallelism=Parallelism(shard="gradients")),
    Strategy("bf16", mesh=Mesh(dp_shard=4, cp=8)),
    Strategy("bf16", mesh=Mesh(cp=8), parallelism=Parallelism(context="all-to-all"), accumulation=3),
]


@pytest.mark.parametrize(
    "strategy",
    quick([*QUICK, *SLOW], slow=SLOW),
    ids=[f"{s.mesh} {s.precision} {'+'.join(s.parallelism.to_dict())}" for s in (*QUICK, *SLOW)],
)
def test_a_step_on_more_ranks_is_the_one_that_is_recorded(strategy: Strategy) -> None:
    check_equal(llama(), strategy)


def test_parts_that_are_rounded_up_on_the_first_rank() -> None:
    check_equal(llama(vocabulary=511), Strategy("bf16", mesh=Mesh(dp_shard=8)))


@pytest.mark.slow
def test_both_degrees_may_vary() -> None:
    check_equal(llama(), Strategy("bf16", mesh=Mesh(dp_shard=8, tp=8), parallelism=LOSS))


@pytest.mark.slow
def test_a_later_stage() -> None:
    check_equal(llama(layers=3), Strategy("bf16", mesh=Mesh(pp=3, dp_shard=8, tp=2), accumulation=3), position=1)


@pytest.mark.slow
def test_one_family_has_many_meshes() -> None:
    strategy = Strategy("bf16", mesh=Mesh(dp_shard=8, tp=4))
    check_equal(llama(), strategy, strategy.mesh, Mesh(dp_shard=2, tp=8), Mesh(dp_shard=16, tp=2))


@pytest.mark.slow
def test_degrees_need_be_no_powers_of_two() -> None:
    job = llama(vocabulary=960, width=960, heads=24, kv_heads=24, hidden=960)
    check_equal(job, Strategy("bf16", mesh=Mesh(dp_shard=3, tp=2)), Mesh(dp_shard=3, tp=2), Mesh(dp_shard=5, tp=6))


def test_launches_over_many_tensors_are_counted_at_each_degree() -> None:
    job = llama(vocabulary=32_000, width=2048, layers=2, heads=32, kv_heads=16, hidden=8192)
    check_equal(job, Strategy("bf16", mesh=Mesh(dp_shard=8), optimizer="adamw"), Mesh(dp_shard=8), Mesh(dp_shard=32))


@pytest.mark.slow
def test_launches_of_foreach_are_counted_at_each_degree() -> None:
    job = llama(vocabulary=32_000, width=2048, layers=2, heads=32, kv_heads=16, hidden=8192)
    check_equal(job, Strategy("bf16", mesh=Mesh(tp=8), optimizer="adamw", optimizer_kernels="foreach"))


@pytest.mark.slow
def test_recordings_of_few_blocks_serve_as_well() -> None:
    check_equal(llama(layers=16), Strategy("bf16", mesh=Mesh(tp=8), optimizer="adamw"))


@pytest.mark.slow
def test_another_model_with_tied_weights_and_biases() -> None:
    config = Gpt2Config(vocabulary=512, positions=32, width=256, layers=1, heads=16)
    check_equal(language_job(lambda: Gpt2(config), vocabulary=512, seq_len=32), Strategy("bf16", mesh=Mesh(dp_shard=4, tp=8)))


@pytest.mark.parametrize(
    ("job", "mesh"),
    [
        (llama(kv_heads=8), Mesh(tp=8)),  # one key-value head broadcasts: other operations
        (llama(vocabulary=508), Mesh(dp_shard=8)),  # 4 divides 508, 8 does not: shards are padded
        (llama(hidden=500), Mesh(dp_shard=8)),
        (llama(), Mesh(dp_shard=256)),  # shards of one row
    ],
    ids=["one head", "uneven vocabulary", "uneven products", "one row"],
)
def test_a_degree_that_recordings_do_not_show_is_refused(job: Job, mesh: Mesh) -> None:
    family = rank_family(job, Strategy("bf16", mesh=mesh))
    assert family is not None
    assert family.at(mesh) is None


def test_shards_that_are_uneven_on_the_recorded_ranks_make_no_family() -> None:
    assert rank_family(llama(vocabulary=510), Strategy("bf16", mesh=Mesh(dp_shard=8))) is None


def test_a_mesh_with_another_axis_is_refused() -> None:
    family = rank_family(llama(), Strategy("bf16", mesh=Mesh(tp=2)))
    assert family is not None
    assert family.at(Mesh(dp_shard=2, tp=8)) is None
    assert family.at(Mesh(tp=3)) is None
    assert family.at(Mesh()) is None


def test_steps_that_are_not_plain_make_no_family() -> None:
    strategy = Strategy("bf16", mesh=Mesh(dp_shard=8))
    assert rank_family(llama(), Strategy("bf16")) is None
    assert rank_family(replace(llama(), clip_norm=1.0), strategy) is None
    assert rank_family(llama(), strategy.but(optimizer="adamw-8bit")) is None


@given(
    a=st.integers(0, 10**12),
    c=st.integers(0, 10**9),
    start=st.integers(1, 64),
    step=st.integers(1, 64),
    at=st.integers(1, 4096),
)
def test_the_basis_of_a_degree_is_exact(a: int, c: int, start: int, step: int, at: int) -> None:
    axis = MeshAxis("tp", start, step, 1)
    first, second = (a + Fraction(c, point) for point in axis.points)
    value = float(first) * axis.basis(at)[0] + float(second - first) * axis.basis(at)[1]
    assert value == pytest.approx(float(a + Fraction(c, at)), rel=1e-9)


TP = (MeshAxis("tp", start=2, step=2, degree=1),)
INPUT = ((8, 64),)


@pytest.mark.parametrize(
    ("two", "four", "divided"),
    [
        ((8, 64), (8, 32), [(64, 32)]),
        ((2, 64), (4, 32), [(64, 32)]),  # a row for each rank
        ((100,), (80,), [(100, 80)]),  # a buffer: 60 elements, and 80 that are divided
        ((8, 8), (4, 4), None),  # two divided dimensions: elements fall with the square
        ((2, 8), (4, 8), None),  # grows
        ((3,), (1,), None),  # falls faster than the degree
        ((8, 64), (8, 64, 1), None),
    ],
)
def test_shapes_tell_what_a_degree_divides(
    two: tuple[int, ...], four: tuple[int, ...], divided: list[tuple[int, ...]] | None
) -> None:
    calls = [[(INPUT, (shape,))] for shape in (two, four)]
    assert divided_dimensions(calls, TP) == divided


def test_a_list_with_a_tensor_for_each_rank_is_one_tensor() -> None:
    assert divided_dimensions([[((((1, 32)),) * 2,)], [(((1, 16),) * 4,)]], TP) == [(32, 16)]
    assert divided_dimensions([[((((1, 32)),) * 2,)], [(((1, 16), (2, 8), (1, 1)),)]], TP) is None


def test_uneven_heads_are_refused_as_a_recording_refuses_them() -> None:
    with pytest.raises(InputError, match="divide"):
        rank_family(llama(heads=6, kv_heads=6, width=192), Strategy("bf16", mesh=Mesh(tp=2)))
