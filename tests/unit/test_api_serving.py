"""serve_plan: limits and rates as typed, replicas, and what cannot be served."""

from __future__ import annotations

import math

import pytest
import torch
from tests.one_recording import one_recording  # noqa: F401

from gpuwise.api.serving import serve_plan
from gpuwise.api.serving_limits import parse_limits
from gpuwise.errors import InputError, JobError, NoPlanError, UnknownNameError, UnsupportedError
from gpuwise.job import Job
from gpuwise.job.models.generation import generate
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.serving.rows import MOST_SHARE
from gpuwise.serving.saturation import Limits
from gpuwise.tracing.generation import check_generates
from gpuwise.units import parse_rate


def job(**changes: object) -> Job:
    """A model of 27 million parameters."""
    config = LlamaConfig(vocabulary=8192, width=512, layers=4, heads=8, kv_heads=2, hidden=1408)
    return Job(
        lambda: Llama(config),
        lambda n: {"tokens": torch.zeros(n, 8, dtype=torch.long)},
        lambda model, batch: model(batch["tokens"]).mean(),
        **{"generate": generate, "name": "small", "context_length": 4096, **changes},
    )


def test_rates_and_limits_as_typed():
    assert parse_rate("5/s") == 5
    assert parse_rate("90 / min") == pytest.approx(1.5)
    assert parse_rate("10k/day") == pytest.approx(10_000 / 86_400)
    limits = parse_limits("ttft=500ms, tpot=50ms,share=95%")
    assert (limits.ttft_s, limits.tpot_s, limits.latency_s, limits.share) == (0.5, 0.05, math.inf, 0.95)
    assert parse_limits("") == Limits(share=0.99)
    assert parse_limits("TTFT = 500us, share=1") == Limits(ttft_s=0.0005, share=1)


@pytest.mark.parametrize("text", ["5", "5/fortnight", "-1/s", "0/s", "five/s", "nan/s", "1e400/s", "1e30/s", "1e-30/s"])
def test_no_rate(text: str):
    with pytest.raises(InputError):
        parse_rate(text)


@pytest.mark.parametrize(
    "text",
    ["ttft", "ttft=", "ttft=5", "ttft=-1ms", "speed=1s", "share=2", "share=x", "tpot=nanms", "share=0.9", "ttft=1s,ttft=2s"],
)
def test_no_limit(text: str):
    with pytest.raises(InputError):
        parse_limits(text)


def test_replicas_follow_the_rate():
    one = serve_plan(job(), on="rtx-4090", rate="1/s", slo="ttft=200ms,tpot=20ms").rows[0]
    assert one.replicas == 1
    rate = 10 * one.saturation_rate
    many = serve_plan(job(), on="rtx-4090", rate=f"{rate:.3f}/s", slo="ttft=200ms,tpot=20ms").rows[0]
    assert many.replicas == math.ceil(10 / MOST_SHARE)
    assert many.saturation_rate == one.saturation_rate
    assert many.usd_per_hour == pytest.approx(many.replicas * one.usd_per_hour)
    # Money for a million tokens counts idle time: a single instance at a tenth of the load costs more a token.
    assert many.usd_per_million_output < one.usd_per_million_output
    for latency in many.latency.values():
        assert latency.p50.value <= latency.p90.value <= latency.p99.value
        assert latency.p50.low <= latency.p50.value <= latency.p50.high


@pytest.mark.slow
def test_tighter_limits_take_more_instances():
    loose = serve_plan(job(), on="l4", rate="50/s", slo="ttft=2s").rows[0]
    tight = serve_plan(job(), on="l4", rate="50/s", slo="ttft=60ms").rows[0]
    assert tight.saturation_rate < loose.saturation_rate
    assert tight.replicas >= loose.replicas


def test_without_limits_an_instance_serves_what_it_can():
    """Twenty times its capacity takes more than twenty instances, each loaded below what it serves."""
    one = serve_plan(job(), on="l4", rate="1/s").rows[0]
    many = serve_plan(job(), on="l4", rate=f"{20 * one.saturation_rate:.3f}/s").rows[0]
    assert many.replicas == math.ceil(20 / MOST_SHARE)
    assert 0.9 < many.load <= MOST_SHARE
    assert many.latency["ttft_s"].p99.value < 10 * one.alone_latency_s


def test_json_is_finite_and_whole():
    result = serve_plan(job(), on="rtx-4090,h100-sxm", rate="2/s").to_dict()
    assert {row["device"] for row in result["rows"]} == {"rtx-4090", "h100-80gb-sxm"}
    assert result["limits"] == {"ttft_s": None, "tpot_s": None, "latency_s": None, "share": 0.99}
    assert {"replicas", "saturation_rate", "latency", "usd_per_month", "usd_per_million_output", "reason"} <= set(
        result["rows"][0]
    )
    assert any("assumed prompts" in line for line in result["assumptions"])


def test_a_limit_below_what_one_request_takes_is_named():
    with pytest.raises(UnsupportedError, match="ttft of one request alone"):
        serve_plan(job(), on="l4", rate="1/s", slo="ttft=0.01ms")


def test_bad_input():
    with pytest.raises(UnknownNameError, match="engine"):
        serve_plan(job(), on="l4", rate="1/s", engine="llm")
    with pytest.raises(InputError, match="context"):
        serve_plan(job(), on="l4", rate="1/s", input=4000, output=4000)
    with pytest.raises(InputError, match="is of models that write text"):
        serve_plan(job(generate=None), on="l4", rate="1/s", input=64)
    with pytest.raises(JobError, match="cannot generate"):
        check_generates(job(generate=None))
    with pytest.raises(UnsupportedError, match="no figures"):
        serve_plan(job(), on="cpu", rate="1/s")
    with pytest.raises(InputError, match="spread of lengths"):
        serve_plan(job(), on="l4", rate="1/s", spread=-1)


def test_weights_that_do_not_fit_are_a_row_with_a_reason():
    result = serve_plan("llama3-8b", on="gtx-1080-ti,h100-sxm", rate="1/s", precision="fp16")
    assert [row.device for row in result.rows] == ["h100-80gb-sxm", "gtx-1080-ti"]
    assert "GB for weights" in result.rows[1].reason


def test_requests_of_a_preset_end_with_the_context_of_its_published_model():
    with pytest.raises(InputError, match="more than the model's context of 8,192 tokens"):
        serve_plan("llama3-8b", on="h100-sxm", rate="1/s", input=9000, output=10)


def test_every_device_that_does_not_serve_has_its_reason():
    devices = "l4,l40s,rtx-4090,h100-pcie,a10"
    with pytest.raises(UnsupportedError) as error:
        serve_plan(job(), on=devices, rate="1/s", slo="tpot=1us")
    for device in ("l4:", "l40s:", "rtx-4090:", "h100-80gb-pcie:", "a10:"):
        assert device in str(error.value)
    assert "--slo" in str(error.value.ways_out)


def test_a_cache_that_is_too_short_for_many_requests_is_named_with_its_tokens():
    """A model of 70 billion parameters in 4 bits leaves two RTX 4090 a cache of some thousand tokens."""
    two = {"on": "rtx-4090:2", "weights": "int4", "rate": "1/min"}
    with pytest.raises(UnsupportedError, match=r"cache holds [\d,]+ tokens, and \d+ % of the requests are longer") as error:
        serve_plan("llama3-70b", **two)
    assert "--slo" not in str(error.value.ways_out)
    row = serve_plan("llama3-70b", **two, input=256, output=128).rows[0]
    assert f"{row.cache_tokens:,} tokens" in str(error.value)


def test_a_board_holds_no_more_than_its_memory():
    with pytest.raises(UnsupportedError, match=r"raspberry-pi-5: 42.5 GB for weights.* 17.2 GB"):
        serve_plan("llama3-70b", engine="llama.cpp", on="raspberry-pi-5", rate="1/day", input=50, output=50)


def test_a_command_with_a_file_of_options_has_its_text():
    plan = serve_plan(job(), on="h100-sxm", rate="1/s", engine="tensorrt-llm", cache="fp8")
    assert "kv_cache.yaml is a file with: kv_cache_config: {dtype: fp8}" in str(plan)


def test_a_title_names_the_precision_in_which_all_devices_serve():
    assert serve_plan(job(), on="t4", rate="1/s").precision == "fp16"
    assert serve_plan(job(), on="t4,l4", rate="1/s").precision == "bf16"


@pytest.mark.parametrize("precision", ["fp8", "int8", "tf32"])
def test_text_is_served_in_what_the_engines_commands_take(precision):
    with pytest.raises(InputError, match="text is served in bf16, fp16 or fp32") as refused:
        serve_plan("gpt2", on="l4", rate="5/s", precision=precision)
    assert "--weights" in refused.value.ways_out[1]


def test_a_share_of_more_than_all_is_named():
    with pytest.raises(InputError, match=r"at most 1, got 1\.2"):
        serve_plan("gpt2", on="l4", rate="5/s", slo="ttft=1s,share=1.2")


def test_devices_that_nobody_rents_out_are_named():
    planned = serve_plan("gpt2", on=["l4", "l4:3"], rate="5/s")
    (note,) = [note for note in planned.assumptions if "no offer" in note]
    assert "rents out l4:3," in note
    with pytest.raises(NoPlanError, match="has a price to compare") as refused:
        serve_plan("gpt2", on="l4:3", rate="5/s", budget="100")
    assert "--on" in refused.value.ways_out[0]


def test_a_gpu_serves_no_more_text_in_fp32_than_its_memory_reads():
    """The cache of GPT-2 takes 73.7 kB a token in fp32; each of the 256 tokens of a request reads 640 of them on average."""
    (row,) = serve_plan("gpt2", on="l4", rate="5/s", input=512, output=256, spread=0, precision="fp32").rows
    read = 12 * 2 * 768 * 4 * 640 * 256
    assert 0 < row.saturation_rate < 300e9 / read
