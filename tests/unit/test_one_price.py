"""Every verb says the same step time and memory of the same step: forecast, fit, compare and plan, one device and several."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import gpuwise
from gpuwise.api.devices import device_of, target_of
from gpuwise.api.sources import source_of
from gpuwise.cost import Forecast, MemoryForecast
from gpuwise.errors import UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.plan.pricing.largest import largest_micro_batch
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.strategy import Mesh

CATALOG = load_catalog()
TRAINING = [
    ("gpt2", "rtx-4090", {"precision": "amp-bf16", "micro_batch": 4}),
    ("gpt2", "t4", {"precision": "amp-fp16", "micro_batch": 2}),
    ("gpt2", "mi300x", {"precision": "amp-bf16", "micro_batch": 8, "recompute": "full"}),
    ("gpt2", "h100-sxm", {"precision": "amp-bf16", "micro_batch": 4, "optimizer": "adamw-8bit"}),
    ("resnet50", "v100-32gb-sxm2", {"precision": "amp-fp16", "micro_batch": 64}),
    ("gpt2", "h100-sxm:8", {"precision": "amp-bf16", "micro_batch": 4}),
    ("gpt2", "a100-80gb-sxm:8", {"precision": "amp-bf16", "micro_batch": 8}),
]
CPU = [
    ("resnet50", "xeon-8380", {"precision": "fp32", "micro_batch": 8}),
    ("gpt2", "xeon-8480plus", {"precision": "amp-bf16", "micro_batch": 2, "optimizer": "sgd"}),
]
INFERENCE = [
    ("bert-base", "t4", {"precision": "amp-fp16", "micro_batch": 8, "mode": "infer"}),
    ("resnet50", "h100-sxm:8", {"precision": "amp-bf16", "micro_batch": 32, "mode": "infer"}),
]


@cache
def _forecast(job: str, on: str, settings: tuple[tuple[str, object], ...]) -> Forecast:
    return gpuwise.forecast(job, on=on, **dict(settings))


def forecast(job: str, on: str, settings: dict) -> Forecast:
    """With every device holding a copy, as fit and compare have it."""
    mesh = {"mesh": Mesh(dp_replicate=device_of(on, CATALOG).devices)}
    return _forecast(job, on, tuple((mesh | settings).items()))


def same(ours: MemoryForecast, theirs: MemoryForecast) -> bool:
    """What plan leaves out is no number that it prints: how much expandable segments would reserve."""
    return replace(ours, peak_reserved_expandable_bytes=None) == replace(theirs, peak_reserved_expandable_bytes=None)


@pytest.mark.parametrize(("job", "on", "settings"), [*TRAINING, *CPU, *INFERENCE])
def test_compare_says_what_forecast_says(job, on, settings):
    expected = forecast(job, on, settings)
    (row,) = gpuwise.compare(job, on=[on], **settings).rows
    assert row.forecast.step_time_s == expected.step_time_s
    assert row.forecast.memory == expected.memory
    assert row.forecast.strategy == expected.strategy
    assert (row.forecast.bound, row.forecast.mfu, row.forecast.energy_j) == (expected.bound, expected.mfu, expected.energy_j)


@pytest.mark.parametrize(("job", "on", "settings"), [*TRAINING[:4], TRAINING[5], CPU[1], *INFERENCE])
def test_fit_says_what_forecast_says(job, on, settings):
    result = gpuwise.fit(job, on=on, **settings)
    assert result.rows[0].memory == forecast(job, on, settings).memory
    at_largest = forecast(job, on, settings | {"micro_batch": result.forecast.strategy.micro_batch})
    assert result.forecast.step_time_s == at_largest.step_time_s
    assert result.forecast.memory == at_largest.memory


@pytest.mark.parametrize(("job", "on", "settings"), TRAINING)
def test_plan_says_what_forecast_says(job, on, settings):
    device = device_of(on, CATALOG)
    batch = settings["micro_batch"] * device.devices
    plans = gpuwise.plan(job, on=[on], samples=10**6, global_batch=batch, limit=None, stale=True, xla=True, **settings).plans
    first = next(each.strategy for each in plans if each.count == device.devices)
    alike = [each for each in plans if each.strategy == first]
    assert first.mesh.dp_replicate * first.mesh.dp_shard == device.devices
    shard = {"shard": first.parallelism.shard} if first.mesh.dp_shard > 1 else {}
    expected = forecast(job, on, {**settings, **shard, "mesh": first.mesh})
    steps = {each.forecast.step_time_s.value for each in alike}
    assert expected.step_time_s.value in steps
    assert len(steps) == 1 or device.devices > 1  # machines with other links among their devices take other times
    assert all(same(each.forecast.memory, expected.memory) for each in alike)


def test_what_would_fit_is_priced_as_its_forecast_is():
    answer = gpuwise.forecast("gpt2", on="rtx-4090", precision="fp32", micro_batch=64).fits_with
    parts = answer["strategy"]
    assert parts["micro_batch"] * parts["accumulation"] == 64
    settings = {"precision": "fp32", "micro_batch": parts["micro_batch"], "accumulate": parts["accumulation"]}
    again = gpuwise.forecast("gpt2", on="rtx-4090", recompute=parts["recompute"], **settings)
    assert again.step_time_s.value == answer["step_time_s"]["value"]
    assert again.memory.device_bytes == answer["device_bytes"]


@pytest.mark.parametrize("on", ["rtx-4090", "t4", "xeon-8380"])
def test_one_step_by_itself_is_the_step_of_its_family(on):
    source, cluster = source_of("gpt2"), device_of(on, CATALOG).cluster
    target = target_of(cluster.chip)
    strategy = gpuwise.Strategy("fp32", micro_batch=2, accumulation=3)
    alone, of_family = (
        StepPricer(traces).forecast(strategy, cluster) for traces in (source.step_traces(target), source.traces(target))
    )
    assert alone == of_family


def test_a_refusal_is_remembered_and_its_job_is_not_asked_again():
    requests = []

    def record(variant):
        requests.append(variant)
        raise UnsupportedError("not recorded.")

    traces = StepTraces(record)
    for _ in range(3):
        with pytest.raises(UnsupportedError, match="not recorded"):
            traces.trace(gpuwise.Strategy())
    assert len(requests) == 1


def test_fit_and_compare_search_the_same_largest_micro_batch():
    source, cluster = source_of("gpt2"), device_of("rtx-4090", CATALOG).cluster
    pricer = StepPricer(source.traces())
    strategy = gpuwise.Strategy("amp-bf16", mesh=Mesh(dp_replicate=1))
    largest = largest_micro_batch(pricer, strategy, cluster)
    assert largest == gpuwise.fit("gpt2", on="rtx-4090", precision="amp-bf16").largest_micro_batch
    (row,) = gpuwise.compare("gpt2", on="rtx-4090", precision="amp-bf16").rows
    assert row.forecast.strategy.micro_batch == 1 << (largest.bit_length() - 1)
