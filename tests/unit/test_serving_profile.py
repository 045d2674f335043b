"""Passes that are timed before a load: the forecast corrected by them, and the timing itself on a clock that models move."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition

import numpy as np
import pytest
from tests.unit.test_serving_check import small_job

from gpuwise.api.serving_check import serve_check
from gpuwise.cost.forecast import Interval
from gpuwise.report.printed import as_text
from gpuwise.runtime.serving import timing
from gpuwise.runtime.serving.server import LoadReplay, ServedModel
from gpuwise.runtime.serving.timing import time_engine, time_groups
from gpuwise.serving.group_server import GroupServer, PackedServer
from gpuwise.serving.pass_times import ForwardTimes, GenerationTimes, PackedTimes
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.profile import FORWARD, TOKEN, PassProfile, TimedPass, corrected_groups, corrected_iterations
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.served import Served
from gpuwise.serving.windowed import ServerCosts, WindowPolicy, serve_groups


def exactly(seconds: float) -> Interval:
    return Interval(seconds, seconds / 2, seconds * 3)


@dataclass
class ModelClock:
    """Moves as models run."""

    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s

    def wait(self, changed: Condition, seconds: float) -> bool:
        raise AssertionError("nobody waits")


@dataclass
class SlowModel:
    """Takes so many times its forecast."""

    times: ForwardTimes | GenerationTimes
    clock: ModelClock
    slower: float
    load: Requests
    groups: list[int] = field(default_factory=list)

    def serving(self, load: Requests) -> SlowModel:
        return SlowModel(self.times, self.clock, self.slower, load, self.groups)

    def answer(self, group: Sequence[int], first: Callable[[int], None], last: Callable[[int], None]) -> None:
        self.groups.append(len(group))
        firsts, ends = self.times.group_s(self.load)(list(group))
        began_s = self.clock.time_s
        self.clock.time_s = began_s + self.slower * float(np.max(firsts))
        for request in group:
            first(request)
        self.clock.time_s = began_s + self.slower * float(np.max(ends))
        for request in group:
            last(request)


WAKE_S = 0.125


def replayed_on(clock: ModelClock) -> Callable[[Requests, ServedModel], LoadReplay]:
    """Serves one request after the other, each WAKE_S after its arrival where the server was idle."""

    def replayed(load: Requests, model: ServedModel) -> LoadReplay:
        end_s = np.zeros(len(load))
        start_s = clock.time_s
        for request, arrival_s in enumerate(load.arrival_s):
            idle = arrival_s > clock.time_s - start_s
            clock.time_s = max(clock.time_s, start_s + arrival_s) + idle * WAKE_S
            model.answer([request], lambda _: None, lambda _: None)
            end_s[request] = clock.time_s - start_s
        return LoadReplay(Served(load, end_s, end_s, len(load), 0.0))

    return replayed


FORWARD_TIMES = ForwardTimes({1: exactly(1.0), 2: exactly(1.5), 4: exactly(2.5), 8: exactly(4.0)})
POINTS = (1, 16, 32, 64, 100)
GENERATION_TIMES = GenerationTimes(
    {n: {tokens: exactly(0.1 * n + 0.01 * tokens) for tokens in POINTS} for n in (1, 2, 4)},
    {n: {tokens: exactly(0.2 + 0.03 * n + 0.002 * tokens) for tokens in POINTS} for n in (1, 2, 4)},
)


def load_of(count: int, *, prompt: int = 40, written: int = 12) -> Requests:
    return requests(0.7 * np.arange(count), np.full(count, prompt), np.full(count, written))


@pytest.mark.parametrize("times", [FORWARD_TIMES, GENERATION_TIMES], ids=["forward", "generation"])
@pytest.mark.parametrize("slower", [1.0, 1.7])
def test_the_timing_sees_how_much_slower_passes_are(times: ForwardTimes | GenerationTimes, slower: float):
    clock, load = ModelClock(), load_of(10)
    model = SlowModel(times, clock, slower, load)
    profile = time_groups(model, times, load, replayed_on(clock), clock, idle_s=0.2)
    assert [each.ratio for each in profile.passes] == pytest.approx([slower] * len(profile.passes))
    assert profile.idle_s == pytest.approx(WAKE_S)
    assert profile.took_s == pytest.approx(clock.time_s)
    # Corrected, groups of all sizes take as long as the model does, those that were not timed included.
    both = [corrected_groups(times, profile).group_s(load), times.group_s(load)]
    for size in range(1, 5):
        timed, forecast = (group_s(list(range(size))) for group_s in both)
        np.testing.assert_allclose(timed[0], slower * np.asarray(forecast[0]))
        np.testing.assert_allclose(timed[1], slower * np.asarray(forecast[1]))


def test_sizes_alternate_and_no_request_of_the_load_is_served():
    clock, load = ModelClock(), load_of(10)
    model = SlowModel(FORWARD_TIMES, clock, 0.001, load)
    time_groups(model, FORWARD_TIMES, load, replayed_on(clock), clock, idle_s=0.0)
    rounds = np.array(model.groups[: 4 * (timing.ROUNDS + 1)]).reshape(-1, 4)
    assert all(sorted(row) == [1, 2, 4, 8] for row in rounds.tolist())
    assert len({tuple(row) for row in rounds.tolist()}) > 5


def test_slow_models_are_timed_less_often():
    clock, load = ModelClock(), load_of(10)
    profile = time_groups(
        SlowModel(FORWARD_TIMES, clock, 1.0, load), FORWARD_TIMES, load, replayed_on(clock), clock, idle_s=0.0
    )
    assert {len(each.rounds_s) for each in profile.passes} == {timing.FEWEST_ROUNDS}


def test_ctrl_c_ends_the_timing():
    clock, load = ModelClock(), load_of(10)
    model = SlowModel(FORWARD_TIMES, clock, 1.0, load)
    nothing = Served(load, np.full(10, np.nan), np.full(10, np.nan), 0, 0.0)
    with pytest.raises(KeyboardInterrupt):
        time_groups(model, FORWARD_TIMES, load, lambda load, model: LoadReplay(nothing, interrupted=True), clock, idle_s=0.0)


def profile_of(passes: Sequence[TimedPass], costs: ServerCosts | None = None) -> PassProfile:
    return PassProfile(tuple(passes), costs or ServerCosts(), 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_measured_sizes_are_met_and_sizes_between_them_are_monotone(seed: int):
    rng = np.random.default_rng(seed)
    sizes = [1, 2, 4, 8, 16]
    forecast_s, timed_s = (np.cumsum(rng.uniform(0.1, 1.0, 5)) for _ in range(2))
    times = ForwardTimes({size: exactly(float(seconds)) for size, seconds in zip(sizes, forecast_s, strict=True)})
    timed = [
        TimedPass(FORWARD, size, 0, times.pass_s(size), (float(seconds),) * 5)
        for size, seconds in zip(sizes, timed_s, strict=True)
    ]
    better = corrected_groups(times, profile_of(timed))
    assert isinstance(better, ForwardTimes)
    assert [better.pass_s(size) for size in sizes] == pytest.approx(timed_s.tolist())
    assert np.all(np.diff([better.pass_s(size) for size in range(1, 17)]) > 0)
    assert better.spread == pytest.approx((0.95, 1.05))


def test_the_interval_is_as_wide_as_rounds_differ():
    rounds = tuple(np.linspace(0.8, 1.2, 21).tolist())
    profile = profile_of([TimedPass(FORWARD, size, 0, 1.0, rounds) for size in (1, 2)])
    assert profile.spread == pytest.approx((0.82, 1.18))


def test_a_ratio_between_two_prompts_and_beyond_the_longest():
    passes = [
        TimedPass(kind, 1, tokens, 1.0, (ratio,)) for kind in ("prompt", TOKEN) for tokens, ratio in ((16, 1.0), (64, 2.0))
    ]
    row = {tokens: exactly(3.0) for tokens in (1, 40, 100)}
    better = corrected_groups(GenerationTimes({1: row}, {1: row, 2: row}), profile_of(passes))
    assert isinstance(better, GenerationTimes)
    for table in (better.reading, better.writing):
        assert [interval.value for interval in table[1].values()] == pytest.approx([3.0, 4.5, 6.0])
    assert better.writing[2] == better.writing[1]


def test_an_engine_is_timed_by_its_replays():
    news, past = (1, 4, 16, 256), (0, 64, 4000)
    times = PackedTimes({new: {at: exactly(0.3 + 0.02 * new + 1e-4 * at) for at in past} for new in news})
    policy = BatchingPolicy(256, 16, 16 * 1000, block_tokens=16)
    server, clock, load = PackedServer(times, policy), ModelClock(), load_of(30)

    def replayed(probe: Requests) -> LoadReplay:
        served = server.served(probe, factor=1.4)
        clock.time_s += served.span_s
        return LoadReplay(served)

    profile = time_engine(replayed, server.served, policy, load, clock)
    assert [each.ratio for each in profile.passes] == pytest.approx([1.4] * len(profile.passes))
    assert {each.requests for each in profile.passes} == {1, 4, 16}
    timed = server.timed(profile)
    np.testing.assert_allclose(timed.served(load).end_s, server.served(load, factor=1.4).end_s)
    assert timed.spread == (0.95, 1.05)
    assert profile.idle_s is None


def test_iterations_between_two_sizes():
    times = PackedTimes({new: {0: exactly(1.0), 9: exactly(1.0)} for new in (1, 64)})
    passes = [TimedPass(TOKEN, 1, 20, 1.0, (1.0,)), TimedPass("prompt", 1, 16, 1.0, (2.5,))]
    better = corrected_iterations(times, profile_of(passes))
    assert [better(((tokens, 0),), 0, 0) for tokens in (1, 11, 16, 40)] == pytest.approx([1.0, 2.0, 2.5, 2.5])


def test_costs_of_the_server_by_hand():
    """Requests at 0, 10 and 11 s, passes of 4 s: the first two meet an idle server, the third a busy one."""
    load = requests(np.array([0.5, 10.0, 11.0]), np.ones(3, np.int64), np.ones(3, np.int64))
    costs = ServerCosts(idle_s=(0.25,), between_s=0.125, jitter=(2.0,))
    served = serve_groups(load, lambda group: (4.0, 4.0), WindowPolicy(1), costs=costs)
    assert served.end_s.tolist() == [4.875, 14.375, 22.5]
    assert served.busy_s == 4.375 + 4.375 + 8.125


def test_rare_slow_passes_move_the_mean_and_the_tail():
    load = requests(np.zeros(4000), np.ones(4000, np.int64), np.ones(4000, np.int64))
    server = GroupServer(ForwardTimes({1: exactly(1.0)}), WindowPolicy(1), ServerCosts(jitter=(1.0, 1.0, 1.0, 3.0)))
    assert server.served(load).busy_s == pytest.approx(1.5 * 4000, rel=0.05)
    assert server.served(load).busy_s == server.served(load).busy_s


def short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROUNDS": 2, "FEWEST_ROUNDS": 1, "IDLE_PASSES": 2, "LONGEST_IDLE_S": 0.0}.items():
        monkeypatch.setattr(timing, name, value)


def test_a_check_says_what_was_timed(monkeypatch: pytest.MonkeyPatch):
    short_timing(monkeypatch)
    result = serve_check(small_job(), rate="inf", requests=6, input=8, output=4, profile=True)
    assert result.timing is not None
    assert result.timing.profile.count == 2 * len(result.timing.profile.passes)
    assert set(result.timing.latency) == set(result.latency)
    text = as_text(result)
    assert "passes timed before the load" in text
    assert "forecast without timing" in text
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))["timing"]
    assert data["passes"][0].keys() >= {"kind", "requests", "tokens", "forecast_s", "timed_s", "rounds"}
    assert set(data["forecast_without_timing"]) == {"latency", "capacity", "saturation_rate"}


def test_a_check_of_forward_passes_times_each_size(monkeypatch: pytest.MonkeyPatch):
    short_timing(monkeypatch)
    result = serve_check("tabular-mlp", rate="inf", requests=12, batch=4, profile=True)
    assert result.timing is not None
    assert [(each.kind, each.requests) for each in result.timing.profile.passes] == [(FORWARD, n) for n in (1, 2, 4)]
    assert serve_check("tabular-mlp", rate="inf", requests=4).to_dict()["timing"] is None
