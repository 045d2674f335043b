"""A plan for the CPU of this machine: settings chosen on its own kernels, and the time to compile on the bill."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_plan_cpu_choice import CPU, GENERATED, trace_of
from test_plan_synthetic import synthetic_source

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.price import price
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Machine
from gpuwise.plan.cpu import choice as cpu_choice
from gpuwise.plan.cpu.compile_time import KERNEL_S, LOADING_S
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.request import Request
from gpuwise.plan.search import plan
from gpuwise.plan.types import Plan
from gpuwise.strategy import Strategy
from gpuwise.trace import Communication, Trace

HERE = Machine(CPU, 1, host_memory_bytes=64 * 2**30, name="this")
LONG = 10**7


def planned(own, *, samples: int = LONG, **wanted) -> Plan:
    request = Request(samples=samples, global_batch=64, here=HERE, on=("here",), **wanted)
    return plan(StepTraces(synthetic_source()), request, [], Catalog(), own=own).best


def own(strategy: Strategy, *, capacity_bytes: int = 64 * 2**30) -> tuple[Forecast, Trace]:
    trace = trace_of(strategy, images=True).with_accumulation(strategy.accumulation)
    return price(trace, Communication(), Cluster(CPU, memory_bytes=capacity_bytes), strategy=strategy), trace


def test_without_own_traces_all_is_as_recorded():
    result = planned(None)
    assert not result.strategy.channels_last
    assert result.strategy.global_batch == 64


def test_settings_follow_the_own_kernels():
    result = planned(own)
    assert (result.strategy.precision, result.strategy.channels_last, result.strategy.global_batch) == ("amp-bf16", True, 64)
    assert any(reason.startswith("amp-bf16, channels-last: ") for reason in result.reasons)


def test_what_is_pinned_stays():
    assert planned(own, precision="fp32").strategy.precision == "fp32"
    assert planned(own, micro_batch=16).strategy.micro_batch == 16


def test_time_to_compile_is_on_the_bill(monkeypatch):
    eager = planned(own)
    monkeypatch.setattr(cpu_choice, "FASTER_COMPILED", 0.01)
    monkeypatch.setattr(cpu_choice, "pays_back_after", lambda *_, **__: 1)
    compiled = planned(own)
    assert (eager.strategy.compile, compiled.strategy.compile) == (False, True)
    takes_h = (LOADING_S + GENERATED * KERNEL_S) / 3600
    steps_h = compiled.steps * compiled.forecast.step_time_s.value / 3600
    assert compiled.machine_hours == pytest.approx(steps_h + takes_h)


def test_a_job_that_cannot_be_traced_here_is_planned_by_recordings():
    def refused(strategy: Strategy) -> tuple[Forecast, Trace]:
        raise UnsupportedError("no PyTorch here.")

    assert planned(refused) == planned(None)


def test_a_batch_that_does_not_fit_gets_smaller():
    requests: list[int] = []

    def heavier(strategy: Strategy) -> tuple[Forecast, Trace]:
        requests.append(strategy.micro_batch)
        return own(strategy, capacity_bytes=2**30 // 4)

    small = replace(HERE, host_memory_bytes=2**30)
    request = Request(samples=LONG, global_batch=4096, here=small, on=("here",))
    by_recordings, result = (
        plan(StepTraces(synthetic_source()), request, [], Catalog(), own=price).best for price in (None, heavier)
    )
    assert requests[0] == by_recordings.strategy.micro_batch
    assert result.strategy.micro_batch < by_recordings.strategy.micro_batch
    assert result.forecast.memory.fits
    assert result.strategy.global_batch == 4096
