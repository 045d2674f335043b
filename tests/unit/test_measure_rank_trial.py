"""Steps that ranks take together: how many there are is decided once, by rank 0."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpuwise.measure import rank_trial  # noqa: E402
from gpuwise.measure.rank_trial import timed_together  # noqa: E402
from gpuwise.measure.trial import FEWEST_STEPS, LEAST_S, MOST_S, WARM_STEPS  # noqa: E402
from gpuwise.runtime.ranks.ranks import ALONE, Ranks  # noqa: E402

CPU = torch.device("cpu")


class Follower(Ranks):
    """Rank 1, which has got five rounds of one step from rank 0."""

    def of_first(self, name, value):
        return [1, 5]


def test_a_rank_takes_as_many_steps_as_rank_0_says():
    taken = []
    timing = timed_together([lambda: taken.append(1)], CPU, Follower(1, 2), steps=100)
    assert (timing.rounds, len(taken)) == (5, WARM_STEPS + 5)


def test_rank_0_takes_as_many_steps_as_are_named():
    taken = []
    assert timed_together([lambda: taken.append(0), lambda: taken.append(1)], CPU, ALONE, steps=4).rounds == 4
    assert taken[:4] == [0, 1, 0, 0]  # batches take turns, after the warm-up anew


@pytest.mark.parametrize(
    ("step_s", "steps", "rounds"),
    [
        (0.001, None, LEAST_S / 0.001),
        (1.0, None, FEWEST_STEPS),
        (10.0, None, MOST_S / 10),
        (100.0, None, 1),
        (100.0, 3, 3),
        (0.0, None, LEAST_S / 1e-6),
    ],
)
def test_steps_take_long_enough_and_not_too_long(step_s: float, steps: int | None, rounds: float):
    assert rank_trial._rounds(step_s, steps, is_host=True) == (1, pytest.approx(rounds, abs=1))


def test_an_accelerator_is_not_waited_for_after_each_short_step():
    issued, rounds = rank_trial._rounds(0.001, None, is_host=False)
    assert issued == 50
    assert issued * rounds * 0.001 == pytest.approx(LEAST_S, rel=0.05)
