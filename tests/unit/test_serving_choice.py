"""What decides between instances: fleets by rate, an API's price, branch and bound, launch lines. Against brute force."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.report.serving_choice import command_lines, small_usd
from gpuwise.serving.api_price import api_usd_per_month, break_even, parse_api_price
from gpuwise.serving.choosing import Contender, choose
from gpuwise.serving.fleets import HOURS_A_MONTH, Fleet, rate_ranges
from gpuwise.serving.instance import WARM_UP, Instance, LoadShape
from gpuwise.serving.launch import launch_line, longest_request, model_of
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import requests
from gpuwise.serving.rows import MOST_SHARE
from gpuwise.serving.saturation import Limits, saturation_rate

FLEETS = st.lists(
    st.tuples(st.floats(0.1, 50), st.floats(0.2, 40)).map(lambda pair: Fleet(f"{pair}", *pair)), min_size=1, max_size=6
)


@given(FLEETS, st.floats(0.5, 200))
@settings(deadline=None, max_examples=60)
def test_the_cheapest_by_rate_is_that_of_brute_force(fleets: list[Fleet], up_to: float):
    ranges = rate_ranges(fleets, up_to=up_to)
    assert ranges[0].above_per_s == 0
    assert ranges[-1].up_to_per_s == up_to
    for before, after in pairwise(ranges):
        assert before.up_to_per_s == after.above_per_s
        assert before.device != after.device
        assert before.usd_per_month[1] <= after.usd_per_month[0] * (1 + 1e-12)  # more requests never cost less
    by_name = {fleet.device: fleet for fleet in fleets}
    for each in ranges:
        for rate in np.linspace(each.above_per_s, each.up_to_per_s, 9)[1:]:
            least = min(fleet.usd_per_hour_at(rate) for fleet in fleets)
            assert by_name[each.device].usd_per_hour_at(rate) == pytest.approx(least)
        assert each.usd_per_month[1] == pytest.approx(by_name[each.device].usd_per_hour_at(each.up_to_per_s) * HOURS_A_MONTH)
        assert each.replicas[0] <= each.replicas[1]


def test_replicas_are_whole():
    fleet = Fleet("a", 2.0, 3.0)
    assert [fleet.replicas(rate) for rate in (0.01, 3.0, 3.01, 6.0, 6.1)] == [1, 1, 2, 2, 3]
    assert Fleet("a", 2.0, 0.1).replicas(0.3) == 3  # 0.3 / 0.1 is above 3 in floating point
    assert rate_ranges([], up_to=5.0) == ()


@given(st.floats(0.05, 20), st.floats(0.1, 50), st.floats(1e-5, 1e-2))
@settings(deadline=None, max_examples=100)
def test_break_even_against_direct_arithmetic(usd_per_hour: float, takes: float, usd_per_request: float):
    fleet = Fleet("a", usd_per_hour, takes)
    even = break_even(fleet, usd_per_request)
    rates = np.linspace(0, 30 * takes, 2000)[1:]
    api = usd_per_request * rates * 3600
    own = np.array([fleet.usd_per_hour_at(rate) for rate in rates])
    cheaper = own < api * (1 - 1e-9)
    if even is None:
        assert not cheaper.any()
        return
    assert not cheaper[rates < even.from_per_s].any()
    assert fleet.usd_per_hour_at(even.from_per_s * 1.0001) < usd_per_request * even.from_per_s * 1.0001 * 3600 or (
        even.from_per_s * 1.0001 > takes
    )
    assert cheaper[rates > even.always_from_per_s * (1 + 1e-6)].all()
    if even.always_from_per_s > even.from_per_s:  # right before, the API is cheaper or equal
        rate = even.always_from_per_s * (1 - 1e-9)
        # Of many instances the exception may be narrower than that, and the rate before it takes one less.
        assert fleet.replicas(rate) < fleet.replicas(even.always_from_per_s) or fleet.usd_per_hour_at(
            rate
        ) >= usd_per_request * rate * 3600 * (1 - 1e-6)


def test_the_price_of_an_api():
    price = parse_api_price("0.5, $1.5")
    assert price.usd_per_request(read=1000, written=200) == pytest.approx(0.0005 + 0.0003)
    assert api_usd_per_month(0.0008, 2.0) == pytest.approx(0.0008 * 2 * 3600 * HOURS_A_MONTH)
    for text in ("0.5", "0,0", "a,b", "1,2,3", "-1,2"):
        with pytest.raises(InputError):
            parse_api_price(text)


def contender(device: str, usd_per_hour: float, rate: float, slack: float, calls: list[str]) -> Contender:
    """A kind of instance whose rate is narrowed by halves."""

    def narrower():
        low, high = 0.0, rate * slack
        for _ in range(4):
            calls.append(device)
            yield low, high
            low, high = (low + rate) / 2, (high + rate) / 2
        yield rate, rate

    return Contender(device, usd_per_hour, rate * slack, narrower)


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.0, 40), st.floats(1, 2)), min_size=1, max_size=12), st.floats(0.1, 60)
)
@settings(deadline=None, max_examples=60)
def test_branch_and_bound_gives_what_looking_at_each_gives(kinds, rate: float):
    calls: list[str] = []
    made = [contender(f"{i}", usd, served, slack, calls) for i, (usd, served, slack) in enumerate(kinds) if served > 0.01]
    choice = choose(made, rate_per_s=rate, up_to=10 * rate, count=3)
    every = [Fleet(each.device, each.usd_per_hour, MOST_SHARE * kinds[int(each.device)][1]) for each in made]
    best = sorted(fleet.usd_per_hour_at(rate) for fleet in every)[:3]
    assert [each.floor.usd_per_hour_at(rate) for each in choice.exact[:3]] == pytest.approx(best)
    exact = [each.floor for each in choice.exact]
    for other in np.geomspace(rate / 100, 10 * rate, 200):
        assert min((f.usd_per_hour_at(other) for f in exact), default=None) == min(
            (f.usd_per_hour_at(other) for f in every), default=None
        )
    assert len(choice.exact) + len(choice.fails) + len(choice.dearer) == len(made)


def test_what_is_dearer_is_not_simulated_and_what_fails_makes_room():
    calls: list[str] = []
    dear = contender("dear", 100.0, 1.0, 1.1, calls)
    larger = contender("larger", 2.0, 5.0, 1.1, calls)
    fails = Contender("fails", 1.0, 5.0, lambda: iter([(0.0, 0.0)]), larger)
    choice = choose([dear, fails, contender("good", 1.5, 20.0, 1.1, calls)], rate_per_s=4.0, up_to=8.0, count=2)
    assert [each.device for each in choice.exact] == ["good", "larger"]
    assert [each.device for each in choice.fails] == ["fails"]
    assert [each.device for each in choice.dearer] == ["dear"]
    assert "dear" not in calls


POLICY = BatchingPolicy(batched_tokens=2048, sequences=256, cache_tokens=10_000)


def test_launch_lines_have_the_settings_of_the_plan():
    line = launch_line("vllm", "org/model", POLICY, devices=2, precision="bf16", memory_share=0.9, longest=4096)
    words = shlex.split(line)
    assert words[:3] == ["vllm", "serve", "org/model"]
    assert dict(zip(words[3::2], words[4::2], strict=True)) == {
        "--tensor-parallel-size": "2",
        "--max-num-batched-tokens": "2048",
        "--max-num-seqs": "256",
        "--gpu-memory-utilization": "0.9",
        "--max-model-len": "4096",
        "--dtype": "bfloat16",
    }
    older = launch_line("vllm-2024", "a folder", POLICY, devices=1, precision="fp16", memory_share=0.9, longest=4096)
    assert "--model 'a folder'" in older
    assert "--max-num-batched-tokens 4096" in older  # a whole prompt must fit
    tensorrt = launch_line("tensorrt-llm", "m", POLICY, devices=4, precision="bf16", memory_share=0.9, longest=4096)
    assert "--tp_size 4 --max_num_tokens 2048 --max_batch_size 256 --max_seq_len 4096 --enable_chunked_prefill" in tensorrt
    sglang = launch_line("sglang", "m", POLICY, devices=4, precision="bf16", memory_share=0.88, longest=4096, cache="fp8")
    assert "sglang.launch_server --model-path m --tp-size 4 --chunked-prefill-size 2048" in sglang
    assert sglang.endswith("--context-length 4096 --dtype bfloat16 --kv-cache-dtype fp8_e4m3")
    assert launch_line("other", "m", POLICY, devices=1, precision="bf16", memory_share=0.9, longest=1) == ""
    assert shlex.split(command_lines(line).replace("\\\n", "")) == words


def test_launch_lines_have_the_formats_of_the_plan():
    usual = {"devices": 1, "precision": "fp16", "memory_share": 0.9, "longest": 4096}
    narrow = launch_line("vllm", "org/model", POLICY, weights="fp8", cache="fp8", **usual).split()
    assert narrow[narrow.index("--quantization") + 1] == "fp8"
    assert narrow[narrow.index("--kv-cache-dtype") + 1] == "fp8"
    assert "--quantization" not in launch_line("vllm", "org/model-AWQ", POLICY, weights="int4", **usual)
    local = launch_line("llama.cpp", "org/model", POLICY, weights="gguf-q4_k_m", cache="q8_0", on_cpu=True, **usual).split()
    assert local[local.index("--model") + 1] == "model-Q4_K_M.gguf"
    assert local[local.index("--n-gpu-layers") + 1] == "0"
    assert local[local.index("--cache-type-k") + 1] == local[local.index("--cache-type-v") + 1] == "q8_0"
    tensorrt = launch_line("tensorrt-llm", "m", POLICY, cache="fp8", **usual)
    assert tensorrt.endswith("--extra_llm_api_options kv_cache.yaml")


def test_models_and_lengths_of_launch_lines():
    assert model_of("hf:org/model") == "org/model"
    assert model_of("llama3-8b") == "meta-llama/Meta-Llama-3-8B"
    assert model_of("mine") == "MODEL"
    load = requests(np.zeros(2), np.array([100, 700]), np.array([10, 60]))
    assert longest_request(load, POLICY, None) == 768
    assert longest_request(load, POLICY, 762) == 762
    assert longest_request(load, BatchingPolicy(64, 4, cache_tokens=640), None) == 640


@pytest.mark.parametrize("limits", [Limits(ttft_s=0.4, tpot_s=0.03), Limits(latency_s=4.0, share=0.9), Limits(ttft_s=1e-4)])
def test_loads_that_are_stopped_early_give_the_rate_of_whole_loads(limits: Limits):
    def iteration_s(chunks, sequences, past_tokens):
        return 0.004 + 1e-5 * (sequences + sum(new for new, _ in chunks)) + 1e-7 * past_tokens

    instance = Instance(iteration_s, BatchingPolicy(batched_tokens=512, sequences=64, cache_tokens=20_000), (1.0, 1.0))
    loads = LoadShape(Lengths(200, 60, input_variation=1.0, output_variation=1.0))

    def served_at(rate: float):
        served = instance.served(loads.at(rate))
        rest = slice(int(WARM_UP * len(served.requests)), None)
        return replace(
            served, requests=served.requests.of(rest), first_token_s=served.first_token_s[rest], end_s=served.end_s[rest]
        )

    capacity = instance.capacity(loads)
    whole = saturation_rate(served_at, limits, start=capacity, highest=capacity)
    assert instance.saturation_rate(loads, limits) == whole
    bounds = list(instance.narrowing(loads, limits))
    assert bounds[-1] == (whole, whole)
    for before, after in pairwise(bounds):
        assert before[0] <= after[0] <= after[1] <= before[1]


def test_cents_have_digits():
    assert [small_usd(value) for value in (0.0, 0.01234, 0.5, 12.0)] == ["$0.00", "$0.0123", "$0.5", "$12.00"]


def test_a_step_that_rounds_to_above_the_last_rate_is_left_out():
    ranges = rate_ranges([Fleet("a", 1.0, 1 / 3)], up_to=170.99999999999997)  # 513 / 3 is 171 in floating point
    assert ranges[-1].up_to_per_s == 170.99999999999997
