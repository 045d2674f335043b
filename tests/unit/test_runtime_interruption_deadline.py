"""Ends that are known ahead: when a run must stop, and whether a save still fits."""

import math

import pytest

from gpuwise.runtime.interruption.deadline import MARGIN_S, SPREAD, Deadline, notice_end, slurm_end, time_limit
from gpuwise.runtime.interruption.notices import ADVICE, INTERRUPTION, Notice


def test_trains_on_until_shortly_before():
    end = Deadline(120.0, "notice", "AWS")
    stops_s = next(now for now in range(200) if end.must_stop(now, step_s=1.0, save_s=3.0))
    assert stops_s == 120 - SPREAD * 4 - MARGIN_S + 1 == 110
    assert end.save_fits(stops_s, 3.0)


@pytest.mark.parametrize(("left_s", "save_s", "fits"), [(9, 3, True), (3, 3, True), (2, 3, False), (0, 3, True), (-5, 3, True)])
def test_a_save_that_cannot_end_is_not_begun(left_s, save_s, fits):
    assert Deadline(100.0, "notice", "").save_fits(100.0 - left_s, save_s) is fits


def test_the_users_own_limit_kills_nothing_so_every_save_fits():
    end = time_limit(60.0, since_s=5.0)
    assert end.at_s == 65.0
    assert end.margin_s == 3.0
    assert end.save_fits(64.0, 1000.0)
    assert end.must_stop(64.0, 0.1, 0.1)


@pytest.mark.parametrize("said", ["", "soon", "-5", "1e9", "999", "1000", "٣٠٠٠", "9" * 40])
def test_a_slurm_end_that_is_over_or_no_number_is_none(said):
    assert slurm_end({"SLURM_JOB_END_TIME": said}, now_s=7.0, now_unix_s=1000.0) is None
    assert slurm_end({}, now_s=7.0, now_unix_s=1000.0) is None


def test_a_slurm_end_is_kept_on_the_runs_own_clock():
    end = slurm_end({"SLURM_JOB_END_TIME": "1600"}, now_s=7.0, now_unix_s=1000.0)
    assert end is not None
    assert (end.at_s, end.kind, end.hard) == (607.0, "time limit", True)


def test_what_a_notice_means():
    messages = {"now_s": 7.0, "now_unix_s": 1000.0}
    assert notice_end(Notice("aws", ADVICE, None, "maybe"), **messages) is None
    timed = notice_end(Notice("aws", INTERRUPTION, 1120.0, "soon"), **messages)
    assert (timed.at_s, timed.kind, timed.text) == (127.0, "notice", "soon")
    at_once = notice_end(Notice("azure", INTERRUPTION, None, "now"), **messages)
    assert at_once.at_s == -math.inf
    assert at_once.must_stop(7.0, 0.0, 0.0)
    assert at_once.save_fits(7.0, 1e6)
