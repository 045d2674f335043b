"""Steps of many alike blocks follow from recordings of a few of them: equal, row for row, to a recording of all."""

from __future__ import annotations

import importlib
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_trace_sharded import language_job
from tests.quick import quick
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.job.hf import hf_job
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import Trace, live_bytes
from gpuwise.trace.parallel.recorded_rows import RecordedStep
from gpuwise.tracing import record

recording = importlib.import_module("gpuwise.tracing.record")

FEW = {  # equal to the recording of 12 blocks
    "accumulated": Strategy(accumulation=4),
    "amp, recomputed": Strategy("amp-bf16", recompute="full"),
    "bf16, selective, foreach": Strategy("bf16", recompute="selective", optimizer="adamw", optimizer_kernels="foreach"),
    "for-loop": Strategy(optimizer_kernels="for-loop"),
    "inference": Strategy("bf16", mode="infer"),
    "parameters on the host, accumulated": Strategy("bf16", offload="parameters", accumulation=3),
    "parameters on the host, recomputed": Strategy("amp-bf16", offload="parameters", recompute="full"),
    "optimizer on the host": Strategy("amp-bf16", offload="optimizer"),
    "tensor parallel, with sequences": Strategy(
        "bf16", mesh=Mesh(tp=2), parallelism=Parallelism(sequence_parallel=True), accumulation=3
    ),
    "context parallel": Strategy("bf16", mesh=Mesh(cp=2)),
    "shards, recomputed": Strategy("bf16", mesh=Mesh(dp_shard=4), recompute="full"),
    "shards, accumulated": Strategy("amp-bf16", mesh=Mesh(dp_shard=4), accumulation=4),
    "shards of gradients": Strategy("amp-bf16", mesh=Mesh(dp_shard=4), parallelism=Parallelism(shard="gradients")),
    "replicas of shards": Strategy("bf16", mesh=Mesh(dp_replicate=2, dp_shard=4)),
}
MANY = {  # equal to the recording of 32 blocks
    "one device": Strategy("bf16"),
    "tensor parallel": Strategy("bf16", mesh=Mesh(tp=2)),
    "shards of tensor-parallel ranks": Strategy("bf16", mesh=Mesh(dp_shard=4, tp=2)),
}


def llama(layers: int, **changes: Any) -> Job:
    config = LlamaConfig(vocabulary=512, width=256, layers=layers, heads=4, kv_heads=2, hidden=512)
    return replace(language_job(lambda: Llama(config), vocabulary=512, seq_len=32), **changes)


def recorded(job: Job, strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> tuple[Trace, int]:
    """The recording, and how many blocks of the model were not recorded."""
    left_out = 0
    extend = recording.repeated

    def count(short: RecordedStep, long: RecordedStep, *, copies: int, container: str, period: int) -> RecordedStep | None:
        nonlocal left_out
        step = extend(short, long, copies=copies, container=container, period=period)
        left_out = (copies - 1) * period if step is not None else 0
        return step

    with monkeypatch.context() as patch:
        patch.setattr(recording, "repeated", count)
        return record(job, strategy), left_out


def recorded_whole(job: Job, strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> Trace:
    with monkeypatch.context() as patch:
        patch.setattr(recording, "few_blocks", lambda job, strategy: None)
        return record(job, strategy)


def differences(a: Trace, b: Trace) -> list[str]:
    """The columns in which two traces differ."""
    names = []
    for table in ("operations", "sequence", "storages", "waits", "header"):
        for field in fields(getattr(a, table)):
            one, other = (getattr(getattr(trace, table), field.name) for trace in (a, b))
            if not (np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other):
                names.append(f"{table}.{field.name}")
    return names + ([] if a.modules == b.modules else ["modules"])


def check_equal(job: Job, strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, left_out = recorded(job, strategy, monkeypatch)
    whole = recorded_whole(job, strategy, monkeypatch)
    assert left_out > 0
    assert differences(trace, whole) == []
    assert live_bytes(trace).peak_bytes == live_bytes(whole).peak_bytes
    assert trace.flops() == whole.flops()


LIKE_OTHERS = (
    "amp, recomputed",
    "bf16, selective, foreach",
    "for-loop",
    "context parallel",
    "shards, accumulated",
    "shards of gradients",
    "replicas of shards",
)


@pytest.mark.parametrize("name", quick(FEW, slow=LIKE_OTHERS))
def test_a_step_of_many_blocks_is_the_one_that_is_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_equal(llama(12), FEW[name], monkeypatch)


@pytest.mark.parametrize(
    "strategy",
    quick(
        [Strategy(), Strategy("amp-bf16", recompute="full"), Strategy("bf16", mode="infer")],
        slow=[Strategy("amp-bf16", recompute="full")],
    ),
    ids=lambda strategy: f"{strategy.precision} {strategy.recompute} {strategy.mode}",
)
def test_a_step_of_a_model_of_transformers_is_the_one_that_is_recorded(
    strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks read a value, which has the same answer on the `meta` device as in a recording."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12, "num_attention_heads": 4, "vocab_size": 256}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 2, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    check_equal(hf_job(str(tmp_path), seq_len=32), strategy, monkeypatch)


@pytest.mark.parametrize("precision", ["amp-bf16", "fp32"])
def test_a_mixture_is_recorded_by_few_of_its_blocks(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its grouped products take bf16 alone on the `meta` device, where there is no autocast."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4, "vocab_size": 256}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **sizes, **experts}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    check_equal(hf_job(str(tmp_path), seq_len=32), Strategy(precision), monkeypatch)


@pytest.mark.parametrize("name", quick(MANY, slow=("one device", "shards of tensor-parallel ranks")))
def test_a_step_of_32_blocks_is_the_one_that_is_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_equal(llama(32), MANY[name], monkeypatch)


def test_replicas_are_recorded_whole_because_their_buckets_are_cut_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorded(llama(12), Strategy(mesh=Mesh(dp_replicate=2)), monkeypatch)[1] == 0


class Widening(nn.Module):
    """Blocks that are not alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8 + n, 9 + n)) for n in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Alike(nn.Module):
    """Blocks that are alike, whose model treats the eighth otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for n in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x) if number == 7 else layer(x).relu()
        return x


class Turn(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer, self.number, self.bends = nn.Linear(8, 8), number, number % 3 == 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x.relu() if self.bends else x.tanh()


class Turns(nn.Module):
    """Blocks of two kinds: every third bends, and the last is no third. There may be much before them."""

    def __init__(self, before: int = 0) -> None:
        super().__init__()
        self.before = nn.Sequential(*(nn.Linear(8 + n % 2, 8 + (n + 1) % 2) for n in range(before)))
        self.layers = nn.ModuleList(Turn(n) for n in range(20))

    def forward(self, x: Tensor) -> Tensor:
        for layer in [*self.before, *self.layers]:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("strategy", "before"),
    [
        (Strategy(), 0),
        (Strategy("amp-bf16", recompute="full", accumulation=2), 0),
        (Strategy("bf16", mode="infer"), 0),
        (Strategy("bf16", mode="infer"), 40),
    ],
    ids=lambda value: f"{value.precision} {value.mode}" if isinstance(value, Strategy) else str(value),
)
def test_a_step_of_blocks_that_take_turns_is_the_one_that_is_recorded(
    strategy: Strategy, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(model=lambda: Turns(before), batch=lambda n: torch.randn(n, 8), loss=lambda model, x: model(x).square().mean())
    check_equal(job, strategy, monkeypatch)


class Mixture(nn.Module):
    """Blocks of which the first two are wide, and every second of the others bends."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.block(n) for n in range(30))

    def block(self, number: int) -> nn.Module:
        wide = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
        return wide if number < 2 else nn.Sequential(nn.Linear(8, 8), nn.ReLU() if number % 2 else nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(),
        Strategy("amp-bf16", recompute="full", accumulation=2),
        Strategy("bf16", mode="infer"),
        Strategy("bf16", mesh=Mesh(dp_shard=2), accumulation=2),
    ],
    ids=lambda strategy: f"{strategy.precision} {strategy.mode}",
)
def test_a_step_whose_first_blocks_are_others_is_the_one_that_is_recorded(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(model=Mixture, batch=lambda n: torch.randn(n, 8), loss=lambda model, x: model(x).square().mean())
    check_equal(job, strategy, monkeypatch)


class Frozen(Alike):
    """Blocks of which the first are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[:6].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Deepening(Frozen):
    """Blocks whose dropout grows with their number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(n / 20)) for n in range(12))


@pytest.mark.parametrize("model", [Widening, Alike, Frozen, Deepening])
def test_blocks_that_are_not_alike_are_all_recorded(model: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(model=model, batch=lambda n: torch.randn(n, 8), loss=lambda model, x: model(x).square().mean())
    trace, left_out = recorded(job, Strategy(), monkeypatch)
    assert left_out == 0
    assert differences(trace, recorded_whole(job, Strategy(), monkeypatch)) == []


def test_a_model_that_cannot_be_shortened_is_recorded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Indexing(Frozen):
        def forward(self, x: Tensor) -> Tensor:
            for number in range(12):
                x = self.layers[number](x)
            return x

    job = Job(model=Indexing, batch=lambda n: torch.randn(n, 8), loss=lambda model, x: model(x).square().mean())
    assert recorded(job, Strategy(), monkeypatch)[1] == 0
