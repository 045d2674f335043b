"""serve_plan without devices: the whole catalog, against every device by name; budgets, and money at other rates."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from tests.one_recording import one_recording  # noqa: F401
from tests.unit.test_api_serving import job

from gpuwise.api import engine_model, serving, serving_catalog
from gpuwise.api.devices import device_of
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.served_job import served
from gpuwise.api.serving import serve_plan
from gpuwise.cli.main import main
from gpuwise.errors import NoPlanError, UnsupportedError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.serving.bounds import LoadMeans, SharedIteration, rate_bound, shared_by
from gpuwise.serving.engines import engine_of
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.saturation import Limits

CHIPS = ("rtx-4090", "h100-80gb-sxm", "l40s", "t4", "rtx-3090", "tpu-v5e")  # no engine has figures of the last


@pytest.fixture
def few_chips(monkeypatch: pytest.MonkeyPatch):
    """A catalog whose offers sell a few chips, and a table of two rows."""
    catalog = copy.copy(load_catalog())
    catalog.__dict__["offers"] = tuple(offer for offer in load_catalog().offers if offer.chip_id in CHIPS)
    monkeypatch.setattr(serving, "load_catalog", lambda: catalog)
    monkeypatch.setattr(serving_catalog, "SHOWN", 2)


QUESTION = {"rate": "300/s", "slo": "ttft=200ms,tpot=20ms"}


def test_the_whole_catalog_answers_as_every_device_by_name(few_chips):
    whole = serve_plan(job(), **QUESTION)
    names = [f"{chip}{count}" for chip in ("rtx-4090", "h100-80gb-sxm") for count in ("", ":2")]
    names += ["l40s", "l40s:4", "rtx-3090:2", "rtx-3090:4", "t4", "t4:2"]
    named = serve_plan(job(), on=names, **QUESTION)
    assert [row.replicas > 0 for row in whole.rows] == [True, True, *[False] * (len(whole.rows) - 2)]
    assert whole.rows[:2] == named.rows[:2]
    # The cheapest at every rate, too, though most were left out.
    ends = [each.up_to_per_s for each in named.by_rate]
    assert [each.up_to_per_s for each in whole.by_rate] == pytest.approx(ends)
    assert [each.usd_per_month for each in whole.by_rate] == [each.usd_per_month for each in named.by_rate]
    words = " ".join(whole.assumptions)
    assert "tpu-v5e" in words  # of which no engine has figures
    assert "do not compute in" not in words  # a T4 serves in fp16


def test_devices_that_cannot_share_heads_are_left_out(few_chips, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_model, "sharing_heads", lambda layers, devices: min(devices, 2))
    result = serve_plan(job(), rate="10/s")
    (words,) = (words for words in result.assumptions if "cannot share the heads" in words)
    assert "h100-80gb-sxm:4, h100-80gb-sxm:8" in words
    assert ":2" not in words
    assert result.rows[0].replicas


@pytest.mark.slow
def test_devices_without_bf16_serve_in_fp16_unless_bf16_is_named(few_chips):
    result = serve_plan(job(), on="t4,rtx-4090", rate="10/s")
    t4 = next(row for row in result.rows if row.device == "t4")
    assert t4.replicas > 0
    assert "--dtype float16" in t4.launch
    assert "served in fp16, since they do not compute in bf16: t4" in result.assumptions
    assert serve_plan(job(), on="t4", rate="10/s", precision="fp16").rows[0] == t4
    with pytest.raises(UnsupportedError, match=r"t4 does not compute in bf16\n  try: leave out --precision$"):
        serve_plan(job(), on="t4", rate="10/s", precision="bf16")
    named = serve_plan(job(), precision="bf16", **QUESTION)
    assert "left out, since they do not compute in the precision: t4 (bf16)" in named.assumptions


@pytest.mark.parametrize("slo", ["ttft=200ms,tpot=4ms", ""])
def test_users_of_the_whole_catalog_are_those_of_every_device_by_name(few_chips, slo: str):
    question = {"concurrency": 100, "input": 300, "output": 60, "slo": slo}
    whole = serve_plan(job(), **question)
    names = [f"{chip}{count}" for chip in CHIPS[:-1] for count in ("", ":2", ":4")]
    named = serve_plan(job(), on=names, **question)
    priced = [row for row in named.rows if row.usd_per_hour is not None]
    assert [row for row in whole.rows if row.replicas] == priced[:2]
    assert whole.by_rate == named.by_rate == ()
    assert all(row.clients * row.replicas >= 100 for row in whole.rows[:2])


@pytest.mark.parametrize("device", ["rtx-4090", "h100-80gb-sxm:2"])
@pytest.mark.parametrize("engine", ["vllm", "vllm-2024"])
@pytest.mark.parametrize("slo", [Limits(), Limits(ttft_s=0.5, tpot_s=0.01)])
def test_no_instance_exceeds_its_bound(device: str, engine: str, slo: Limits):
    load = LoadShape(Lengths(512, 128, input_variation=1.0, output_variation=1.0, longest=4096))
    named = engine_of(engine)
    model = EngineModel(served(job()), named, "bf16", None, None)
    several = device_of(device, load_catalog())
    alone = device_of(device.partition(":")[0], load_catalog())
    one = model.instance(alone, shared_by(model.of(alone), several.devices), load)
    shared = replace(one, iteration_s=SharedIteration(one.iteration_s, named.costs.iteration_s, several.devices))
    bound = rate_bound(shared, LoadMeans.of(load.at(1.0)), slo)
    real = model.instance(several, model.of(several), load).saturation_rate(load, slo)
    assert real <= bound


@pytest.mark.parametrize("device", ["rtx-4090", "rtx-3090:2"])
@pytest.mark.parametrize("written", [32, 256, 1024])
def test_no_instance_exceeds_its_bound_where_launches_take_longer_than_kernels(device: str, written: int):
    """Iterations that read prompts then take longest, so the fewer of them the more requests are served."""
    load = LoadShape(Lengths(512, written, input_variation=1.0, output_variation=1.0, longest=4096))
    model = EngineModel(served(job()), engine_of("vllm"), None, None, None)
    several = device_of(device, load_catalog())
    instance = model.instance(several, model.of(several), load)
    assert instance.capacity(load) <= rate_bound(instance, LoadMeans.of(load.at(1.0)), Limits())


@pytest.mark.slow
def test_a_higher_rate_never_costs_less(few_chips):
    plans = [serve_plan(job(), **{**QUESTION, "rate": rate}) for rate in ("3/s", "300/s", "900/s")]
    months = [plan.rows[0].usd_per_month for plan in plans]
    assert months == sorted(months)
    for plan in plans:
        assert plan.by_rate[0].device  # and the table by rate has the row's price at the row's rate
        at = next(each for each in plan.by_rate if each.above_per_s < plan.rate_per_s <= each.up_to_per_s)
        assert at.device == plan.rows[0].device
        assert at.usd_per_month[0] <= plan.rows[0].usd_per_month <= at.usd_per_month[1]


def test_money_of_a_row_and_of_an_api():
    result = serve_plan(job(), on="rtx-4090", rate="10/s", spread=0, input=400, output=100, api_price="1,2")
    row = result.rows[0]
    per_hour = row.usd_per_hour
    assert row.usd_per_request == pytest.approx(per_hour / 36_000)
    assert row.usd_per_million_output == pytest.approx(1e6 * per_hour / 36_000 / 100)
    assert row.usd_per_million_tokens == pytest.approx(1e6 * per_hour / 36_000 / 500)
    assert result.api_usd_per_month == pytest.approx((400 + 200) / 1e6 * 10 * 3600 * 730.5)
    assert row.break_even.from_per_s == pytest.approx(per_hour / 3600 / 600e-6)
    assert row.offer
    assert row.launch.startswith("vllm serve MODEL --tensor-parallel-size 1")
    assert "--max-model-len 512 " in row.launch


def test_a_budget_marks_rows_and_names_the_nearest():
    free = serve_plan(job(), on="rtx-4090,h100-sxm", rate="10/s")
    cheap, dear = (row.usd_per_month for row in free.rows)
    within = serve_plan(job(), on="rtx-4090,h100-sxm", rate="10/s", budget=f"{(cheap + dear) / 2}")
    assert [row.over_budget for row in within.rows] == [False, True]
    with pytest.raises(NoPlanError, match=f"the nearest is 1 x {free.rows[0].device}"):
        serve_plan(job(), on="rtx-4090,h100-sxm", rate="10/s", budget=f"{cheap / 2}")


@pytest.mark.slow
def test_nothing_in_the_catalog_serves_it(few_chips):
    with pytest.raises(UnsupportedError, match="nothing that offers of the catalog sell"):
        serve_plan(job(), rate="1/s", slo="tpot=0.001ms")
    with pytest.raises(UnsupportedError, match="ttft of one request alone"):
        serve_plan(job(), rate="1/s", slo="ttft=0.01ms")


@pytest.mark.slow
def test_on_the_command_line():
    run = CliRunner().invoke(main, ["serve-plan", "gpt2", "--on", "l4", "--rate", "5/s", "--budget", "1"])
    assert run.exit_code == 2
    assert "--budget" in run.output
    run = CliRunner().invoke(main, ["serve-plan", "gpt2", "--on", "l4", "--rate", "5/s", "--api-price", "1"])
    assert run.exit_code == 2
    run = CliRunner().invoke(main, ["serve-plan", "gpt2", "--on", "l4", "--rate", "5/s", "--api-price", "1,2", "--json"])
    data = json.loads(run.stdout)
    assert data["api"]["usd_per_month"] > 0
    assert data["rows"][0]["launch"].startswith("vllm serve openai-community/gpt2 ")
    assert data["rows"][0]["break_even"]["from_per_s"] > 0
    assert data["by_rate"][0]["device"] == "l4"
    text = CliRunner().invoke(main, ["serve-plan", "gpt2", "--on", "l4", "--rate", "5/s", "--api-price", "1,2"]).output
    for words in ("cheapest by rate", "start each l4 with", "cheaper from", "gpt2 is a shape without weights"):
        assert words in text


def test_a_forward_pass_says_that_it_reads():
    text = CliRunner().invoke(main, ["forecast", "gpt2", "--on", "l4", "--mode", "infer"]).output
    assert "tokens read" in text
    assert "gpuwise serve-plan gpt2 --rate 5/s" in " ".join(text.split())


@pytest.mark.parametrize(
    "settings", [pytest.param({"day": "0:1,8:5,20:2", "autoscale": True}, marks=pytest.mark.slow), {"spot": True}]
)
def test_fleets_that_change_are_chosen_as_every_device_by_name(few_chips, settings):
    question = {**QUESTION, **settings}
    whole = serve_plan(job(), **question)
    named = serve_plan(job(), on=["rtx-4090", "h100-80gb-sxm", "l40s", "rtx-3090", "rtx-3090:2", "t4", "t4:2"], **question)
    assert whole.rows[0] == named.rows[0]
    assert whole.by_rate[0].device == named.by_rate[0].device
    at = next(each for each in whole.by_rate if each.above_per_s < whole.rate_per_s <= each.up_to_per_s)
    assert at.device == whole.rows[0].device
    slack = 1e-6  # weights of several devices hold some norms twice
    assert at.usd_per_month[0] * (1 - slack) <= whole.rows[0].usd_per_month <= at.usd_per_month[1] * (1 + slack)


def test_no_notebook_session_is_priced_for_a_server():
    providers = {offer.provider for offer in load_catalog().offers}
    assert {"colab", "kaggle"} <= providers
    assert providers - {offer.provider for offer in load_catalog().where_servers_stay().offers} == {"colab", "kaggle"}
    for job_, settings in ((job(), {"rate": "1/s"}), ("resnet50", {"rate": "1/s"})):
        assert all("olab" not in row.offer for row in serve_plan(job_, on="l4,t4", **settings).rows)


def test_a_format_without_kernels_on_a_chip_names_the_nearest(few_chips):
    with pytest.raises(UnsupportedError, match=r"vllm has no kernels for weights in mxfp4 on t4\n  try: --weights int4$"):
        serve_plan(job(), on="t4", rate="10/s", weights="mxfp4")
    both = serve_plan(job(), on="t4,rtx-4090", rate="10/s", weights="mxfp4")
    assert {row.device: (row.replicas, row.way_out) for row in both.rows} == {"rtx-4090": (1, ""), "t4": (0, "--weights int4")}
    whole = serve_plan(job(), weights="mxfp4", **QUESTION)
    assert "left out, since vllm has no kernels for mxfp4 there: t4" in whole.assumptions
    assert "t4" not in {row.device for row in whole.rows}


def test_an_engine_that_does_not_run_on_a_chip_has_no_formats_there_either(few_chips):
    for chip in ("t4", "tpu-v5e"):
        with pytest.raises(UnsupportedError, match=f"tensorrt-llm has no kernels for weights in fp8 on {chip}"):
            serve_plan(job(), on=chip, rate="1/s", engine="tensorrt-llm", weights="fp8")
    with_format = serve_plan(job(), on="rtx-3090,t4", rate="1/s", engine="tensorrt-llm", weights="int8")
    assert any("does not run on t4" in words and "--engine vllm runs there" in words for words in with_format.assumptions)


def test_a_budget_is_compared_with_what_instances_cost_that_stop_when_idle():
    idle = {"on": "l4", "rate": "50/day", "scale_to_zero": True, "idle": "10min"}
    (row,) = serve_plan(job(), **idle).rows
    assert row.least_usd_per_month == row.running.idle.usd_per_month < row.usd_per_month
    between = (row.least_usd_per_month + row.usd_per_month) / 2
    assert not serve_plan(job(), budget=between, **idle).rows[0].over_budget
    with pytest.raises(NoPlanError, match="the nearest is 1 x l4 for") as error:
        serve_plan(job(), budget=row.least_usd_per_month / 2, **idle)
    assert f"${row.least_usd_per_month:.0f} a month" in str(error.value)
    assert "(--weights)" in error.value.ways_out[1]
