"""Forward passes over samples of different lengths: padding by brute force, plans against those of equal samples, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.unit.test_api_serving import job as text_job
from tests.unit.test_serving_forward import few_chips, small_job

import gpuwise
from gpuwise.api.serving import serve_plan
from gpuwise.cost.forecast import Interval
from gpuwise.errors import InputError
from gpuwise.serving.forward_instance import ForwardInstance, rate_bound
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.padded import PaddedTimes, priced_lengths
from gpuwise.serving.pass_times import ForwardTimes
from gpuwise.serving.requests import requests
from gpuwise.serving.saturation import Limits
from gpuwise.serving.served import capacity_of
from gpuwise.serving.windowed import WindowPolicy

__all__ = ["few_chips"]

LOAD = LoadShape(Lengths(60, 1, input_variation=1.0, longest=257))


def seconds(samples: float, tokens: float) -> float:
    return 0.002 + 1e-5 * samples * tokens


def padded(buckets: tuple[int, ...] = (), *, points=(16, 32, 64, 128, 256)) -> PaddedTimes:
    tables = {
        tokens: ForwardTimes(
            {n: Interval(seconds(n, tokens), 0.5 * seconds(n, tokens), 2 * seconds(n, tokens)) for n in (1, 2, 4, 8)}
        )
        for tokens in buckets or points
    }
    return PaddedTimes(tables, LOAD.at(1.0), buckets)


def test_a_batch_takes_what_its_longest_sample_takes():
    load = requests(np.zeros(3), np.array([20, 100, 7]), np.ones(3))
    of_group = padded().group_s(load)
    assert of_group([0, 1])[1] == pytest.approx(seconds(2, 100))
    assert of_group([0])[1] == pytest.approx(seconds(1, 20))
    assert of_group([2])[1] == pytest.approx(seconds(1, 16))  # shorter than what is priced
    assert of_group([0, 1, 2])[1] == pytest.approx(seconds(3, 100))
    in_buckets = padded((32, 128)).group_s(load)
    assert in_buckets([0])[1] == pytest.approx(seconds(1, 32))
    assert in_buckets([1])[1] == pytest.approx(seconds(1, 128))
    assert padded((32, 128)).bucket_of(load) == [0, 1, 0]
    assert padded((20, 100)).bucket_of(load) == [0, 1, 0]  # the end belongs to its bucket
    assert padded().bucket_of(load) is None
    assert padded().spread == (0.5, 2.0)


@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.parametrize("buckets", [(), (32, 64, 256)])
def test_what_is_served_at_most_is_that_of_all_at_once(batch: int, buckets: tuple[int, ...]):
    times = padded(buckets)
    instance = ForwardInstance(times, WindowPolicy(batch))
    flood = instance.served(LOAD.at(1.0).all_at_once())
    assert instance.capacity == pytest.approx(len(flood.requests) / flood.end_s.max(), rel=0.01)
    assert instance.capacity == pytest.approx(capacity_of(flood), rel=0.12)
    assert instance.capacity <= rate_bound(times, Limits()) * (1 + 1e-9)


def test_buckets_waste_less_than_the_longest_of_a_batch():
    drawn, batch = LOAD.at(1.0).input_tokens, 8
    longest = drawn[: len(drawn) // batch * batch].reshape(-1, batch).max(axis=1)
    mean = np.mean([seconds(batch, max(16, tokens)) for tokens in longest])
    assert padded().pass_s(batch) == pytest.approx(mean)
    assert padded((32, 64, 128, 256)).pass_s(batch) < 0.9 * padded().pass_s(batch)
    assert padded((256,)).pass_s(batch) == pytest.approx(seconds(batch, 256))


@pytest.mark.parametrize(
    ("shortest", "longest", "points"),
    [(1, 512, [16, 32, 64, 128, 256, 512]), (100, 300, [64, 128, 256, 300]), (64, 64, [64]), (3, 9, [9]), (512, 512, [512])],
)
def test_lengths_that_are_priced(shortest: int, longest: int, points: list[int]):
    assert priced_lengths(shortest, longest)[-1] == longest
    assert set(priced_lengths(shortest, longest)) <= {*points, 256}
    assert priced_lengths(shortest, longest)[0] <= max(16, shortest)


def test_equal_lengths_are_a_plan_of_that_length():
    settings = {"on": "l4,h100-sxm:2", "rate": "50/s", "slo": "latency=50ms", "precision": "bf16"}
    equal = serve_plan("bert-base", input=128, spread=0, **settings)
    alike = serve_plan("bert-base", seq_len=128, **settings)
    assert [row.latency for row in equal.rows] == [row.latency for row in alike.rows]
    assert [row.saturation_rate for row in equal.rows] == pytest.approx([row.saturation_rate for row in alike.rows], rel=0.04)
    one = gpuwise.forecast("bert-base", on="l4", mode="infer", micro_batch=4, seq_len=128, precision="bf16").step_time_s
    row = serve_plan("bert-base", input=128, spread=0, batch=4, **settings).rows[0]
    assert row.forward.seconds.value == pytest.approx(one.value)
    assert row.forward.memory_bytes > 0


def test_a_bucket_is_a_plan_of_its_end():
    """Samples of any length are padded to 128."""
    settings = {"on": "l4", "rate": "50/s", "slo": "latency=50ms", "batch": 8, "precision": "bf16"}
    padded_to_end = serve_plan("bert-base", input=40, buckets="128", **settings)
    alike = serve_plan("bert-base", seq_len=128, **settings)
    assert padded_to_end.rows[0].latency == alike.rows[0].latency
    document = json.loads(json.dumps(padded_to_end.to_dict()))
    assert document["lengths"] == {"input_tokens": 40, "spread": 1.0, "longest": 128, "buckets": [128]}
    assert "padded to its end" in " ".join(padded_to_end.assumptions)


@pytest.mark.parametrize(
    ("job", "settings", "words"),
    [
        ("resnet50", {"input": 50}, "are all alike"),
        ("bert-base", {"spread": 0.5}, "no mean is named"),
        ("bert-base", {"buckets": "64"}, "no mean is named"),
        ("bert-base", {"input": 50, "seq_len": 128}, "--seq-len is of samples that are all alike"),
        ("bert-base", {"input": 50, "profile": True}, "--profile is of samples"),
        ("bert-base", {"input": 600}, "1 to 512"),
        ("bert-base", {"input": 100, "buckets": "32,64"}, "1 to 64"),
        ("bert-base", {"input": 100, "buckets": "64,1024"}, "exceeds the 512"),
        ("bert-base", {"input": 100, "buckets": "64,32"}, "no list"),
        ("bert-base", {"input": 100, "buckets": "64,,128"}, "no list"),
        ("bert-base", {"input": 100, "buckets": "0,128"}, "no list"),
        ("bert-base", {"input": 100, "spread": -1.0}, "0 or more"),
    ],
)
def test_lengths_that_cannot_be_planned(job: str, settings: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        serve_plan(job, on="l4", rate="1/s", **settings)


def test_buckets_are_of_forward_passes():
    with pytest.raises(InputError, match="--buckets is of models that answer in one forward pass"):
        serve_plan(text_job(), on="l4", rate="1/s", buckets="64,128")
    with pytest.raises(InputError, match="--input is of models that write text"):
        serve_plan(small_job(), on="l4", rate="1/s", input=5)


def test_the_whole_catalog_answers_as_every_device_by_name(few_chips):
    question = {"rate": "400/s", "slo": "latency=100ms", "input": 100, "spread": 0.5, "buckets": "128,512", "precision": "fp16"}
    whole = serve_plan("bert-base", **question)
    sold = [row for row in whole.rows if row.replicas and not row.owned]
    named = serve_plan(
        "bert-base", on=["rtx-4090", "rtx-3090", "l40s", "t4", "h100-80gb-sxm", "rtx-4090:2", "rtx-3090:2"], **question
    )
    assert [row.device for row in sold] == [row.device for row in named.rows if row.usd_per_hour is not None][:2]
    assert sold[0] == named.rows[0]
