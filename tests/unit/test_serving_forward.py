"""serve_plan for models that answer in one forward pass: prices of passes, batches, machines, the whole catalog, errors."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import gpuwise
from gpuwise.api import forward_catalog, serving, serving_forward
from gpuwise.api.devices import device_of
from gpuwise.api.serving import serve_plan
from gpuwise.cli.main import main
from gpuwise.errors import GpuwiseError, InputError, NoPlanError, UnsupportedError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.job import Job
from gpuwise.report.printed import as_text
from gpuwise.serving.rows import MOST_SHARE

DEVICES = "rtx-4090,l4,t4,gtx-1080-ti,tpu-v5e,apple-m4-max,ryzen-5950x,xeon-6980p"
CHIPS = ("rtx-4090", "h100-80gb-sxm", "l40s", "t4", "tpu-v5e", "rtx-3090")


def small_job(**changes: object) -> Job:
    """A network of three layers, with a batch that any machine holds."""
    return Job(
        **{
            "model": lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)),
            "batch": lambda n: {"x": torch.zeros(n, 64)},
            "loss": lambda model, batch: model(batch["x"]).mean(),
            "name": "small",
            **changes,
        }
    )


@pytest.fixture
def few_chips(monkeypatch: pytest.MonkeyPatch):
    """A catalog whose offers sell a few chips, and a table of two rows beside this machine's."""
    catalog = copy.copy(load_catalog())
    catalog.__dict__["offers"] = tuple(offer for offer in load_catalog().offers if offer.chip_id in CHIPS)
    monkeypatch.setattr(serving, "load_catalog", lambda: catalog)
    monkeypatch.setattr(forward_catalog, "SHOWN", 2)
    monkeypatch.setattr(serving_forward, "SHOWN", 2)


@pytest.mark.parametrize(
    ("devices", "settings"), [(DEVICES, {}), (DEVICES, {"precision": "fp32"}), ("l4", {"channels_last": True})]
)
def test_a_pass_has_the_price_of_forecast(devices: str, settings: dict[str, object]):
    plan = serve_plan("resnet50", on=devices, rate="10/s", **settings)
    assert [row.device for row in plan.rows if not row.reason] == [row.device for row in plan.rows]
    for row in plan.rows:
        one = gpuwise.forecast(
            "resnet50", on=row.device, mode="infer", micro_batch=row.forward.batch, image_size=224, **settings
        )
        assert row.forward.precision == one.strategy.precision
        assert row.forward.seconds == one.step_time_s
        assert row.forward.memory_bytes == one.memory.device_bytes
        assert row.forward.why == one.why


def test_without_limits_a_machine_serves_its_best_batch_over_its_time():
    plan = serve_plan("vit-b16", on="rtx-4090,l4", rate="10/s")
    for row in plan.rows:
        rates = []
        for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            one = gpuwise.forecast("vit-b16", on=row.device, mode="infer", micro_batch=batch)
            rates.append(batch / one.step_time_s.value)
        assert row.saturation_rate == pytest.approx(max(rates), rel=0.06)


def test_replicas_and_money_follow_the_rate():
    one = serve_plan("bert-base", on="l4", rate="10/s", slo="latency=50ms", seq_len=128).rows[0]
    assert one.replicas == 1
    rate = 10 * one.saturation_rate
    many = serve_plan("bert-base", on="l4", rate=f"{rate:.3f}/s", slo="latency=50ms", seq_len=128).rows[0]
    assert many.replicas == -(-10 // MOST_SHARE)
    assert many.usd_per_hour == pytest.approx(many.replicas * one.usd_per_hour)
    assert many.usd_per_request == pytest.approx(many.usd_per_hour / 3600 / rate, rel=1e-4)
    assert many.usd_per_million_output is None  # nothing is written
    latency = many.latency["latency_s"]
    assert latency.p50.value <= latency.p90.value <= latency.p99.value <= 0.05 * 1.1
    assert latency.p99.low <= latency.p99.value <= latency.p99.high
    assert many.share_within >= 0.98


def test_a_batch_and_a_window_of_the_users():
    plan = serve_plan("resnet50", on="l4", rate="10/s", batch=3, window="20ms")
    row = plan.rows[0]
    assert (row.forward.batch, row.forward.window_s) == (3, 0.02)
    alone = gpuwise.forecast("resnet50", on="l4", mode="infer", micro_batch=1).step_time_s.value
    assert row.alone_latency_s == pytest.approx(0.02 + alone)
    words = " ".join(plan.assumptions)
    assert "--batch changes it" not in words
    assert "--window lets" not in words


def test_what_does_not_fit_is_not_used():
    """Reading 5 GB of weights takes longer than all else, so the largest batch that fits serves most."""
    wide = small_job(
        model=lambda: nn.Linear(64, 40_000_000, bias=False), loss=lambda model, batch: model(batch["x"])[:, 0].mean()
    )
    for row in serve_plan(wide, on="l4,rtx-3060-12gb", rate="1/s").rows:
        twice = gpuwise.forecast(wide, on=row.device, mode="infer", micro_batch=2 * row.forward.batch)
        assert row.forward.memory_bytes <= twice.memory.capacity_bytes
        assert twice.memory.fits is False
        assert row.forward.batch < 256
    plan = serve_plan(wide, on="h100-sxm,rtx-3060-12gb", rate="1/s", batch=128)
    assert plan.rows[0].forward.batch == 128
    assert "a pass of 128 in bf16 takes" in plan.rows[1].reason
    assert "rtx-3060-12gb has" in plan.rows[1].reason
    with pytest.raises(UnsupportedError, match="none of these devices serves small"):
        serve_plan(wide, on="rtx-3060-12gb", rate="1/s", batch=128)


def test_devices_of_a_machine_have_a_copy_each():
    one, eight = (
        serve_plan("bert-base", on=name, rate=rate, slo="latency=20ms", seq_len=128).rows[0]
        for name, rate in (("h100-sxm", "1000/s"), ("h100-sxm:8", "8000/s"))
    )
    assert eight.saturation_rate == pytest.approx(8 * one.saturation_rate)
    assert (eight.replicas, eight.forward) == (1, one.forward)
    assert eight.latency["latency_s"].p99.value == pytest.approx(one.latency["latency_s"].p99.value)
    reasons = serve_plan("bert-base", on="l4,h100-sxm:8x2,ryzen-5950x:2", rate="1/s").rows[1:]
    assert all("no figures" in row.reason for row in reasons)


def test_the_whole_catalog_answers_as_every_device_by_name(few_chips):
    question = {"rate": "3000/s", "slo": "latency=50ms", "seq_len": 128}
    whole = serve_plan("bert-base", **question)
    sold = {(offer.chip_id, offer.devices) for offer in serving.load_catalog().offers if offer.terms == "on-demand"}
    names = [f"{chip}:{count}" if count > 1 else chip for chip, count in sorted(sold) if count in (1, 2, 4, 8)]
    named = serve_plan("bert-base", on=[*names, "here"], **question)
    priced = [row for row in whole.rows if row.usd_per_hour is not None]
    assert len(priced) == 2
    assert priced == [row for row in named.rows if row.usd_per_hour is not None][:2]
    here = device_of("here", load_catalog()).cluster.name
    assert [row.device for row in whole.rows if row.usd_per_hour is None] == [here]
    assert [each.up_to_per_s for each in whole.by_rate] == pytest.approx([each.up_to_per_s for each in named.by_rate])
    assert [each.usd_per_month for each in whole.by_rate] == [each.usd_per_month for each in named.by_rate]
    assert whole.remarks == named.remarks
    assert "kinds of machine" in whole.assumptions[-1]


def test_nothing_in_the_catalog_serves_it(few_chips):
    with pytest.raises(UnsupportedError, match="a pass of one sample takes longer than the limit"):
        serve_plan("bert-base", rate="1/s", slo="latency=0.01ms")


@pytest.mark.parametrize(
    ("rate", "words"), [("100/s", "is enough for 100/s"), ("100000000/s", "is not enough for 100,000,000/s")]
)
def test_this_machine_is_enough_or_not(rate: str, words: str):
    plan = serve_plan(small_job(), on="here", rate=rate, slo="latency=1s")
    assert [note.kind for note in plan.remark_notes] == ["machine-for-requests"]
    assert words in plan.remarks[0]
    assert words in as_text(plan)
    measured = (
        gpuwise.forecast(small_job(), on="here", mode="infer", micro_batch=1).provenance["step_time_s"] == "measured here"
    )
    assert ("machine-not-measured" in {note.kind for note in plan.assumption_notes}) is not measured
    assert plan.remark_notes[0].figures["highest_per_s"] == plan.rows[0].saturation_rate


def test_this_machine_is_too_slow():
    plan = serve_plan("bert-base", on="h100-sxm,here", rate="1/s", slo="latency=6ms")
    assert "is not enough: latency of one request alone is" in plan.remarks[0]


def test_a_recorded_pass_is_served(tmp_path: Path):
    path = tmp_path / "pass.npz"
    gpuwise.record(small_job(), path, mode="infer", precision="bf16")
    row = serve_plan(str(path), on="l4", rate="10/s", batch=4).rows[0]
    assert row.forward.seconds == serve_plan(small_job(), on="l4", rate="10/s", batch=4).rows[0].forward.seconds


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"input": 5, "seq_len": 128}, "--seq-len is of samples that are all alike"),
        ({"output": 5}, "--output"),
        ({"spread": 0.0}, "--spread"),
        ({"prefix_hits": 0.5}, "--prefix-hits"),
        ({"weights": "int4"}, "--precision"),
        ({"cache": "fp8"}, "--cache"),
        ({"api_price": "1,2"}, "--api-price"),
        ({"engine": "vllm"}, "--engine pytorch"),
        ({"slo": "ttft=1s"}, "--slo latency=50ms"),
        ({"slo": "latency=1s,tpot=1s"}, "tpot is of models that write text"),
        ({"batch": 0}, "--batch must be"),
        ({"batch": True}, "--batch must be"),
        ({"window": "soon"}, "soon"),
        ({"precision": "int3"}, "int3"),
        ({"image_size": 32}, "image"),
        ({"seq_len": 4096}, "sequence length"),
    ],
)
def test_bad_settings(settings: dict[str, object], words: str):
    with pytest.raises(GpuwiseError) as caught:
        serve_plan("bert-base", on="l4", rate="1/s", **settings)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["batch", "seq_len", "window", "compile", "channels_last"])
def test_settings_of_passes_are_not_of_text(name: str):
    value = {"window": "5ms", "compile": True, "channels_last": True}.get(name, 8)
    with pytest.raises(InputError, match="is of models that answer in one forward pass, and gpt2 writes text"):
        serve_plan("gpt2", on="l4", rate="1/s", **{name: value})


def test_a_budget():
    free = serve_plan("resnet50", on="l4,h100-sxm", rate="10/s")
    cheap = free.rows[0].usd_per_month
    with pytest.raises(NoPlanError, match=f"the nearest is 1 x {free.rows[0].device}"):
        serve_plan("resnet50", on="l4,h100-sxm", rate="10/s", budget=f"{cheap / 2}")


def test_a_machine_that_is_at_hand_is_inside_any_budget():
    plan = serve_plan(small_job(), on="l4,here", rate="100/s", budget="1")
    assert [(row.owned, row.over_budget) for row in plan.rows] == [(True, False), (False, True)]
    dear = serve_plan(small_job(), on="l4,here", rate="100000000/s", budget="1M")
    assert [(row.owned, row.over_budget) for row in dear.rows] == [(False, False), (True, True)]  # many have to be bought


def test_on_the_command_line():
    words = ["serve-plan", "resnet50", "--on", "l4,t4", "--rate", "500/s", "--slo", "latency=100ms"]
    text = CliRunner().invoke(main, words).output
    for part in ("resnet50 in forward passes at 500/s, within 100 ms", "cheapest by rate", "a pass of", "assumed"):
        assert part in text
    data = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert (data["generates"], data["engine"], data["precision"]) == (False, "pytorch", "")
    assert {row["forward"]["precision"] for row in data["rows"]} == {"bf16", "amp-fp16"}
    assert data["rows"][0]["forward"]["batch"] > 1
    assert data["rows"][0]["latency"]["latency_s"]["p99"]["value"] < 0.2
    run = CliRunner().invoke(main, [*words, "--input", "5"])
    assert run.exit_code == 2
