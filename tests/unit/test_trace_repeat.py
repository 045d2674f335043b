"""Steps of many alike blocks follow from recordings of three and four blocks: equal, row for row, to a recording of all."""

from __future__ import annotations

import importlib
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from test_trace_sharded import language_job
from torch import nn

from gpuwise.job import Job
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace, live_bytes
from gpuwise.trace.parallel.repeat import LONG, SHORT, ShortRecording, repeated
from gpuwise.tracing import record

recording = importlib.import_module("gpuwise.tracing.record")

STRATEGIES = {
    "fp32": Strategy(),
    "accumulated": Strategy(accumulation=4),
    "amp, recomputed": Strategy("amp-bf16", recompute="full"),
    "bf16, selective, foreach": Strategy("bf16", recompute="selective", optimizer="adamw", optimizer_kernels="foreach"),
    "for-loop": Strategy(optimizer_kernels="for-loop"),
    "inference": Strategy("bf16", mode="infer"),
}


def llama(layers: int) -> Job:
    config = LlamaConfig(vocabulary=512, width=256, layers=layers, heads=4, kv_heads=2, hidden=512)
    return language_job(lambda: Llama(config), vocabulary=512, seq_len=32)


def recorded(job: Job, strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> ShortRecording:
    """The recording, and the kernels over many tensors that the recorder has seen."""
    of_many: dict[int, tuple[int, int]] = {}
    to_trace = recording.to_trace

    def remember(job: Job, strategy: Strategy, program: Any, recorder: Any, **keywords: Any) -> Trace:
        of_many.update(recorder.of_many)
        return to_trace(job, strategy, program, recorder, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(recording, "to_trace", remember)
        trace = record(job, strategy)
    return ShortRecording(replace(trace, header=replace(trace.header, fingerprint="")), of_many)


def differences(a: Trace, b: Trace) -> list[str]:
    """The columns in which two traces differ."""
    names = []
    for table in ("operations", "sequence", "storages", "waits", "header"):
        for field in fields(getattr(a, table)):
            one, other = (getattr(getattr(trace, table), field.name) for trace in (a, b))
            if not (np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other):
                names.append(f"{table}.{field.name}")
    return names + ([] if a.modules == b.modules else ["modules"])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_of_many_blocks_is_the_one_that_is_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = STRATEGIES[name]
    short, long, whole = (recorded(llama(layers), strategy, monkeypatch) for layers in (SHORT, LONG, 9))
    trace = repeated(short, long, blocks=9, container="layers")
    assert trace is not None
    assert differences(trace, whole.trace) == []
    assert live_bytes(trace).peak_bytes == live_bytes(whole.trace).peak_bytes
    assert trace.flops() == whole.trace.flops()


class Widening(nn.Module):
    """Blocks that are not alike."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8 + n, 9 + n) for n in range(layers))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def test_blocks_that_are_not_alike_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def job(layers: int) -> Job:
        return Job(
            model=lambda: Widening(layers), batch=lambda n: torch.randn(n, 8), loss=lambda model, x: model(x).square().mean()
        )

    short, long = (recorded(job(layers), Strategy(), monkeypatch) for layers in (SHORT, LONG))
    assert repeated(short, long, blocks=9, container="layers") is None
