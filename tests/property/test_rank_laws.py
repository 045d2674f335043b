"""Laws of composed ranks: what all hold together is what one device holds; more ranks never hold more each."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import CATEGORIES, Trace, TraceFamily, live_bytes
from gpuwise.trace.parallel.ranks import RankStep, rank_steps
from gpuwise.trace.parallel.stage import stage_step
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.trace.presets import load_preset

SEQ_LEN = 512


def family(recompute: str) -> TraceFamily:
    recorded = load_preset("llama3-8b", precision="bf16", recompute=recompute)
    assert recorded is not None
    return recorded


def ranks(strategy: Strategy) -> tuple[RankStep, ...]:
    recorded = family(recorded_as(strategy).recompute)

    def step(parts: int) -> Trace:
        return recorded.at(accumulation=strategy.accumulation, micro_batch=1, seq_len=SEQ_LEN // parts)

    return rank_steps(step, strategy)


def parameter_bytes(trace: Trace) -> int:
    return int(trace.storages.size_bytes[trace.storages.category == CATEGORIES.index("parameter")].sum())


DEGREES = st.sampled_from([1, 2, 4])
MESHES = st.builds(Mesh, dp_shard=DEGREES, tp=DEGREES, cp=DEGREES, pp=DEGREES)
RECOMPUTES = st.sampled_from(["none", "full"])


@settings(deadline=None, max_examples=20)
@given(MESHES, RECOMPUTES, st.booleans())
def test_ranks_hold_whole_parameters_together(mesh: Mesh, recompute: str, sequence: bool) -> None:
    strategy = Strategy(
        "bf16", mesh=mesh, accumulation=4, recompute=recompute, parallelism=Parallelism(sequence_parallel=sequence)
    )
    whole = family(recompute).at(seq_len=SEQ_LEN)
    steps = ranks(strategy)
    for rank in steps:
        rank.trace.check()
        assert (rank.trace.storages.size_bytes >= 0).all()
    if mesh.pp == 1:
        norms = 65 * 4096 * 2  # every tensor-parallel rank has them whole
        shared = mesh.devices * parameter_bytes(steps[0].trace)
        assert parameter_bytes(whole) <= shared <= parameter_bytes(whole) + mesh.tp * norms + mesh.devices * 300


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(["dp_shard", "tp", "cp"]), RECOMPUTES)
def test_more_ranks_hold_less_each(axis: str, recompute: str) -> None:
    peaks = [
        live_bytes(ranks(Strategy("bf16", mesh=Mesh(**{axis: degree}), recompute=recompute))[0].trace).peak_bytes
        for degree in (1, 2, 4, 8)
    ]
    assert peaks == sorted(peaks, reverse=True)


@settings(deadline=None, max_examples=15)
@given(st.integers(2, 16), RECOMPUTES)
def test_stages_do_the_whole_step_together(stages: int, recompute: str) -> None:
    strategy = Strategy("bf16", mesh=Mesh(pp=stages), accumulation=stages, recompute=recompute)
    whole = family(recompute).at(accumulation=stages, seq_len=SEQ_LEN)
    steps = [stage_step(whole, strategy, rank)[0] for rank in range(stages)]
    assert sum(step.flops() for step in steps) == whole.flops()
    assert sum(parameter_bytes(step) for step in steps) == parameter_bytes(whole)
