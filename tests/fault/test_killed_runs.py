"""A run that is killed, at whatever moment, and continued is the run that was never killed: every later loss has the same bits.

The long form: python -m pytest -m slow tests/fault -q -s
"""

from __future__ import annotations

import itertools
import random
import signal

import pytest
from tests.fault import killed_runs as runs
from tests.fault.killed_runs import RUNS, LostError, Plan, Reference, ended_everywhere, killed_at_random, live_once

from gpuwise.errors import FileFormatError

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signals of POSIX"),
    pytest.mark.timeout(3000),
]

STEPS = 12  # of a run that is ended at one place
LONG_STEPS = 60  # of one that is killed again and again
LONG_KILLS = 40  # of each kind of run: 200 in all
CALLS = 260  # of the saves of STEPS steps, about


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Uninterrupted runs, each made once."""
    made: dict[object, Reference] = {}

    def of(run: str, steps: int = STEPS, fault: runs.Fault | None = None) -> Reference:
        key = run, steps, fault
        if key not in made:
            made[key] = runs.reference(run, tmp_path_factory.mktemp("reference") / "run", steps, fault)
        return made[key]

    return of


def told(what: str, history: runs.History) -> None:
    """The long form's figures, for those who look (-s)."""
    print(
        f"\n{what}: {history.kills} kills, {history.mid_save} left half a save, {len(history.lives)} processes, "
        f"{history.compared} steps compared, all the same."
    )


@pytest.mark.parametrize("run", ["rows", "loader workers"])
def test_killed_at_random_moments(run, references, tmp_path):
    history = killed_at_random(
        run, tmp_path, references(run, 24, runs.waits_for_the_disk), kills=3, seed=1, fault=runs.waits_for_the_disk
    )
    assert history.kills == 3


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_killed_at_200_random_moments(run, references, tmp_path):
    expected = references(run, LONG_STEPS, runs.waits_for_the_disk)
    history = killed_at_random(run, tmp_path, expected, kills=LONG_KILLS, seed=2, fault=runs.waits_for_the_disk)
    told(f"{run}, random moments", history)
    assert history.mid_save


ENDS = {
    "killed": runs.killed_at_call,
    "power cut, names reach the disk first": runs.power_cut_at_call,
    "power cut, names are lost": runs.power_cut_and_names_lost,
}


@pytest.mark.parametrize("end", ENDS)
def test_ended_at_a_system_call_of_a_save(end, references, tmp_path):
    places = sorted(random.Random(end).sample(range(1, CALLS), 2))
    history = ended_everywhere("rows", tmp_path, references("rows"), ENDS[end], places)
    assert history.kills


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("run", ["rows", "monitored"])
def test_ended_at_every_system_call_of_all_saves(run, end, references, tmp_path):
    history = ended_everywhere(run, tmp_path, references(run, 6), ENDS[end], itertools.count(1))
    told(f"{run}, {end} before each system call of its saves", history)
    assert history.kills > 150


def test_killed_at_an_operation_on_its_files(references, tmp_path):
    places = sorted(random.Random(0).sample(range(1, 60), 3))
    history = ended_everywhere("rows", tmp_path, references("rows"), runs.killed_at_file, places)
    assert history.kills


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True], ids=["a new run", "a run that continues"])
def test_killed_at_every_operation_on_its_files(begun, references, tmp_path):
    """Lock, run.json, log and report as well."""
    before = None
    if begun:
        before = tmp_path / "begun"
        assert not live_once(Plan("rows", before, 6, waits=True), references("rows", 6), runs.History(), kill=(3, 0.0))
    history = ended_everywhere("rows", tmp_path, references("rows", 6), runs.killed_at_file, itertools.count(1), begun=before)
    told(f"rows, {'continued' if begun else 'new'}, killed before each operation on its files", history)
    assert history.kills > 100


# The check itself: each of these has a fault planted, and must be caught.


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (runs.forgets_random_numbers, r"step \d+ after a resume from"),
        (runs.forgets_the_position, r"step \d+ after a resume from"),
        (runs.forgets_the_optimizer, r"step \d+ after a resume from"),
    ],
)
def test_a_resume_that_forgets_something_is_caught(plant, said, references, tmp_path):
    expected, history = references("rows"), runs.History()
    plan = Plan("rows", tmp_path, STEPS, waits=True)
    assert not live_once(plan, expected, history, kill=(4, 0.0))
    with pytest.raises(LostError, match=said):
        live_once(Plan("rows", tmp_path, STEPS, plant), expected, history)


@pytest.mark.parametrize(
    ("plant", "said"),
    [(runs.writes_in_place, "damaged"), (runs.removes_first, "is gone|no checkpoint"), (runs.syncs_nothing, "damaged")],
)
def test_a_save_in_the_wrong_order_is_caught(plant, said, references, tmp_path):
    with pytest.raises((LostError, FileFormatError), match=said):
        ended_everywhere("rows", tmp_path, references("rows"), plant, range(60, 100, 3))


def test_weights_that_differ_in_the_end_are_caught(references, tmp_path):
    other = runs.reference("rows", tmp_path / "run", STEPS + 1)
    other.told.popitem()
    with pytest.raises(LostError, match="is another in the end"):
        runs.check_ended(tmp_path / "run", references("rows"))


def test_what_is_left_behind_is_caught(references, tmp_path):
    runs.reference("rows", tmp_path, STEPS)
    runs.check_ended(tmp_path, references("rows"))
    (tmp_path / "checkpoints" / ".step-00000003.1.tmp").mkdir()
    with pytest.raises(LostError, match="left behind"):
        runs.check_ended(tmp_path, references("rows"))
