"""Losses that are no numbers, and losses that jump."""

import math

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.runtime.health.losses import LEAST, MOST_IN_A_ROW, WINDOW, LossWatch

NAN, INF = math.nan, math.inf


def events(losses, **fields):
    watch = LossWatch(**fields)
    results = [watch.see(step, float(loss)) for step, loss in enumerate(losses, 1)]
    return watch, [event for event in results if event]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_the_first_that_is_no_number_ends_the_run(bad):
    watch, (event,) = events([2.5, 2.25, bad])
    assert (event.kind, event.step, event.ends, event.first) == ("nonfinite", 3, True, True)
    assert event.text == f"the loss is {bad} at step 3; the last finite one was 2.25 at step 2."
    assert watch.nonfinite == 1


def test_in_the_very_first_step():
    _, (event,) = events([NAN])
    assert event.text == "the loss is nan at step 1."


def test_skipped_until_too_many_come_in_a_row():
    watch, result = events([1.0, *[NAN] * (MOST_IN_A_ROW - 1), 1.0, *[NAN] * MOST_IN_A_ROW], on_nonfinite="skip")
    assert [event.ends for event in result] == [False] * (2 * MOST_IN_A_ROW - 2) + [True]
    assert sum(event.first for event in result) == 2
    assert watch.nonfinite == 2 * MOST_IN_A_ROW - 1
    assert result[-1].text == "the loss is nan at step 41, the 20th in a row that is not finite."


@pytest.mark.parametrize("after", range(1, 300, 7))
def test_no_length_of_the_run_hides_one(after):
    _, result = events([*np.linspace(3, 2, after), INF])
    assert [event.kind for event in result] == ["nonfinite"]


def noise(steps, seed=0, level=2.0, spread=0.1):
    return np.random.default_rng(seed).normal(level, spread, steps)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_spike(seed):
    watch, result = events(noise(5000, seed))
    assert not result
    assert watch.spikes == 0


def test_a_falling_loss_is_no_spike():
    assert not events(10 * np.exp(-np.arange(3000) / 200) + noise(3000, level=1.0, spread=0.05))[1]


@pytest.mark.parametrize("at", [LEAST + 1, 64, 65, 100, 1000])
def test_a_spike(at):
    losses = noise(at + 50)
    losses[at] = 8.0
    watch, (event,) = events(losses)
    assert (event.kind, event.step, event.ends) == ("spike", at + 1, False)
    assert event.text.startswith(f"the loss rose to 8 at step {at + 1}; the median of the {min(at, WINDOW)} before is ")
    assert watch.spikes == 1


def test_one_that_stays_high_is_told_once():
    _, result = events([*noise(300), *noise(3000, level=9.0)])
    assert len(result) == 1


def test_long_tails_are_told_seldom():
    losses = noise(2000)
    losses[50::30] = 9.0
    _, result = events(losses)
    assert len(result) == 1


def test_a_later_spike_is_told_again():
    losses = noise(1000)
    losses[[300, 301, 700]] = 9.0
    assert [event.step for event in events(losses)[1]] == [301, 701]


def test_a_constant_loss_may_move_a_little():
    assert not events([1.0] * 200 + [1.1])[1]
    assert len(events([1.0] * 200 + [1.3])[1]) == 1


def test_too_few_to_judge():
    assert not events([1.0] * (LEAST - 1) + [100.0])[1]


def test_losses_around_zero_and_below():
    losses = noise(500, level=-3.0)
    losses[400] = 5.0
    assert len(events(losses)[1]) == 1


@pytest.mark.parametrize("at", [1, 19, 64, 100, 301, 350])
def test_a_watch_that_is_loaded_says_what_the_other_would_have_said(at):
    losses = noise(500).tolist()
    losses[299:302], losses[400] = [NAN, NAN, 9.0], 9.0
    watch, other = LossWatch(on_nonfinite="skip"), LossWatch(on_nonfinite="skip")
    for step, loss in enumerate(losses[:at], 1):
        watch.see(step, loss)
    other.load(watch.state())
    for step, loss in enumerate(losses[at:], at + 1):
        assert str(other.see(step, loss)) == str(watch.see(step, loss))  # as texts: a NaN is no other's equal
    assert other.state() == watch.state()
    assert (watch.spikes, watch.nonfinite) == (1, 2)


def test_another_way():
    with pytest.raises(InputError, match="not finite 'ignore'"):
        LossWatch(on_nonfinite="ignore")
