"""A run that is killed while it is copied, and goes on on another machine from the copies: every loss has the same bits.

The long form: python -m pytest -m slow tests/fault/test_copied_runs.py -q -s
"""

from __future__ import annotations

import itertools
import random
import signal

import pytest
from tests.fault import killed_runs as runs
from tests.fault.copied_runs import killed_at_calls

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signals of POSIX"),
    pytest.mark.timeout(3000),
]

STEPS = 5
CALLS = 230  # of the copies of so many steps, about


@pytest.mark.parametrize("run", ["rows", "monitored"])
def test_killed_at_a_system_call_of_a_copy(run, tmp_path):
    expected = runs.reference(run, tmp_path / "reference", STEPS)
    history = killed_at_calls(run, tmp_path, expected, sorted(random.Random(run).sample(range(1, CALLS), 3)))
    assert history.kills >= 3


@pytest.mark.slow
@pytest.mark.parametrize("run", ["rows", "monitored"])
def test_killed_at_every_system_call_of_all_copies(run, tmp_path):
    expected = runs.reference(run, tmp_path / "reference", STEPS)
    history = killed_at_calls(run, tmp_path, expected, itertools.count(1))
    print(
        f"\n{run}, killed before each system call of its copies: {history.kills} kills, {len(history.lives)} processes, "
        f"{history.compared} steps compared, all the same."
    )
    assert history.kills > CALLS
