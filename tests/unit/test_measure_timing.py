"""Rounds of timed runs: how many there are, in which order, and what their summary says. The clock is made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from gpuwise.measure import timing as module
from gpuwise.measure.timing import FEWEST_ROUNDS, LEAST_ROUND_S, summary, timed, wall_seconds
from gpuwise.results.measurement import Timing


class Clock:
    """now_s moves on where something runs, and not else. ran: which runs did, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now_s, self.ran = 0.0, []
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now_s))

    def run(self, which: object, *seconds: float):
        """A run that takes these seconds, the last of them from then on."""
        left = list(seconds)

        def runs() -> None:
            self.ran.append(which)
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return runs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_warm_up_is_not_counted(clock: Clock):
    result = timed([clock.run("a", 100.0, 1.0)], budget_s=1000.0, rounds=5)
    assert result == Timing(1.0, 1.0, 1.0, 1.0, 5)


def test_a_budget_ends_it_but_not_before_the_fewest_rounds(clock: Clock):
    assert timed([clock.run("a", 1.0)], budget_s=0.0).rounds == FEWEST_ROUNDS
    assert timed([clock.run("a", 1.0)], budget_s=10.0).rounds == 8  # two to warm up
    assert timed([clock.run("a", 1e-3)], budget_s=10.0).rounds == 30


def test_short_runs_are_timed_several_at_once(clock: Clock):
    result = timed([clock.run("a", LEAST_ROUND_S / 10)], budget_s=1.0, rounds=4)
    assert result.median_s == pytest.approx(LEAST_ROUND_S / 10)
    assert result.rounds == 4
    assert len(clock.ran) == pytest.approx(2 + 4 * 10, abs=4)


def test_a_run_that_takes_no_time_at_all_ends(clock: Clock):
    assert timed([clock.run("a", 0.0)], budget_s=0.01, rounds=3).median_s == 0.0


def test_inputs_take_turns(clock: Clock):
    runs = [clock.run(which, LEAST_ROUND_S / 1.5) for which in "abc"]
    timed(runs, budget_s=10.0, rounds=4)
    warmed, rest = clock.ran[:6], clock.ran[6:]
    assert warmed == list("abcabc")
    assert rest == list("abcabcab")  # two a round: none is met again before all others were


def test_the_median_is_of_rounds_and_the_spread_of_percentiles(clock: Clock):
    result = timed([clock.run("a", 1.0, 1.0, 1.0, 9.0, 2.0, 2.0, 3.0)], budget_s=1e3, rounds=5)
    assert (result.median_s, result.least_s, result.rounds) == (2.0, 1.0, 5)
    assert result.low_s == 1.0
    assert result.high_s == 9.0
    assert result.spread == 2.0


def test_summary():
    assert summary([3.0]) == Timing(3.0, 3.0, 3.0, 3.0, 1)
    hundred = summary([float(n) for n in range(100, -1, -1)])
    assert hundred == Timing(50.0, 10.0, 90.0, 0.0, 101)
    assert hundred.spread == 0.8
    assert summary([1.0, 2.0]).median_s == 1.5


def test_what_fails_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        timed([lambda: 1 / 0], budget_s=1.0)


def test_runs_in_a_row(clock: Clock):
    assert wall_seconds(clock.run("a", 1.0), clock.run("b", 2.0)) == 3.0
    assert clock.ran == ["a", "b"]
