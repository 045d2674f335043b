"""How often to save."""

from __future__ import annotations

import math

import pytest

from gpuwise.errors import InputError
from gpuwise.runtime.checkpoint import choose_interval


def test_daly_decides_between_the_bounds():
    interval = choose_interval(save_s=20, held_up_s=1.0, interruptions_per_day=1)
    assert interval.seconds == pytest.approx(math.sqrt(2 * 1.0 * 86400), rel=0.01)
    assert interval.sentence == ("a checkpoint every 6.92 min: a save holds the run up 1 s, 1 interruption a day assumed")


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ({"save_s": 0.001, "held_up_s": 1e-6}, 10),  # never more often
        ({"save_s": 1, "held_up_s": 0.5, "interruptions_per_day": 0.001}, 3600),  # never less often
        ({"save_s": 1, "held_up_s": 0.5, "interruptions_per_day": 0}, 3600),
        ({"save_s": 1, "held_up_s": 5, "interruptions_per_day": 1000}, 250),  # 2 %
        ({"save_s": 9, "held_up_s": 1, "cpu_s": 9, "interruptions_per_day": 1000}, 500),  # 2 %, with the processor's time
        ({"save_s": 300, "held_up_s": 200}, 10_000),  # 2 %, though it is more than an hour
        ({"save_s": 600, "held_up_s": 0.1}, 1200),  # the disk is busy half of the time at most
    ],
)
def test_bounds(times, seconds):
    assert choose_interval(**times).seconds == pytest.approx(seconds)


def test_more_interruptions_mean_more_saves():
    results = [choose_interval(save_s=1, held_up_s=0.5, interruptions_per_day=n).seconds for n in (1, 2, 10, 100)]
    assert results == sorted(results, reverse=True)
    assert len(set(results)) == 4


@pytest.mark.parametrize("bad", [{"save_s": -1}, {"held_up_s": math.nan}, {"save_s": math.inf}, {"interruptions_per_day": -2}])
def test_times_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        choose_interval(**{"save_s": 1, "held_up_s": 1, **bad})
