"""Forecasts of steps on this machine, made before the steps run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.gpu_session.cases import StepCase
from benchmarks.support.phase_memory import phase_bytes, sizes_at_peak
from gpuwise.api.forecasting import Priced, forecast_step
from gpuwise.api.sources import source_of
from gpuwise.step_settings import DeviceSettings, settings_of

ON = "here:1"
KEPT = (
    "device",
    "step_time_s",
    "throughput",
    "memory",
    "flops_per_step",
    "mfu",
    "bound",
    "energy_j",
    "provenance",
    "rests_on",
    "assumptions",
    "warnings",
)
MOST_SIZES = 200  # that make most of a peak


@contextmanager
def attention_by(kernel: str) -> Iterator[None]:
    """Inside, only this kernel is taken; "": PyTorch chooses. What is forecast and what runs obey the same switches."""
    if not kernel:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([getattr(SDPBackend, kernel)]):
        yield


def forecast_of(case: StepCase) -> dict[str, Any]:
    """What `gpuwise forecast --on here` says of the step, looking at no measurement of it; and more of its memory."""
    torch.set_num_threads(1)  # several are made beside each other
    priced = priced_of(case)
    answer = priced.forecast.to_dict()
    results: dict[str, Any] = {name: answer[name] for name in KEPT}
    if priced.device.target != "cpu":
        sizes = sizes_at_peak(priced.trace, priced.device.chip)
        most = sorted(sizes.items(), key=lambda item: -item[0] * item[1])[:MOST_SIZES]
        results |= {"phases": phase_bytes(priced.trace, priced.device.chip), "sizes_at_peak": most}
    names = _operations(priced)
    kernels = {name: count for name, count in names.items() if "attention" in name}
    return {**results, "operations": sum(names.values()), "attention_kernels": kernels}


def priced_of(case: StepCase) -> Priced:
    strategy = case.strategy.to_dict()
    strategy["accumulate"] = strategy.pop("accumulation")
    names = {
        name
        for name, (_, setting) in settings_of(DeviceSettings).items()
        if name != "mesh" and (case.strategy.mode == "train" or not setting.only_training)
    }
    requests: Any = {name: value for name, value in strategy.items() if name in names}
    with attention_by(case.attention):
        return forecast_step(source_of(case.job()), ON, history=False, named=(), **requests)  # a case states all settings


def _operations(priced: Priced) -> Counter[str]:
    """How often each operator runs in a step of one micro-batch."""
    sequence = priced.trace.sequence
    first = sequence.operation[sequence.micro_step != 1]
    return Counter(priced.trace.operations.name[operation] for operation in first.tolist())
