"""Ranks of a mesh, composed from recordings of presets: what each holds, does and exchanges. No PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import CATEGORIES, Trace, live_bytes
from gpuwise.trace.parallel.communication import group_along
from gpuwise.trace.parallel.ranks import RankStep, rank_steps
from gpuwise.trace.parallel.stage import stage_step
from gpuwise.trace.parallel.tensor_layers import split_layers
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.trace.presets import load_preset

SEQ_LEN = 1024


def step(name: str, strategy: Strategy) -> Callable[[int], Trace]:
    recorded = recorded_as(strategy)
    family = load_preset(name, precision=recorded.precision, recompute=recorded.recompute)
    assert family is not None

    def at(parts: int) -> Trace:
        return family.at(accumulation=strategy.accumulation, micro_batch=strategy.micro_batch, seq_len=SEQ_LEN // parts)

    return at


def ranks(name: str, strategy: Strategy) -> tuple[RankStep, ...]:
    steps = rank_steps(step(name, strategy), strategy)
    for rank in steps:
        rank.trace.check()
    return steps


def one(name: str, **changes: object) -> RankStep:
    (rank,) = ranks(name, Strategy("bf16", **changes))  # type: ignore[arg-type]
    return rank


def bytes_of(trace: Trace, category: str) -> int:
    return int(trace.storages.size_bytes[trace.storages.category == CATEGORIES.index(category)].sum())


def payload(rank: RankStep, axis: str) -> int:
    return sum(c.payload_bytes for c in rank.communication.collectives if c.group.axis == axis)


# Pipelines.


def test_stages_of_a_pipeline_hold_and_do_what_one_device_does() -> None:
    strategy = Strategy("bf16", mesh=Mesh(pp=4), accumulation=4)
    whole = step("llama3-8b", strategy)(1)
    stages = [stage_step(whole, strategy, rank)[0] for rank in range(4)]
    assert sum(bytes_of(stage, "parameter") for stage in stages) == bytes_of(whole, "parameter")
    assert sum(bytes_of(stage, "gradient") for stage in stages) == bytes_of(whole, "gradient")
    assert sum(stage.flops() for stage in stages) == whole.flops()
    assert [path for stage in stages for path in stage.header.blocks] == list(whole.header.blocks)


def test_both_stages_that_use_a_tied_weight_have_it() -> None:
    strategy = Strategy("bf16", mesh=Mesh(pp=2), accumulation=2)
    whole = step("gpt2", strategy)(1)
    words = 50_257 * 768 * 2
    stages = [stage_step(whole, strategy, rank)[0] for rank in range(2)]
    for category in ("parameter", "gradient"):
        assert sum(bytes_of(stage, category) for stage in stages) == bytes_of(whole, category) + words


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_first_stage_has_most_in_flight(recompute: str) -> None:
    strategy = Strategy("bf16", mesh=Mesh(pp=8), accumulation=8, recompute=recompute)
    first, middle, last = ranks("llama3-8b", strategy)
    assert [rank.name for rank in (first, middle, last)] == ["first", "middle", "last"]
    activations = [bytes_of(rank.trace, "activation") for rank in (first, middle, last)]
    assert activations[0] > activations[1]
    gpipe = ranks("llama3-8b", strategy.but(parallelism=Parallelism(pipeline_schedule="gpipe"), accumulation=16))
    assert live_bytes(gpipe[0].trace).peak_bytes > live_bytes(first.trace).peak_bytes
    # Activations forth and gradients back, once each micro-batch.
    assert payload(middle, "pp") == 2 * 8 * SEQ_LEN * 4096 * 2


# Tensor parallelism.


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_tensor_parallel_ranks_share_weights_and_products(recompute: str, sequence: bool) -> None:
    parallelism = Parallelism(sequence_parallel=sequence)
    whole = step("llama3-8b", Strategy("bf16", recompute=recompute))(1)
    sizes, peaks = [], []
    for tp in (2, 4, 8):
        rank = one("llama3-8b", mesh=Mesh(tp=tp), recompute=recompute, parallelism=parallelism)
        norms = 65 * 4096 * 2
        assert tp * (bytes_of(rank.trace, "parameter") - norms) == bytes_of(whole, "parameter") - norms
        assert rank.trace.model_flops == pytest.approx(whole.model_flops / tp, rel=1e-6)
        assert rank.model_flops == whole.model_flops
        sizes.append(payload(rank, "tp"))
        peaks.append(live_bytes(rank.trace).peak_bytes)
    assert len(set(sizes)) == 1
    assert peaks == sorted(peaks, reverse=True)


def test_sequence_parallel_saves_activations_and_loss_parallel_logits() -> None:
    plain = one("llama3-8b", mesh=Mesh(tp=8))
    sequence = one("llama3-8b", mesh=Mesh(tp=8), parallelism=Parallelism(sequence_parallel=True))
    loss = one("llama3-8b", mesh=Mesh(tp=8), parallelism=Parallelism(sequence_parallel=True, loss_parallel=True))
    activations = [live_bytes(rank.trace).by_category["activation"] for rank in (plain, sequence)]
    assert activations[1] < 0.8 * activations[0]
    assert live_bytes(loss.trace).peak_bytes < live_bytes(sequence.trace).peak_bytes
    assert payload(loss, "tp") < payload(sequence, "tp")


@pytest.mark.parametrize(
    ("name", "columns", "row", "gathered"),
    [
        ("llama3-8b", ("attention.q", "attention.k", "attention.v"), "attention.out", False),
        ("bert-base", ("q", "k", "v"), "out", False),
        ("gpt2", ("qkv",), "out", True),
        ("t5-base", ("attention.q", "attention.k", "attention.v"), "attention.out", False),
        ("mixtral-8x7b", ("attention.q", "attention.k", "attention.v"), "attention.out", False),
    ],
)
def test_layers_that_feed_another_are_recognised(name: str, columns: tuple[str, ...], row: str, gathered: bool) -> None:
    trace = step(name, Strategy("bf16"))(2)
    first = split_layers(trace, 2).pairs[0]
    block = trace.header.blocks[0]
    assert tuple(trace.modules[layer.module] for layer in first.columns) == tuple(f"{block}.{name}" for name in columns)
    assert trace.modules[first.row.module] == f"{block}.{row}"
    assert first.gathered is gathered


# Context and expert parallelism.


@pytest.mark.parametrize("context", ["gather", "all-to-all", "ring"])
def test_context_parallel_ranks_do_their_share_of_attention(context: str) -> None:
    whole = step("llama3-8b", Strategy("bf16"))(1)
    rank = one("llama3-8b", mesh=Mesh(cp=4), parallelism=Parallelism(context=context))
    assert rank.trace.model_flops == pytest.approx(whole.model_flops / 4, rel=1e-6)
    assert rank.trace.header.sizes == whole.header.sizes
    assert payload(rank, "cp") > 0
    keys_and_values = 2 * 32 * 8 * 128 * SEQ_LEN * 2  # of 32 blocks with 8 heads of 128
    if context == "gather":
        assert payload(rank, "cp") == 2 * keys_and_values


def test_parts_of_the_sequence_go_to_whole_heads() -> None:
    parallelism = Parallelism(context="all-to-all")
    with pytest.raises(InputError, match="over 8 devices of cp does not divide the 12 heads"):
        one("gpt2", mesh=Mesh(cp=8), parallelism=parallelism)
    one("gpt2", mesh=Mesh(cp=4), parallelism=parallelism)


def test_expert_parallel_ranks_keep_their_experts() -> None:
    strategy = Strategy("bf16", mesh=Mesh(dp_shard=8, ep=4), recompute="full")
    (rank,) = ranks("mixtral-8x7b", strategy)
    (plain,) = ranks("mixtral-8x7b", strategy.but(mesh=Mesh(dp_shard=8)))
    for category in ("parameter", "optimizer_state"):
        assert bytes_of(rank.trace, category) == pytest.approx(bytes_of(plain.trace, category), rel=1e-3)
    assert rank.trace.model_flops == pytest.approx(plain.trace.model_flops, rel=0.02)
    gathered = [r.communication.bytes_of("all_gather") for r in (rank, plain)]
    assert gathered[0] < 0.35 * gathered[1]
    tokens = SEQ_LEN * 2 * 4096 * 2  # two experts a token
    assert payload(rank, "ep") == 32 * 6 * tokens


# Shards.


def test_parameters_that_stay_after_forward_are_gathered_once_and_take_memory() -> None:
    mesh = Mesh(dp_shard=8)
    freed = one("llama3-8b", mesh=mesh)
    kept = one("llama3-8b", mesh=mesh, parallelism=Parallelism(shard="gradients"))
    gathered = [rank.communication.bytes_of("all_gather") for rank in (freed, kept)]
    assert gathered[1] < 0.6 * gathered[0]
    assert live_bytes(kept.trace).peak_bytes > live_bytes(freed.trace).peak_bytes
    for category in ("parameter", "gradient", "optimizer_state"):
        assert bytes_of(kept.trace, category) == bytes_of(freed.trace, category)


def test_gradients_in_bf16_are_half_as_much_to_reduce() -> None:
    plain, half = (
        one("llama3-8b", mesh=Mesh(dp_shard=8), parallelism=Parallelism(compress_gradients=on)) for on in (False, True)
    )
    assert 2 * half.communication.bytes_of("reduce_scatter") == plain.communication.bytes_of("reduce_scatter")


def test_shards_of_a_stage_are_reduced_once_a_step() -> None:
    strategy = Strategy("bf16", mesh=Mesh(dp_shard=4, pp=2), accumulation=4)
    once, twice = (ranks("llama3-8b", strategy.but(accumulation=n))[0].communication for n in (4, 8))
    assert once.bytes_of("reduce_scatter") == twice.bytes_of("reduce_scatter")
    assert 2 * once.bytes_of("send") == twice.bytes_of("send")


# Meshes.


def test_groups_follow_the_order_of_the_axes() -> None:
    mesh = Mesh(pp=2, dp_replicate=3, dp_shard=4, cp=5, tp=8)
    strides = {axis: group_along(mesh, axis).stride for axis in ("tp", "cp", "dp_shard", "dp_replicate", "pp")}
    assert strides == {"tp": 1, "cp": 8, "dp_shard": 40, "dp_replicate": 160, "pp": 480}
    both = group_along(mesh, "dp_shard", "cp")
    assert (both.axis, both.ranks, both.stride) == ("dp_shard+cp", 20, 8)
    experts = Mesh(dp_shard=8, ep=4, tp=2)
    assert (group_along(experts, "ep").ranks, group_along(experts, "ep").stride) == (4, 2)
    assert (group_along(experts, "dp_shard/ep").ranks, group_along(experts, "dp_shard/ep").stride) == (2, 8)


@pytest.mark.parametrize(
    ("name", "strategy", "words"),
    [
        ("llama3-8b", Strategy("bf16", mesh=Mesh(tp=16)), "does not divide the 8 heads"),
        ("gpt2", Strategy("bf16", mesh=Mesh(tp=5)), "does not divide the 2,304 outputs"),
        ("llama3-8b", Strategy("bf16", mesh=Mesh(pp=40), accumulation=40), "it has 32 repeated blocks"),
        ("llama3-8b", Strategy("bf16", mesh=Mesh(pp=4), accumulation=2), "at least 4 micro-batches"),
        ("llama3-8b", Strategy("bf16", mesh=Mesh(cp=3)), "do not divide a sequence of 1,024"),
        ("mixtral-8x7b", Strategy("bf16", mesh=Mesh(dp_shard=4, ep=3)), "ep divides dp_shard"),
        ("mixtral-8x7b", Strategy("bf16", mesh=Mesh(dp_shard=16, ep=16)), "does not divide 8 experts"),
    ],
)
def test_axes_that_do_not_divide_are_refused(name: str, strategy: Strategy, words: str) -> None:
    with pytest.raises(InputError, match=words) as refusal:
        ranks(name, strategy)
    assert refusal.value.ways_out


@pytest.mark.parametrize(
    ("name", "strategy", "words"),
    [
        ("llama3-8b", Strategy("bf16", mesh=Mesh(dp_shard=4, ep=2)), "has no experts"),
        ("llama3-8b", Strategy("bf16", mesh=Mesh(tp=2), adapter="lora", recompute="full"), "low-rank adapters"),
        ("llama3-8b", Strategy("bf16", mesh=Mesh(tp=2), compile=True), "compiled step"),
        ("llama3-8b", Strategy("bf16", mesh=Mesh(tp=2), mode="infer"), "forward pass"),
    ],
)
def test_what_is_not_forecast_is_refused(name: str, strategy: Strategy, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as refusal:
        ranks(name, strategy)
    assert refusal.value.ways_out


def test_operations_of_a_rank_are_whole_numbers_from_zero() -> None:
    strategy = Strategy("bf16", mesh=Mesh(dp_shard=2, tp=2, pp=2, cp=2), accumulation=2)
    for rank in ranks("llama3-8b", strategy):
        assert (rank.trace.operations.values >= 0).all()
        assert (rank.trace.storages.size_bytes >= 0).all()
        assert np.issubdtype(rank.trace.operations.values.dtype, np.integer)
