"""The composition of a sharded rank against FSDP2 itself, run on the virtual accelerator in a fake world of 8."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.quick import quick
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed import device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from gpuwise.errors import UnsupportedError
from gpuwise.job import Job, repeated_blocks
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.runtime.build.adapters import adapted
from gpuwise.runtime.build.optimizers import make_optimizer
from gpuwise.runtime.build.recompute import apply_recompute
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import CATEGORIES, Trace, data_parallel, live_bytes, recorded_as
from gpuwise.trace.memory import rounded
from gpuwise.tracing import accelerator, record, virtual_device
from gpuwise.tracing.compile.install import install
from gpuwise.tracing.recorder import Recorder

RANKS = 8


def language_job(model: Any, *, vocabulary: int, seq_len: int) -> Job:
    return Job(
        model=model,
        batch=lambda n: next_token_batch(n, vocabulary=vocabulary, seq_len=seq_len),
        loss=token_loss,
        seq_len=seq_len,
        sample_unit="token",
        tokens_per_sample=seq_len,
    )


def llama_job(*, seq_len: int = 64, vocabulary: int = 2048) -> Job:
    config = LlamaConfig(vocabulary=vocabulary, width=512, layers=6, heads=8, kv_heads=4, hidden=1536)
    return language_job(lambda: Llama(config), vocabulary=vocabulary, seq_len=seq_len)


def gpt_job() -> Job:
    """Its output matrix is its word embedding, half of its parameters are in neither block."""
    config = Gpt2Config(vocabulary=8192, positions=64, width=256, layers=4, heads=4)
    return language_job(lambda: Gpt2(config), vocabulary=8192, seq_len=64)


class LossOf(nn.Module):
    """The loss of a model, which is what gpuwise.runtime.parallel shards: parameters are gathered for it as a whole."""

    def __init__(self, model: nn.Module, job: Job) -> None:
        super().__init__()
        self.model, self.loss = model, job.loss

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        assert self.loss is not None
        return self.loss(self.model, batch)


@dataclass(frozen=True)
class Measured:
    state_bytes: int
    peak_bytes: int
    all_gather_bytes: int
    reduce_scatter_bytes: int
    calls: int


class Collectives(TorchDispatchMode):
    """Payload of every collective: the bytes of its full tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.payloads: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        if func.namespace == "c10d":
            sizes = [t.numel() * t.element_size() for t in args[:2]]
            self.payloads.append((func._overloadpacket.__name__, max(sizes)))
        return func(*args, **(kwargs or {}))


@contextmanager
def fake_world(ranks: int) -> Iterator[Any]:
    accelerator.register()
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield device_mesh.init_device_mesh("virt", (ranks,))
    finally:
        dist.destroy_process_group()


def run_fsdp(job: Job, strategy: Strategy) -> Measured:
    """The second step of a rank under FSDP2: one unit a block and one for the rest, gradients reduced in fp32."""
    ranks = strategy.mesh.dp_shard
    collectives = Collectives()
    with warnings.catch_warnings(), fake_world(ranks) as mesh:
        warnings.simplefilter("ignore")
        with unset_fake_temporarily(), torch.device("meta"):
            model = adapted(job.model(), strategy)
        if strategy.precision == "bf16":
            model.to(torch.bfloat16)
        apply_recompute(model, strategy.recompute)
        half = None if strategy.precision == "fp32" else torch.bfloat16
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
        with virtual_device.VirtualMode(), torch.autograd.set_multithreading_enabled(False), Recorder("virt") as recorder:
            for block in repeated_blocks(model):
                fully_shard(block, mesh=mesh, mp_policy=policy)
            root = LossOf(model, job)
            fully_shard(root, mesh=mesh, mp_policy=policy)
            model.to_empty(device="virt")
            if strategy.compile:  # inside what fully_shard hooks, as apply_compile does
                install(model, recorder)
            trained = [p for p in model.parameters() if p.requires_grad]
            optimizer = make_optimizer(
                strategy.optimizer or job.optimizer, trained, job.learning_rate, kernels=strategy.optimizer_kernels
            )
            _step(job, strategy, root, optimizer, recorder)
            recorder.start()
            with collectives:
                _step(job, strategy, root, optimizer, recorder)
            state = [t for values in optimizer.state.values() for t in values.values() if t.dim()]
            state_bytes = sum(t.to_local().untyped_storage().nbytes() for t in [*model.parameters(), *state])
            peak_bytes = _peak_bytes(recorder)
    payload = {
        kind: sum(size for name, size in collectives.payloads if kind in name) for kind in ("allgather", "reduce_scatter")
    }
    return Measured(state_bytes, peak_bytes, payload["allgather"], payload["reduce_scatter"], len(collectives.payloads))


def _step(job: Job, strategy: Strategy, root: Any, optimizer: Any, recorder: Recorder) -> None:
    for recorder.micro_step in range(strategy.accumulation):
        recorder.paused = True
        batch = job.batch(strategy.micro_batch)
        recorder.paused = False
        root.set_is_last_backward(recorder.micro_step == strategy.accumulation - 1)
        loss = root({name: tensor.to("virt") for name, tensor in batch.items()})
        loss.backward()
        loss = loss.detach()
    recorder.micro_step = 2
    optimizer.step()
    optimizer.zero_grad(set_to_none=not strategy.keep_gradients)


def _peak_bytes(recorder: Recorder) -> int:
    length = len(recorder.rows)
    change = np.zeros(length + 2, dtype=np.int64)
    for row in recorder.storages.rows:
        size = int(rounded(np.int64(row.size_bytes)))
        change[max(row.born, 0)] += size
        change[(length if row.died is None else row.died) + 1] -= size
    operations = list(recorder.operations)
    inside = np.array([operations[row.operation].values.workspace_bytes for row in recorder.rows])
    return int((np.cumsum(change)[:length] + rounded(inside)).max())


def composed(job: Job, strategy: Strategy) -> tuple[Trace, Any]:
    trace = record(job, recorded_as(strategy).but(mesh=Mesh())).with_accumulation(strategy.accumulation)
    return data_parallel(trace, strategy)


def state_bytes(trace: Trace) -> int:
    """Parameters and optimizer state, without the optimizer's step counters."""
    kept = np.isin(trace.storages.category, [CATEGORIES.index("parameter"), CATEGORIES.index("optimizer_state")])
    return int(trace.storages.size_bytes[kept & (trace.storages.size_bytes > 4)].sum())


CASES = {
    "llama, fp32": (llama_job(), Strategy()),
    "llama, amp-bf16": (llama_job(), Strategy(precision="amp-bf16", micro_batch=4)),
    "llama, bf16, accumulated": (llama_job(), Strategy(precision="bf16", accumulation=2)),
    "llama, amp-bf16, recomputed": (llama_job(seq_len=128), Strategy(precision="amp-bf16", recompute="full", micro_batch=2)),
    "llama, large vocabulary": (llama_job(vocabulary=32_000), Strategy(precision="amp-bf16", recompute="full")),
    "llama, selective": (llama_job(), Strategy(precision="amp-bf16", recompute="selective", micro_batch=4)),
    "llama, adam in foreach kernels": (
        llama_job(),
        Strategy(precision="amp-bf16", optimizer="adam", optimizer_kernels="foreach"),
    ),
    "llama, momentum in bf16": (llama_job(), Strategy(precision="bf16", optimizer="momentum", optimizer_kernels="for-loop")),
    "llama, lora": (llama_job(seq_len=128), Strategy(precision="amp-bf16", adapter="lora", micro_batch=4)),
    "llama, lora in fp32": (llama_job(), Strategy(adapter="lora", micro_batch=8)),
    "llama, lora in bf16, recomputed": (
        llama_job(),
        Strategy(precision="bf16", adapter="lora", recompute="full", accumulation=2, micro_batch=4),
    ),
    "llama, momentum in a loop": (
        llama_job(),
        Strategy(precision="amp-bf16", optimizer="momentum", optimizer_kernels="for-loop"),
    ),
    "llama, gradients kept": (llama_job(), Strategy(precision="amp-bf16", keep_gradients=True)),
    "gpt2, tied": (gpt_job(), Strategy(precision="amp-bf16", micro_batch=2)),
    "llama, compiled": (llama_job(seq_len=128), Strategy(precision="amp-bf16", micro_batch=4, compile=True)),
    "llama, compiled, accumulated": (
        llama_job(seq_len=128),
        Strategy(precision="amp-bf16", micro_batch=4, accumulation=2, recompute="full", compile=True),
    ),
}


LIKE_OTHERS = (
    "llama, amp-bf16, recomputed",
    "llama, adam in foreach kernels",
    "llama, momentum in bf16",
    "llama, momentum in a loop",
    "llama, lora in fp32",
    "llama, lora in bf16, recomputed",
    "llama, compiled",
)


@pytest.mark.parametrize("case", quick(CASES, slow=LIKE_OTHERS))
def test_a_sharded_rank_is_what_fsdp_does(case: str) -> None:
    job, strategy = CASES[case]
    strategy = strategy.but(mesh=Mesh(dp_shard=RANKS))
    truth = run_fsdp(job, strategy)
    trace, communication = composed(job, strategy)
    assert state_bytes(trace) == truth.state_bytes
    assert live_bytes(trace).peak_bytes == pytest.approx(truth.peak_bytes, rel=0.002)
    assert communication.bytes_of("all_gather") == truth.all_gather_bytes
    assert communication.bytes_of("reduce_scatter") == truth.reduce_scatter_bytes
    assert communication.calls == truth.calls
    assert communication.bytes_of("all_reduce") == 0


def optimizer_state_bytes(job: Job, strategy: Strategy) -> int:
    storages = composed(job, strategy.but(mesh=Mesh(dp_shard=RANKS)))[0].storages
    return int(storages.size_bytes[storages.category == CATEGORIES.index("optimizer_state")].sum())


@pytest.mark.slow
def test_state_in_8_bits_is_as_large_in_fp32_shards_as_in_bf16_shards() -> None:
    """Codes, scales and tables depend on how many numbers there are; shards of under 4,096 keep plain state."""
    job = llama_job()
    shards = [math.prod(shape) // RANKS for shape in record(job, Strategy()).header.gradient_shapes]
    assert all(numel % 256 == 0 for numel in shards if numel >= 4096)
    for optimizer, code_bytes, block, values in (("adamw-8bit", 1, 256, 256), ("adamw-4bit", 0.5, 128, 16)):
        coded = sum(2 * int(n * code_bytes + n // block * 4 + values * 4) for n in shards if n >= 4096)
        plain = sum(2 * n for n in shards if n < 4096)
        assert optimizer_state_bytes(job, Strategy("amp-bf16", optimizer=optimizer)) == coded + 4 * plain
        assert optimizer_state_bytes(job, Strategy("bf16", optimizer=optimizer)) == coded + 2 * plain


def test_the_jobs_own_optimizer_keeps_and_does_its_share() -> None:
    job = replace(llama_job(), optimizer=lambda parameters: torch.optim.RMSprop(parameters, foreach=True))
    whole = record(job, Strategy())
    share, _ = composed(job, Strategy(mesh=Mesh(dp_shard=RANKS)))
    state = [
        int(t.storages.size_bytes[t.storages.category == CATEGORIES.index("optimizer_state")].sum()) for t in (whole, share)
    ]
    assert state[0] / RANKS == pytest.approx(state[1], rel=0.001)
    moved = [int(t.counts("optimizer") @ t.operations.column("bytes_read")) for t in (whole, share)]
    assert moved[0] / RANKS == pytest.approx(moved[1], rel=0.001)
    for phase in ("forward", "backward"):
        assert share.flops(phase) == whole.flops(phase)


class Block(nn.Sequential):
    """A class of its own, so that all of them are blocks."""


class OfBlocks(nn.Module):
    """Blocks of any width. Where they differ, apply_compile takes the whole model."""

    def __init__(self, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(Block(nn.Linear(32, n), nn.GELU(), nn.Linear(n, 32)) for n in hidden)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(nn.functional.gelu(x))


@pytest.mark.parametrize(("hidden", "notes"), [((64, 64), 0), ((64, 64, 128), 1)])
def test_a_model_compiled_as_a_whole_is_assumed_not_to_be_cut(hidden: tuple[int, ...], notes: int) -> None:
    job = language_job(lambda: OfBlocks(hidden), vocabulary=64, seq_len=16)
    trace, _ = composed(job, Strategy("amp-bf16", compile=True, mesh=Mesh(dp_shard=RANKS)))
    assert [note.kind for note in trace.header.assumption_notes].count("assumed-graph-spans-blocks") == notes


SHARDED, REPLICATED = Mesh(dp_shard=RANKS), Mesh(dp_replicate=2)
REFUSED = [
    (Strategy("bf16", optimizer="adafactor", mesh=SHARDED), "adafactor"),
    (Strategy("bf16", optimizer="muon", mesh=SHARDED), "muon"),
    (Strategy("bf16", optimizer="momentum", optimizer_kernels="fused", mesh=SHARDED), "no fused kernels"),
    (Strategy("bf16", adapter="qlora", mesh=SHARDED), "QLoRA"),
    (Strategy("fp8", mesh=SHARDED), "fp8"),
    (Strategy("bf16", offload="optimizer", mesh=REPLICATED), "offload moves"),
    (Strategy("bf16", offload="parameters", mesh=SHARDED), "offload moves"),
    (Strategy("bf16", optimizer_in_backward=True, mesh=REPLICATED), "optimizer in backward"),
]


@pytest.mark.parametrize(("strategy", "words"), REFUSED)
def test_what_several_devices_do_otherwise_is_refused(strategy: Strategy, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as refusal:
        data_parallel(record(gpt_job(), Strategy("bf16")), strategy)
    assert refusal.value.ways_out


def test_more_shards_need_less_memory_down_to_what_is_gathered() -> None:
    job = llama_job()
    peaks = [
        live_bytes(composed(job, Strategy(precision="bf16", mesh=Mesh(dp_shard=ranks)))[0]).peak_bytes
        for ranks in (2, 4, 8, 64)
    ]
    assert peaks == sorted(peaks, reverse=True)


def test_replicas_reduce_each_gradient_once_however_many_micro_batches() -> None:
    job = llama_job()
    trace = record(job, Strategy())
    for accumulation in (1, 4):
        strategy = Strategy(accumulation=accumulation, mesh=Mesh(dp_replicate=4))
        replica, communication = data_parallel(trace.with_accumulation(accumulation), strategy)
        assert communication.bytes_of("all_reduce") == 4 * trace.header.trainable_parameters
        assert communication.bytes_of("all_gather") == communication.bytes_of("reduce_scatter") == 0
        assert live_bytes(replica).by_category["gradient"] >= 4 * trace.header.trainable_parameters


def test_one_device_and_inference_communicate_nothing() -> None:
    trace = record(llama_job(), Strategy(mode="infer"))
    strategy = Strategy(mode="infer", mesh=Mesh(dp_replicate=4))
    same, communication = data_parallel(trace, strategy)
    assert communication.collectives == ()
    assert live_bytes(same).peak_bytes == live_bytes(trace).peak_bytes


def test_inference_is_not_sharded_nor_recorded_as_if_it_were() -> None:
    strategy = Strategy("amp-bf16", mode="infer", mesh=Mesh(dp_shard=8))
    assert recorded_as(strategy) == strategy
    with pytest.raises(UnsupportedError, match="forward pass over sharded"):
        data_parallel(record(llama_job(), strategy.but(mesh=Mesh())), strategy)
