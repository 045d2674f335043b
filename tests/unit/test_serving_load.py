"""Loads as people have them: bursts, a day, a file of requests. Against closed forms and figures by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.quick import quick

from gpuwise.api.serving_arrivals import parse_arrivals, planned_load
from gpuwise.errors import FileFormatError, InputError
from gpuwise.serving import recorded_load as recorded
from gpuwise.serving.days import NAMED, parse_day
from gpuwise.serving.in_turn import fewest_in_turn
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.recorded_load import day_curve, recorded_load
from gpuwise.serving.request_log import RequestLog, read_log
from gpuwise.serving.requests import Requests
from gpuwise.serving.rows import MOST_SHARE, row_of
from gpuwise.serving.saturation import Limits

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,4808,10
2023-11-16 18:15:50.9951690,3180,8
2023-11-16 18:15:47.1805900,110,27
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
185,GPT-4,1360,647,2007,API log
"""
MOONCAKE = '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
MOONCAKE += '\n{"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": [0, 2]}\n'


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "variation"), [("poisson", 1.0), ("bursty", 2.0), ("bursty=3.5", 3.5), (" bursty = 0.5", 0.5)]
)
def test_gaps_have_the_variation_that_is_named(text: str, variation: float):
    assert parse_arrivals(text) == variation
    load = LoadShape(Lengths(10, 10), variation=variation).at(5.0, count=400_000)
    gaps = np.diff(load.arrival_s)
    assert gaps.mean() == pytest.approx(0.2, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.02)


def test_lengths_of_few_users_have_the_means_of_all():
    """Independent draws of a hundred requests miss the mean by a tenth, as their spread over its root says."""
    lengths = Lengths(1000, 300, input_variation=1.0, output_variation=0.5, correlation=0.6)

    def error(load: Requests) -> float:
        return float(load.of(slice(50, 150)).input_tokens.mean() / 1000 - 1)

    shapes = [LoadShape(lengths, seed=seed) for seed in range(200)]
    evenly = [error(shape.of_clients(200)) for shape in shapes]
    drawn = [error(shape.at(1.0, count=200)) for shape in shapes]
    assert not shapes[0].of_clients(200).arrival_s.any()
    assert abs(np.mean(evenly)) < 0.01
    assert np.std(evenly) < 0.035
    assert np.std(drawn) > 0.08


def test_lengths_drawn_evenly_are_log_normal():
    """Quantiles, spread and correlation, against those of as many independent draws."""
    lengths = Lengths(1000, 300, input_variation=1.0, output_variation=0.5, correlation=0.6)
    rng = np.random.default_rng(1)
    evenly, drawn = (np.array(lengths_of(400_000, rng)) for lengths_of in (lengths.drawn_evenly, lengths.drawn))
    shares = [0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999]
    assert np.quantile(evenly, shares, axis=1) == pytest.approx(np.quantile(drawn, shares, axis=1), rel=0.03)
    assert evenly.std(axis=1) == pytest.approx(drawn.std(axis=1), rel=0.03)
    assert np.corrcoef(np.log(evenly))[0, 1] == pytest.approx(np.corrcoef(np.log(drawn))[0, 1], abs=0.01)


@pytest.mark.parametrize("text", ["", "uniform", "poisson=2", "bursty=", "bursty=0", "bursty=-1", "bursty=nan", "bursty=99"])
def test_no_arrivals(text: str):
    with pytest.raises(InputError) as caught:
        parse_arrivals(text)
    assert caught.value.ways_out


def test_rates_of_a_day_hold_until_the_next_hour_that_is_named():
    day = parse_day("0:0.2, 8:1, 12:1.5, 20:0.8")
    mean = (8 * 0.2 + 4 * 1 + 8 * 1.5 + 4 * 0.8) / 24
    assert day.multiples == pytest.approx([0.2 / mean] * 8 + [1 / mean] * 4 + [1.5 / mean] * 8 + [0.8 / mean] * 4)
    assert np.mean(day.multiples) == pytest.approx(1)
    assert (day.peak_hour, day.peak) == (12, pytest.approx(1.5 / mean))
    over_midnight = parse_day("22:4,6:1")  # the last one goes on past midnight
    assert over_midnight.multiples[:6] == over_midnight.multiples[22:24] * 3
    assert all(np.mean(parse_day(name).multiples) == pytest.approx(1) for name in NAMED)


@pytest.mark.parametrize(
    "text", ["", "8", "8:", "24:1", "-1:1", "8:-1", "8:x", "8.5:1", "8:nan", "8:inf", "8:1,8:2", "0:0", "noon", "8:1;9:2"]
)
def test_no_day(text: str):
    with pytest.raises(InputError) as caught:
        parse_day(text)
    assert "--day" in caught.value.ways_out[0]


def test_public_traces_are_read_as_they_are(tmp_path: Path):
    azure = read_log(written(tmp_path, AZURE))
    np.testing.assert_allclose(azure.arrival_s, [0, 0.5, 4.314579], atol=1e-6)
    assert azure.input_tokens.tolist() == [4808, 110, 3180]
    assert azure.output_tokens.tolist() == [10, 27, 8]
    assert azure.first_s == pytest.approx(18 * 3600 + 15 * 60 + 46.68059)
    assert (azure.failed, azure.unread) == (0, ())
    burst = read_log(written(tmp_path, BURSTGPT.replace("\n", "\r\n")))
    assert burst.arrival_s.tolist() == [0, 40, 180]
    assert burst.rate_per_s == pytest.approx(2 / 180)
    assert (burst.failed, burst.unread) == (1, ("Model", "Total tokens", "Log Type"))
    mooncake = read_log(written(tmp_path, MOONCAKE, "trace.jsonl"))
    assert mooncake.arrival_s.tolist() == [0, 3]  # milliseconds
    assert mooncake.unread == ("hash_ids",)
    odd = read_log(written(tmp_path, f"time,input_tokens,output_tokens,\x1b[31m,{'x' * 999}\n1,2,3,4,5\n2,2,3,4,5\n"))
    assert odd.unread == (repr("\x1b[31m"), "x" * 60)
    vidur = read_log(written(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,20\n1.0,11.0,21\n"))
    assert vidur.input_tokens.tolist() == [10, 11]


HEAD = "timestamp,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (HEAD + "1,2,3\n2,3\n", 3, "has 2 columns, and the header 3"),
        (HEAD + "1,2,3\n2,x,3\n", 3, "'x' is no number of tokens"),
        (HEAD + "1,2,3\n\n2,-4,3\n", 4, "'-4' is no number of tokens"),
        (HEAD + "1,2,3\n2,4.5,3\n", 3, "'4.5' is no number of tokens"),
        (HEAD + "1,2,3\n2,1e300,3\n", 3, "no number of tokens"),
        (HEAD + "1,2,3\nsoon,4,3\n", 3, "neither seconds nor a date"),
        (HEAD + "1,2,3\nnan,4,3\n", 3, "neither seconds nor a date"),
        (HEAD + "1700000000000,2,3\n", 2, "timestamp_ms"),
        (HEAD + '1,2,"3\n', 2, "unexpected end"),
        ("when,input_tokens,output_tokens\n1,2,3\n", 1, "no column is the arrival"),
        ("timestamp,arrival,input_tokens,output_tokens\n1,1,2,3\n", 1, "both 'timestamp' and 'arrival'"),
        ('{"t": 1}\n', 1, "no column is the arrival"),
        ('{"timestamp": 1, "input_tokens": 2, "output_tokens": 3}\n{"timestamp": 2}\n', 2, "has no 'input_tokens'"),
        ('{"timestamp": 1, "input_tokens": 2, "output_tokens": 3}\n[1]\n', 2, "no JSON object"),
        ('{"timestamp": 1, "input_tokens": 2, "output_tokens": 3}\n{"timestamp": 1,\n', 2, "no JSON"),
        ('{"timestamp": 1, "input_tokens": true, "output_tokens": 3}\n', 1, "True is no number of tokens"),
        ("{" * 100_000 + "\n", 1, "no JSON"),
    ],
)
def test_a_broken_line_is_named_with_its_file(tmp_path: Path, text: str, line: int, words: str):
    path = written(tmp_path, text)
    with pytest.raises(FileFormatError) as caught:
        read_log(path)
    assert f"trace.csv:{line}: " in caught.value.what
    assert words in caught.value.what
    assert caught.value.ways_out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (HEAD.encode() + b"1,2,3\n", "has 1 requests"),
        (b"\x1f\x8b\xff\xfe", "no text"),
        (b"\n \n", "is empty"),
    ],
)
def test_no_requests(tmp_path: Path, content: bytes, words: str):
    with pytest.raises(FileFormatError, match=words):
        read_log(written(tmp_path, content))


def test_only_files_of_a_sensible_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(FileFormatError, match="cannot read"):
        read_log(tmp_path / "missing.csv")
    with pytest.raises(FileFormatError, match="folder"):
        read_log(tmp_path)
    monkeypatch.setattr("gpuwise.serving.request_log.LIMIT_BYTES", 10)
    with pytest.raises(FileFormatError, match="at most 0 are read") as caught:
        read_log(written(tmp_path, AZURE))
    assert "head -n" in caught.value.ways_out[0]


def log_of(arrival_s: np.ndarray, seed: int = 0) -> RequestLog:
    rng = np.random.default_rng(seed)
    first, second = rng.standard_normal((2, len(arrival_s)))
    read = np.maximum(1, np.exp(5 + first)).astype(np.int64)
    output = np.maximum(1, np.exp(4 + 0.8 * first + 0.6 * second)).astype(np.int64)
    return RequestLog("log", arrival_s - arrival_s[0], read, output)


def test_lengths_keep_their_correlation_and_gaps_scale_with_the_rate():
    log = log_of(np.sort(np.random.default_rng(1).uniform(0, 1000, 5000)))
    load, cut = recorded_load(log, cached_share=0.5, longest=None)
    assert load.lengths.correlation == pytest.approx(0.8, abs=0.03)
    assert (cut, load.recorded_count) == (0, 5000)
    at_rate = load.at(20.0)
    assert (len(at_rate) - 1) / at_rate.arrival_s[-1] == pytest.approx(20.0)
    np.testing.assert_allclose(np.diff(at_rate.arrival_s) * 20, np.diff(log.arrival_s) * log.rate_per_s, atol=1e-9)
    assert np.corrcoef(np.log(at_rate.input_tokens), np.log(at_rate.output_tokens))[0, 1] == load.lengths.correlation
    assert at_rate.cached_tokens.tolist() == (log.input_tokens // 2).tolist()


def test_requests_beyond_the_context_are_cut():
    log = log_of(np.arange(1000.0))
    load, cut = recorded_load(log, cached_share=0.0, longest=512)
    assert cut == np.sum(log.input_tokens + log.output_tokens > 512)
    assert (load.at(1.0).input_tokens + load.at(1.0).output_tokens).max() <= 512
    with pytest.raises(InputError, match="context"):
        recorded_load(log, cached_share=0.0, longest=64)


def test_of_a_long_file_the_busiest_part_is_replayed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorded, "WINDOW", 100)
    calm, busy = np.arange(0, 500, 1.0), 500 + np.arange(0, 10, 0.1)
    load, _ = recorded_load(log_of(np.concatenate([calm, busy, 511 + calm])), cached_share=0.0, longest=None)
    assert load.recorded_count == 100
    assert load.recorded_per_s == pytest.approx(10.0)


def test_of_a_file_of_a_day_the_busiest_hour_is_replayed():
    """Six times the rate from 9 to 10, fewer than 10,000 requests in all."""
    hours = [np.arange(0, 3600, 3600 / (600 if hour == 9 else 100)) + 3600 * hour for hour in range(24)]
    load, _ = recorded_load(log_of(np.concatenate(hours)), cached_share=0.0, longest=None)
    assert load.recorded_count == 600
    assert load.recorded_per_s == pytest.approx(1 / 6, rel=0.01)
    sparse, _ = recorded_load(log_of(np.arange(0, 86_400, 300.0)), cached_share=0.0, longest=None)
    assert sparse.recorded_count == recorded.FEWEST


def test_few_requests_come_again_at_their_own_rate():
    """So that what an instance serves does not depend on the length of a file: brute force has each request once a round."""
    log = log_of(np.sort(np.random.default_rng(2).uniform(0, 100, 300)))
    load, _ = recorded_load(log, cached_share=0.0, longest=None)
    again = load.at(load.recorded_per_s)
    assert len(again) == 2100
    for at in range(7):
        part = again.of(slice(300 * at, 300 * at + 300))
        np.testing.assert_allclose(part.arrival_s - part.arrival_s[0], log.arrival_s, atol=1e-9)
        assert part.input_tokens.tolist() == log.input_tokens.tolist()
    assert (len(again) - 1) / again.arrival_s[-1] == pytest.approx(load.recorded_per_s)
    assert load.at(1.0, count=500).output_tokens.tolist() == again.output_tokens[:500].tolist()


@pytest.mark.parametrize(
    ("variation", "instances", "expected"), [(10.0, 4, 5.0), (3.0, 4, 1.5), (3.0, 100, 1.0), (1.0, 5, 1.0)]
)
def test_instances_share_bursts(variation: float, instances: int, expected: float):
    """Gaps of every n-th request of the whole load; where those are more even than Poisson, Poisson is taken."""
    load = LoadShape(Lengths(10, 10), variation=variation)
    assert load.dealt(instances).variation == pytest.approx(expected)
    gaps = np.diff(load.at(5.0, count=400_000).arrival_s[::instances])
    assert gaps.std() / gaps.mean() == pytest.approx(variation / instances**0.5, rel=0.05)


@pytest.mark.parametrize("instances", [1, 2, 3, 7])
def test_an_instance_has_every_so_manieth_request_of_a_file(instances: int):
    log = log_of(np.sort(np.random.default_rng(3).uniform(0, 100, 420)))
    load, _ = recorded_load(log, cached_share=0.0, longest=None)
    part = load.dealt(instances).at(load.recorded_per_s / instances)
    count = 420 // instances
    np.testing.assert_allclose(part.arrival_s[:count], log.arrival_s[::instances], atol=1e-9)
    assert part.input_tokens[:count].tolist() == log.input_tokens[::instances].tolist()
    assert len(part) >= 2000


SERVER = Instance(
    lambda chunks, sequences, past: 0.004 + 1e-4 * (sequences + sum(new for new, _ in chunks)),
    BatchingPolicy(batched_tokens=512, sequences=64, cache_tokens=100_000),
    (0.9, 1.2),
)


def test_what_an_instance_serves_does_not_depend_on_the_length_of_a_file():
    """Requests that are alike, evenly at random: 9,000 of them, and the first 300, which are over in seconds."""
    arrival_s = np.sort(np.random.default_rng(4).uniform(0, 300, 9000))
    served = []
    for count in (300, 9000):
        log = RequestLog("log", arrival_s[:count] - arrival_s[0], np.full(count, 100), np.full(count, 40))
        served.append(SERVER.saturation_rate(recorded_load(log, cached_share=0.0, longest=None)[0], Limits()))
    assert served[0] == pytest.approx(served[1], rel=0.05)


@pytest.mark.parametrize(
    "load", quick([LoadShape(Lengths(100, 40), variation=8.0), "file"], slow=["file"]), ids=["gamma", "file"]
)
def test_a_row_of_bursts_has_the_fewest_instances_that_hold_the_limits(load: LoadShape | str):
    """Against every smaller number, and with what one of so many serves; what else rests on the row counts as many."""
    if isinstance(load, str):
        gaps = np.random.default_rng(5).gamma(1 / 64, 64, 6000)
        log = RequestLog("log", np.cumsum(gaps) - gaps[0], np.full(6000, 100), np.full(6000, 40))
        load = recorded_load(log, cached_share=0.0, longest=None)[0]
    limits, rate_per_s = Limits(ttft_s=0.3), 150.0

    def hold(count: int) -> bool:
        return SERVER.saturation_rate(load.dealt(count), limits) * MOST_SHARE >= rate_per_s / count * (1 - 1e-9)

    row = row_of("l4", SERVER, load, limits, rate_per_s=rate_per_s, weight_bytes=1, usd_per_hour=2.0)
    assert hold(row.replicas)
    assert not any(hold(fewer) for fewer in range(1, row.replicas))
    whole = row_of("l4", SERVER, LoadShape(Lengths(100, 40)), limits, rate_per_s=rate_per_s, weight_bytes=1, usd_per_hour=2.0)
    assert row.replicas >= whole.replicas
    assert row.fleet is not None
    assert row.fleet.replicas(rate_per_s) == row.replicas
    own = SERVER.saturation_rate(load.dealt(row.replicas), limits)
    assert row.saturation_rate <= own
    assert row.saturation_rate == own or row.load * row.replicas == pytest.approx(MOST_SHARE * (row.replicas - 1), rel=1e-5)
    expected = SERVER.outcomes(load.dealt(row.replicas).at(rate_per_s / row.replicas))[0]
    assert row.latency["ttft_s"].p99.value == pytest.approx(float(np.percentile(expected.ttft_s, 99)))


@pytest.mark.parametrize("rate_per_s", [3.0, 40.0, 90.0])
@pytest.mark.parametrize("share", [0.5, 0.85])
def test_the_fewest_instances_of_bursts_are_those_of_brute_force(rate_per_s: float, share: float):
    """An instance serves 10 requests a second of even loads, the less the more its gaps vary; over a variation of 4 none."""

    class Bursty:
        def serves(self, loads: LoadShape, limits: Limits, rate: float) -> bool:
            return loads.variation < 4 and rate <= 10 / loads.variation

    load = LoadShape(Lengths(10, 10), variation=6.0)
    expected = next(n for n in range(1, 100) if Bursty().serves(load.dealt(n), Limits(), rate_per_s / n / share))
    for saturation in (0.0, 10 / 40):
        fewest = fewest_in_turn(Bursty(), load, Limits(), rate_per_s=rate_per_s, saturation=saturation, share=share)
        assert fewest == expected
    assert fewest_in_turn(Bursty(), load, Limits(), rate_per_s=1e9, saturation=0.0, share=share) == 0


def test_hours_of_a_file():
    rates = [1, 2, 3, 4] * 6
    arrival_s = np.concatenate([3600 * (hour + np.arange(250 * rate) / (250 * rate)) for hour, rate in enumerate(rates)])
    day = day_curve(RequestLog("log", np.append(arrival_s, 86_400.0), np.ones(0), np.ones(0)))
    assert day is not None
    assert day.multiples == pytest.approx(np.array(rates) / 2.5, rel=0.02)
    assert day_curve(log_of(np.arange(1000.0))) is None
    # A day and a half from 18:30 on: the hours of one and a half nights are there twice, and count once.
    arrival_s = np.arange(0, 36 * 3600 + 1.0, 10.0)
    steady = day_curve(RequestLog("log", arrival_s, np.ones(0), np.ones(0), first_s=18.5 * 3600))
    assert steady is not None
    assert steady.multiples == pytest.approx([1.0] * 24, rel=0.01)


def test_a_planned_load(tmp_path: Path):
    path = str(written(tmp_path, BURSTGPT))
    load = planned_load({"trace": path}, rate=None, longest=None)
    assert load.rate_per_s == pytest.approx(2 / 180)
    kinds = {note.kind for note in load.notes}
    assert kinds == {"replayed-requests", "failed-requests", "unread-columns"}
    scaled = planned_load({"trace": path}, rate="10/s", longest=None)
    assert scaled.rate_per_s == 10
    assert {note.kind for note in scaled.notes} == kinds | {"scaled-requests"}
    along = planned_load({"day": "0:1,12:3", "autoscale": True}, rate="10/s", longest=None)
    assert along.schedule.follows
    assert along.schedule.peak == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("settings", "rate", "words"),
    [
        ({}, None, "needs a rate"),
        ({"autoscale": True}, "1/s", "--autoscale needs"),
        ({"arrivals": "often"}, "1/s", "no kind of arrivals"),
        ({"day": "noon"}, "1/s", "no hour"),
        ({"trace": "x.csv", "input": 5}, None, "--trace brings what --input says"),
        ({"trace": "x.csv", "day": "office"}, None, "--trace brings what --day says"),
    ],
)
def test_settings_that_exclude_each_other(settings, rate, words: str):
    with pytest.raises(InputError, match=words) as caught:
        planned_load(settings, rate=rate, longest=None)
    assert caught.value.ways_out


def test_hours_of_a_short_file_have_no_rates_of_their_own(tmp_path: Path):
    with pytest.raises(InputError, match="shorter than a day"):
        planned_load({"trace": str(written(tmp_path, AZURE)), "autoscale": True}, rate=None, longest=None)
