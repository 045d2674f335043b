"""How often to save."""

from __future__ import annotations

import math

import pytest

from gpuwise.errors import InputError
from gpuwise.runtime.checkpoint import SaveTimer, choose_interval, first_interval


def test_daly_decides_between_the_bounds():
    interval = choose_interval(save_s=20, held_up_s=1.0, step_s=0.5, interruptions_per_day=1)
    assert interval.seconds == pytest.approx(math.sqrt(2 * 1.0 * 86400), rel=0.01)
    assert interval.steps == round(interval.seconds / 0.5)
    assert interval.sentence == (
        "a checkpoint every 6.92 min: a save holds the run up 1 s, 1 interruption a day assumed")  # fmt: skip


@pytest.mark.parametrize(("times", "seconds"), [
    ({"save_s": 0.001, "held_up_s": 1e-6}, 10),  # never more often
    ({"save_s": 1, "held_up_s": 0.5, "interruptions_per_day": 0.001}, 3600),  # never less often
    ({"save_s": 1, "held_up_s": 0.5, "interruptions_per_day": 0}, 3600),
    ({"save_s": 1, "held_up_s": 5, "interruptions_per_day": 1000}, 250),  # 2 %
    ({"save_s": 9, "held_up_s": 1, "cpu_s": 9, "interruptions_per_day": 1000}, 500),  # 2 %, with the processor's time
    ({"save_s": 300, "held_up_s": 200}, 10_000),  # 2 %, though it is more than an hour
    ({"save_s": 600, "held_up_s": 0.1}, 1200),  # the disk is busy half of the time at most
])  # fmt: skip
def test_bounds(times, seconds):
    assert choose_interval(step_s=1, **times).seconds == pytest.approx(seconds)


def test_more_interruptions_mean_more_saves():
    found = [choose_interval(save_s=1, held_up_s=0.5, step_s=1, interruptions_per_day=n).seconds for n in (1, 2, 10, 100)]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4


@pytest.mark.parametrize("bad", [{"save_s": -1}, {"held_up_s": math.nan}, {"step_s": math.inf}, {"interruptions_per_day": -2}])
def test_times_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        choose_interval(**{"save_s": 1, "held_up_s": 1, "step_s": 1, **bad})


def test_the_first_save_is_early():
    assert first_interval(step_s=0.1).seconds == 30
    assert first_interval(step_s=0.1).steps == 300
    assert "the first checkpoint after 30 s" in first_interval(step_s=0.1).sentence


def test_the_timer_follows_what_saves_take():
    timer = SaveTimer(now_s=1000.0, step_s=0.1)
    assert not timer.due(1029.9)
    assert timer.due(1030)
    timer.begun(1030)
    assert not timer.due(1059)
    interval = timer.ended(save_s=2, held_up_s=1, cpu_s=0, step_s=0.1)
    assert interval is timer.interval
    assert not timer.due(1030 + interval.seconds - 1)
    assert timer.due(1030 + interval.seconds)
    with_cpu = timer.ended(save_s=2, held_up_s=1, cpu_s=3, step_s=0.1)
    assert with_cpu.seconds > interval.seconds
    assert "takes 3 s of processor time" in with_cpu.sentence


def test_a_device_of_its_own_does_not_mind_the_processor():
    timer = SaveTimer(now_s=0, on_cpu=False)
    assert timer.ended(save_s=2, held_up_s=1, cpu_s=3, step_s=0.1) == choose_interval(save_s=2, held_up_s=1, step_s=0.1)
