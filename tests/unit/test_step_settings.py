"""One declaration of settings: the command line's flags, the keywords of gpuwise.api, and what a plan takes along."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_plan_synthetic import synthetic_source

from gpuwise import api, plan_settings, step_settings
from gpuwise.cli.main import main
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.plan import load_plan, save_plan
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.request import Request
from gpuwise.plan.search import plan
from gpuwise.strategy import Strategy

GROUPS = {
    "forecast": step_settings.ForecastSettings,
    "fit": step_settings.DeviceSettings,
    "compare": step_settings.StepSettings,
    "plan": plan_settings.PlanSettings,
    "train": step_settings.RunSettings,
    "validate": step_settings.DeviceSettings,
}
# Techniques that are composed from any recording, so that they need no PyTorch here.
COMPOSED = {"optimizer": "adamw-8bit", "offload": "optimizer"}


def flags(verb: str) -> set[str]:
    command = importlib.import_module(f"gpuwise.cli.{verb}").command
    return {parameter.name for parameter in command.params}


@pytest.mark.parametrize("verb", GROUPS)
def test_every_setting_of_a_verb_is_a_flag(verb: str):
    assert set(step_settings.settings_of(GROUPS[verb])) <= flags(verb)


def test_every_verb_takes_every_technique():
    techniques = set(step_settings.settings_of(step_settings.Techniques))
    assert techniques == {f.name for f in fields(Strategy)} - {
        "mesh",
        "parallelism",
        "mode",
        "micro_batch",
        "accumulation",
    } - set(step_settings.settings_of(step_settings.HostKeywords))
    for verb in GROUPS:
        assert techniques <= flags(verb), verb


def test_flags_of_a_strategy_give_it_back():
    strategy = Strategy(
        "amp-bf16",
        micro_batch=2,
        accumulation=4,
        recompute="full",
        adapter="qlora",
        adapter_rank=8,
        optimizer="adamw",
        channels_last=True,
        compile=True,
    )
    words = step_settings.flags_of(strategy).split()
    command = importlib.import_module("gpuwise.cli.compare").command
    context = command.make_context("compare", ["gpt2", "--on", "t4", *words])
    requests = {name: context.params[name] for name in step_settings.settings_of(step_settings.StepSettings)}
    assert step_settings.strategy_of(requests) == strategy


def test_an_unknown_setting_is_refused_by_every_verb():
    for verb in (api.forecast, api.fit, api.compare, api.plan):
        with pytest.raises(InputError, match="unknown setting"):
            verb("gpt2", **({} if verb is api.plan else {"on": "t4"}), colour="red")


def planned(**wanted: object):
    source = synthetic_source(width=512, layers=3)
    catalog = load_catalog()
    return plan(StepTraces(source), Request(samples=10**6, on=("rtx-4090",), **wanted), catalog.offers, catalog)


def test_a_plan_has_the_techniques_that_were_asked_for_and_its_file_keeps_them(tmp_path: Path):
    plain, requested = planned().best, planned(techniques=Strategy(**COMPOSED)).best
    assert {name: getattr(requested.strategy, name) for name in COMPOSED} == COMPOSED
    state = [each.forecast.memory.by_category.get("optimizer_state", 0) for each in (plain, requested)]
    assert state[1] < state[0] / 4  # in host memory
    assert any("offloading" in line for line in requested.forecast.assumptions)
    save_plan(requested, tmp_path / "plan.toml")
    assert load_plan(tmp_path / "plan.toml").strategy == requested.strategy


def test_accumulation_is_pinned_in_a_plan():
    assert planned(accumulation=4, global_batch=64).best.strategy.micro_batch == 16
    both = planned(accumulation=4, micro_batch=2).best.strategy
    assert (both.accumulation, both.micro_batch, both.global_batch) == (4, 2, 8)
    in_backward = planned(techniques=Strategy(optimizer_in_backward=True)).best.strategy
    assert in_backward.accumulation == 1


def test_a_slow_loader_makes_a_plan_longer():
    slow = planned(loader_samples_per_s=100.0).best
    assert slow.forecast.throughput <= 100.0 * 1.01
    assert slow.forecast.bound["input"] > 0.5


def test_a_forecast_says_time_and_money_of_a_whole_run():
    plain = api.forecast("gpt2", on="rtx-4090", micro_batch=8)
    assert plain.run is None
    result = api.forecast("gpt2", on="rtx-4090", micro_batch=8, tokens="1B")
    run, usd_per_hour = result.run, result.usd_per_hour
    assert run.samples == math.ceil(10**9 / 1024)
    assert run.steps == math.ceil(run.samples / 8)
    setup_hours = 300 / 3600
    for part in ("low", "value", "high"):
        step_hours = run.steps * getattr(plain.step_time_s, part) / 3600
        assert getattr(run.hours, part) == pytest.approx(step_hours + setup_hours)
        assert getattr(run.usd, part) == pytest.approx((step_hours + setup_hours) * usd_per_hour)
    assert api.forecast("gpt2", on="rtx-4090", micro_batch=8, samples=100, epochs=3).run.samples == 300
    unpriced = api.forecast("gpt2", on="gtx-1080-ti", micro_batch=1, precision="fp32", samples=100)
    assert unpriced.usd_per_hour is None
    assert unpriced.run.usd is None
    with pytest.raises(InputError, match="no data set"):
        api.forecast("gpt2", on="rtx-4090", epochs=1)


def test_a_whole_run_of_an_assumed_micro_batch_says_so():
    def remarks(**settings: object) -> list[str]:
        result = api.forecast("gpt2", on="rtx-4090:2", tokens="1B", **settings)  # type: ignore[arg-type]
        return [line for line in result.assumptions if line.startswith("the whole run is of steps of")]

    (remark,) = remarks(accumulate=4)
    assert "steps of 8 samples" in remark  # 2 devices × 4 micro-batches of 1
    assert "--micro-batch" in remark
    assert remarks(micro_batch=1) == []


def test_the_whole_run_is_in_text_and_json():
    requests = ["forecast", "gpt2", "--on", "rtx-4090", "--tokens", "1B"]
    shown = CliRunner().invoke(main, requests, env={"COLUMNS": "160"})
    assert "whole run" in shown.stdout
    assert "$" in shown.stdout.partition("whole run")[2].splitlines()[0]
    answer = json.loads(CliRunner().invoke(main, [*requests, "--json"]).stdout)
    assert set(answer["run"]) == {"samples", "steps", "hours", "usd"}


def test_compare_takes_techniques():
    result = api.compare("gpt2", on="rtx-4090,t4", optimizer="sgd", offload="optimizer")
    assert all(row.forecast.strategy.offload == "optimizer" for row in result.rows)
