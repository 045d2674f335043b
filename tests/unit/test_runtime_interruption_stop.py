"""Stop: the one object the loop asks."""

import math
import signal

import pytest
from tests.unit.interruption_samples import Clocks, Source

from gpuwise.errors import InputError
from gpuwise.runtime.interruption.deadline import MARGIN_S
from gpuwise.runtime.interruption.notices import ADVICE, INTERRUPTION, Notice
from gpuwise.runtime.interruption.stop import LOOK_S, Stop


@pytest.fixture(autouse=True)
def _signals_arrive():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def stops_at(stop, clocks, *, step_s, save_s, upto_s=100_000):
    """Runs a loop that takes `step_s` a step; when it is asked to end, why, and how often it had to ask."""
    requested = 0
    while clocks.now_s < upto_s:
        clocks.to(clocks.now_s + step_s)
        if stop.pending or clocks.now_s >= stop.look_s:
            requested += 1
            if request := stop.check(clocks.now_s, step_s, save_s):
                return clocks.now_s, request, requested
    raise AssertionError("it never stopped")


def test_nothing_happens_and_nothing_is_asked():
    with Clocks().stop() as stop:
        assert not stop.pending
        assert stop.look_s == math.inf
        assert stop.take_notes() == []


def test_a_signal():
    clocks = Clocks()
    with clocks.stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.pending
        request = stop.check(clocks.now_s, 0.1, 1.0)
    assert (request.kind, request.text, request.save, request.note) == ("signal", "SIGTERM", True, None)


def test_a_time_limit_leaves_time_for_the_save_and_is_seldom_looked_at():
    clocks = Clocks()
    stop = clocks.stop(time_limit_s=3600)
    ended_s, request, requested = stops_at(stop, clocks, step_s=0.5, save_s=30.0)
    assert 100 + 3600 - 30 - 60 < ended_s < 100 + 3600 - 30 - MARGIN_S
    assert requested < 3600 / LOOK_S + 60
    assert (request.kind, request.text) == ("time limit", "its time limit of 1 h is over")


def test_time_is_left_for_a_copy_and_a_save_that_fits_is_made_without():
    clocks = Clocks()
    stop = clocks.stop(environment={"SLURM_JOB_END_TIME": str(int(clocks.unix_s) + 1000)})
    assert stop.check(clocks.now_s, 1.0, 10.0, copy_s=500.0) is None
    clocks.to(100.0 + 1000.0 - 1.5 * (1.0 + 10.0 + 500.0) - MARGIN_S + 1.0)
    request = stop.check(clocks.now_s, 1.0, 10.0, copy_s=500.0)
    assert (request.kind, request.save) == ("time limit", True)
    assert stop.left_s(clocks.now_s) == pytest.approx(1.5 * 511 + MARGIN_S - 1.0)
    clocks.to(clocks.now_s + 700.0)  # too late for the copy, not for the save
    assert stop.check(clocks.now_s, 1.0, 10.0, copy_s=500.0).save
    clocks.to(2000.0)
    assert stop.left_s(clocks.now_s) is None  # nobody knows


def test_a_step_longer_than_the_limit_still_saves():
    clocks = Clocks()
    stop = clocks.stop(time_limit_s=5)
    clocks.to(200.0)
    request = stop.check(clocks.now_s, 100.0, 20.0)
    assert request.kind == "time limit"
    assert request.save


def test_a_limit_counts_what_came_before():
    clocks = Clocks()
    stop = clocks.stop(time_limit_s=3600, used_s=3000)
    clocks.to(100.0 + 600 - MARGIN_S - 20)
    assert stop.check(clocks.now_s, 1.0, 1.0) is None
    clocks.to(100.0 + 600 - MARGIN_S)
    assert stop.check(clocks.now_s, 1.0, 1.0).kind == "time limit"


def test_slurm():
    clocks = Clocks()
    stop = clocks.stop(environment={"SLURM_JOB_END_TIME": str(1_000_000 + 7200)})
    assert stop.take_notes() == ["the Slurm job ends in 2 h; the run saves and ends before."]
    ended_s, request, _ = stops_at(stop, clocks, step_s=1.0, save_s=60.0)
    assert ended_s > 7000
    assert request.text == "the Slurm job's time is over"


def test_a_jump_of_the_wall_clock_moves_no_end():
    clocks = Clocks()
    stop = clocks.stop(environment={"SLURM_JOB_END_TIME": str(1_000_000 + 7200)})
    clocks.unix_s += 86_400
    assert stop.check(clocks.now_s, 1.0, 1.0) is None


def noticed(clocks, *answers):
    stop = clocks.stop(source=Source(*answers))
    stop._watcher.look()
    return stop


def test_a_notice_with_a_deadline_is_used_up():
    clocks = Clocks()
    stop = noticed(clocks, Notice("aws", INTERRUPTION, 1_000_120.0, "AWS will terminate it."))
    assert stop.pending
    ended_s, request, _ = stops_at(stop, clocks, step_s=0.5, save_s=3.0)
    assert ended_s > 100 + 120 - 15
    assert stop.take_notes() == ["AWS will terminate it."]
    assert (request.kind, request.text, request.save) == ("notice", "AWS will terminate it.", True)


def test_a_notice_without_a_deadline_means_now():
    clocks = Clocks()
    stop = noticed(clocks, Notice("azure", INTERRUPTION, None, "at any moment"))
    assert stop.check(clocks.now_s, 0.5, 3.0).kind == "notice"


def test_advice_is_told_and_not_acted_on():
    clocks = Clocks()
    stop = noticed(clocks, Notice("aws", ADVICE, None, "likely"))
    assert stop.pending
    assert stop.check(clocks.now_s, 0.5, 3.0) is None
    assert stop.take_notes() == ["likely"]
    assert not stop.pending


def test_a_notice_that_is_withdrawn():
    clocks = Clocks()
    stop = noticed(clocks, Notice("azure", INTERRUPTION, 1_000_900.0, "in 15 minutes"), None)
    assert stop.check(clocks.now_s, 0.5, 3.0) is None
    stop._watcher.look()
    assert stop.check(clocks.now_s, 0.5, 3.0) is None
    assert stop.look_s == math.inf
    assert stop.take_notes() == ["in 15 minutes", "the interruption notice was withdrawn."]


def test_a_save_that_cannot_end_is_not_begun_and_said_so():
    clocks = Clocks()
    stop = noticed(clocks, Notice("gcp", INTERRUPTION, 1_000_025.0, "preempted"))
    request = stop.check(clocks.now_s, 0.5, 40.0)
    assert not request.save
    assert request.note.text == (
        "the last save was not begun: it takes 40 s and 25 s were left; the checkpoint before it stands."
    )


def test_a_signal_before_a_known_end_leaves_out_a_save_that_cannot_end():
    clocks = Clocks()
    with clocks.stop(environment={"SLURM_JOB_END_TIME": str(1_000_000 + 60)}) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert not stop.check(clocks.now_s, 0.5, 90.0).save


def test_a_source_that_cannot_be_read_is_told_once(monkeypatch):
    monkeypatch.setattr("gpuwise.runtime.interruption.watcher.FAILING_S", 0.0)
    clocks = Clocks()
    stop = noticed(clocks, OSError("no route to host"))
    assert stop.pending
    for _ in range(3):
        stop._watcher.look()
        assert stop.check(clocks.now_s, 0.1, 1.0) is None
    (note,) = stop.take_notes()
    assert "no route to host" in note


@pytest.mark.parametrize("limit_s", [0, -1, math.nan, math.inf])
def test_a_time_limit_that_makes_no_sense(limit_s):
    with pytest.raises(InputError, match="time limit"):
        Stop(time_limit_s=limit_s)
