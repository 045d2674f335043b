"""serve_plan with timed passes: rows of this machine against closed forms, both forecasts side by side, errors."""

from __future__ import annotations

import json

import pytest
import torch
from tests.unit.test_api_serving import job as text_job
from tests.unit.test_serving_forward import small_job

from gpuwise.api import serving_forward, serving_text
from gpuwise.api.serving import serve_plan
from gpuwise.api.serving_times import forward_times
from gpuwise.api.sources import source_of
from gpuwise.errors import InputError, JobError
from gpuwise.report.printed import as_text
from gpuwise.serving.profile import FORWARD, PROMPT, TOKEN, PassProfile, TimedPass
from gpuwise.serving.windowed import ServerCosts

SLOWER = 5.0


def profile_of(seconds: dict[int, float], *, between_s: float = 0.0) -> PassProfile:
    """Passes that take SLOWER times their forecasts."""
    passes = tuple(TimedPass(FORWARD, size, 0, each, (SLOWER * each,) * 5) for size, each in seconds.items())
    return PassProfile(passes, ServerCosts(between_s=between_s), 1.0)


@pytest.mark.parametrize("threads", ["", "1"])
def test_the_row_of_this_machine_rests_on_what_was_timed(monkeypatch: pytest.MonkeyPatch, threads: str):
    """With the threads that OMP_NUM_THREADS leaves it, too."""
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    between_s = 0.01
    monkeypatch.setattr(
        serving_forward,
        "forward_profile",
        lambda job, passes, *rest, **settings: profile_of(
            {size: each.step_time_s.value for size, each in passes.forecasts.items()}, between_s=between_s
        ),
    )
    timed = serve_plan(small_job(), on="here,l4", rate="10/s", batch=4, profile=True)
    plain = serve_plan(small_job(), on="here,l4", rate="10/s", batch=4)
    here, before = ({row.device: row for row in plan.rows}["here-cpu"] for plan in (timed, plain))
    as_forecast = forward_times(source_of(small_job()), batch=4, precision="fp32").times.pass_s(4)
    assert before.saturation_rate == pytest.approx(4 / as_forecast)
    assert here.saturation_rate == pytest.approx(4 / (SLOWER * as_forecast + between_s))
    assert here.forward.seconds.value == pytest.approx(SLOWER * as_forecast)
    assert here.alone_latency_s == pytest.approx(SLOWER * before.alone_latency_s + between_s)
    assert timed.timing.untimed == before
    assert [row for row in timed.rows if row.device == "l4"] == [row for row in plain.rows if row.device == "l4"]
    assert len(timed.remark_notes) == 1
    assert timed.remark_notes[0].figures["highest_per_s"] == pytest.approx(here.saturation_rate)
    data = json.loads(json.dumps(timed.to_dict()))["timing"]
    assert data["forecast_without_timing"]["saturation_rate"] == pytest.approx(before.saturation_rate)
    assert data["passes"][0]["timed_s"] == pytest.approx(SLOWER * data["passes"][0]["forecast_s"])
    assert plain.to_dict()["timing"] is None


def test_passes_are_timed_for_real():
    plan = serve_plan(small_job(), on="here", rate="2000/s", batch=2, profile=True)
    assert {each.requests for each in plan.timing.profile.passes} == {1, 2}
    ratio = plan.timing.profile.passes[-1].ratio
    assert plan.rows[0].forward.seconds.value == pytest.approx(ratio * plan.timing.profile.passes[-1].forecast_s)
    text = as_text(plan)
    assert "passes timed before the plan" in text
    assert "as forecast" in text


def test_text_of_llama_cpp_is_planned_from_its_iterations(monkeypatch: pytest.MonkeyPatch):
    passes = (
        TimedPass(PROMPT, 1, 64, 0.01, (SLOWER * 0.01,) * 5),
        TimedPass(TOKEN, 1, 20, 0.001, (SLOWER * 0.001,) * 5),
    )
    monkeypatch.setattr(serving_text, "text_profile", lambda *rest: PassProfile(passes, ServerCosts(), 1.0))
    settings = {"on": "here", "rate": "1/min", "engine": "llama.cpp", "input": 64, "output": 16, "spread": 0}
    timed, plain = serve_plan(text_job(), **settings, profile=True), serve_plan(text_job(), **settings)
    assert timed.timing.untimed == plain.rows[0]
    assert timed.rows[0].alone_latency_s == pytest.approx(SLOWER * plain.rows[0].alone_latency_s)
    assert timed.rows[0].saturation_rate == pytest.approx(plain.rows[0].saturation_rate / SLOWER)
    assert timed.rows[0].latency["latency_s"].p50.high == pytest.approx(1.05 * timed.rows[0].latency["latency_s"].p50.value)
    assert "a token each" in as_text(timed)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on": "l4"}, "not among the devices"),
        ({}, "not among the devices"),
        ({"on": "here"}, "vllm does not run inside"),
        ({"on": "here", "engine": "llama.cpp", "cpu_experts": "all"}, "without --cpu-experts"),
        ({"on": "here", "engine": "llama.cpp", "precision": "fp32"}, "has no --precision"),
    ],
)
def test_what_cannot_be_timed(settings: dict[str, object], words: str):
    with pytest.raises(InputError, match=words) as caught:
        serve_plan(text_job(), rate="1/s", profile=True, **settings)
    assert caught.value.ways_out


def test_devices_of_forward_passes_that_cannot_be_timed():
    with pytest.raises(InputError, match="not among the devices") as caught:
        serve_plan(small_job(), on="l4", rate="1/s", profile=True)
    assert caught.value.ways_out[0] == "--on here,l4"


def test_the_jobs_own_errors_name_the_stage():
    def loss(model, batch):
        if type(batch["x"]) is torch.Tensor:  # recordings have tensors of their own
            raise RuntimeError("no answer")
        return model(batch["x"]).mean()

    with pytest.raises(JobError, match="timing its passes"):
        serve_plan(small_job(loss=loss), on="here", rate="1000/s", batch=1, profile=True)
