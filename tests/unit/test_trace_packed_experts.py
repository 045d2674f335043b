"""Ranks of Transformers' models, composed and recorded: mixtures whose experts lie in one module, and norms of heads."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from test_trace_sharded import language_job
from test_tracing_experts import mixture_job
from tests.quick import quick
from torch import Tensor, nn

from gpuwise.api.devices import device_of
from gpuwise.api.sources import source_of
from gpuwise.errors import UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.job import Job
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.plan.compose.best import best_on
from gpuwise.plan.compose.blocks import JobBlocks
from gpuwise.plan.fit.least_bytes import least_kept_bytes
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import CATEGORIES, KINDS, Trace, live_bytes
from gpuwise.trace.memory import kept_bytes
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.experts import experts_of
from gpuwise.trace.parallel.ranks import RankStep, rank_steps
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.tracing import record

SEQ_LEN, VOCABULARY = 64, 1000
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": SEQ_LEN,
    "head_dim": 64,
}
SMALL_EXPERTS = {"moe_intermediate_size": 96, "num_experts_per_tok": 4}
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 32, "n_group": 4, "topk_group": 2, "num_key_value_heads": 4}
FAMILIES = {
    "Mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 16, **SMALL_EXPERTS},
    "GptOss": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "DeepseekV3": {"n_routed_experts": 16, "first_k_dense_replace": 1, **SMALL_EXPERTS, **LATENT},
    "Qwen3": {},
}


def hub_model(family: str) -> nn.Module:
    make_importable()
    import transformers

    config = getattr(transformers, f"{family}Config")(**{**SIZES, **FAMILIES[family]})
    return transformers.AutoModelForCausalLM.from_config(config)


def hub_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch, use_cache=False).loss


def hub_job(family: str) -> Job:
    def batch(n: int) -> dict[str, Tensor]:
        tokens = torch.zeros(n, SEQ_LEN, dtype=torch.int64)
        return {"input_ids": tokens, "labels": tokens}

    return Job(partial(hub_model, family), batch, hub_loss, name=family, seq_len=SEQ_LEN)


def small_mixtral() -> Job:
    """A mixture with modules for its experts."""
    config = MixtralConfig(vocabulary=512, width=128, layers=2, heads=4, kv_heads=2, hidden=256, experts=8, experts_per_token=2)
    return language_job(lambda: Mixtral(config), vocabulary=512, seq_len=32)


def both(job: Job, strategy: Strategy) -> tuple[tuple[Trace, Communication], RankStep]:
    """The recorded step of rank 0 with its communication, and the composed one."""
    recorded = split_communication(record(job, strategy))
    whole = record(job, recorded_as(strategy).but(mesh=Mesh(), accumulation=1)).with_accumulation(strategy.accumulation)
    return recorded, rank_steps(lambda parts: whole, strategy)[0]


def bytes_of(trace: Trace, category: str) -> int:
    """Without counters of steps."""
    storages = trace.storages
    kept = (storages.category == CATEGORIES.index(category)) & (storages.size_bytes > 4)
    return int(storages.size_bytes[kept].sum())


def exchanged(communication: Communication) -> Counter[tuple[str, int, int]]:
    """Payloads of collectives, by operation, ranks and stride."""
    payloads = Counter[tuple[str, int, int]]()
    for one in communication.collectives:
        payloads[one.operation, one.group.ranks, one.group.stride] += one.payload_bytes
    return payloads


def product_bytes(trace: Trace) -> int:
    operations = trace.operations
    each = operations.column("bytes_read") + operations.column("bytes_written")
    return int((each * trace.counts())[operations.kind == KINDS.index("gemm")].sum())


CASES = [
    ("Qwen3Moe", Strategy("bf16", micro_batch=4, mesh=Mesh(dp_shard=8, ep=4), accumulation=3), 0.03),
    ("Mixtral", Strategy("amp-bf16", micro_batch=8, mesh=Mesh(dp_shard=8, ep=2)), 0.04),
    ("Mixtral", Strategy("bf16", micro_batch=4, mesh=Mesh(dp_shard=4, ep=4)), 0.03),
    ("GptOss", Strategy("bf16", micro_batch=4, mesh=Mesh(dp_replicate=2, dp_shard=4, ep=4)), 0.03),
    ("DeepseekV3", Strategy("bf16", micro_batch=4, mesh=Mesh(dp_shard=8, ep=4), accumulation=2), 0.03),
    # A block is gathered ahead with its experts, which the program gathers later: all that so small a model has in memory.
    ("Qwen3Moe", Strategy("fp32", micro_batch=4, mesh=Mesh(dp_shard=4, ep=2), recompute="full"), 0.12),
]


@pytest.mark.parametrize(("family", "strategy", "memory"), quick(CASES, slow=CASES[2:]), ids=str)
def test_a_rank_with_some_experts_is_composed_as_it_is_recorded(family: str, strategy: Strategy, memory: float) -> None:
    """Weights, state, exchanges and products equal; peak memory nearly."""
    (recorded, communication), composed = both(hub_job(family), strategy)
    for category in ("parameter", "optimizer_state"):
        assert bytes_of(composed.trace, category) == pytest.approx(bytes_of(recorded, category), rel=1e-3)
    for phase in ("forward", "backward", "recompute"):
        assert composed.trace.flops(phase) == recorded.flops(phase)
    assert product_bytes(composed.trace) == pytest.approx(product_bytes(recorded), rel=1e-3)
    own, of_recorded = exchanged(composed.communication), exchanged(communication)
    assert own.keys() == of_recorded.keys()
    for key, payload in of_recorded.items():
        assert own[key] == pytest.approx(payload, rel=1e-3), key
    peaks = live_bytes(composed.trace).peak_bytes, live_bytes(recorded).peak_bytes
    assert -0.01 < peaks[0] / peaks[1] - 1 < memory


def test_experts_with_modules_of_their_own_are_gathered_by_the_ranks_that_share_them() -> None:
    strategy = Strategy("bf16", micro_batch=4, mesh=Mesh(dp_shard=8, ep=4))
    (_, communication), composed = both(small_mixtral(), strategy)
    own, of_recorded = exchanged(composed.communication), exchanged(communication)
    assert own.keys() == of_recorded.keys()
    for key, payload in of_recorded.items():
        assert own[key] == pytest.approx(payload, rel=1e-3), key


def test_a_search_divides_experts_in_one_module_as_exact_forecasts_do() -> None:
    traces, cluster = source_of(hub_job("Qwen3Moe")).traces(), device_of("h100-sxm:4", load_catalog()).cluster
    blocks = JobBlocks(traces, Strategy("amp-bf16", optimizer="adamw"), micro_batches=(1, 2, 4))
    split = [p for p in best_on(blocks, [cluster], global_batch=32, keep=64)[0].points if p.strategy.mesh.ep > 1]
    assert {point.strategy.mesh.ep for point in split} == {2, 4}
    for point in split[::3]:
        exact = StepPricer(traces).forecast(point.strategy, cluster, replay=False)
        assert point.step_s == pytest.approx(exact.step_time_s.value, rel=0.005)
        assert point.device_bytes == pytest.approx(exact.memory.device_bytes, rel=0.005)


def test_a_recording_names_the_modules_that_hold_all_experts() -> None:
    header = record(hub_job("DeepseekV3"), Strategy("bf16")).header
    assert header.expert_modules == ("model.layers.1.mlp.experts", "model.layers.2.mlp.experts")
    assert header.experts == 16
    apart = record(small_mixtral(), Strategy("bf16"))
    assert (apart.header.expert_modules, experts_of(apart)) == ((), 8)


def test_experts_without_grouped_products_are_left_to_a_recording() -> None:
    whole = record(mixture_job(), Strategy(micro_batch=6))
    with pytest.raises(UnsupportedError, match="grouped products alone") as refused:
        rank_steps(lambda parts: whole, Strategy(micro_batch=6, mesh=Mesh(dp_shard=4, ep=4)))
    assert "gpuwise forecast" in refused.value.ways_out[0]


def test_norms_of_heads_stay_whole_on_tensor_parallel_ranks() -> None:
    """Their weights are smaller than what is divided; so are the shapes that the update goes by."""
    (recorded, _), composed = both(hub_job("Qwen3"), Strategy("bf16", micro_batch=4, mesh=Mesh(tp=2)))
    for category in ("parameter", "optimizer_state"):
        assert bytes_of(composed.trace, category) == pytest.approx(bytes_of(recorded, category), rel=0.002)
    updates = [t.storages.size_bytes[t.storages.category == CATEGORIES.index("gradient")] for t in (recorded, composed.trace)]
    assert np.array_equal(np.sort(updates[0]), np.sort(updates[1]))


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_experts_in_one_module_keep_their_type_under_qlora(adapter: str) -> None:
    """bitsandbytes quantizes linear layers alone, which the bound that spares recordings counts on."""
    plain, adapted = (record(hub_job("Qwen3Moe"), Strategy("amp-bf16", adapter=each)) for each in ("none", adapter))
    least = least_kept_bytes(plain, adapted.header.strategy)
    assert 0.8 * kept_bytes(adapted) <= least <= kept_bytes(adapted)
    sharded = adapted.header.strategy.but(adapter="none", mesh=Mesh(dp_shard=4))
    assert least_kept_bytes(plain, sharded) == kept_bytes(plain) / 4
