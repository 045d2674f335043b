"""The log: JSON lines that are whole, never overwritten, never where nothing was trained."""

import json
import math

import pytest

from gpuwise.errors import InputError
from gpuwise.report.run_records import lasting
from gpuwise.runs.log_records import read_log
from gpuwise.runtime.show.log import LEAST_APART_S, MOST_APART_S, WRITE_EVERY_S, RunLog, StepRecord


def records(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def step(log, now_s, number, *, loss=0.5, step_time_s=0.0, data_s=0.0, **more):
    log.step(StepRecord(now_s, number, number * 8, number / 10, loss, 1e-3, step_time_s, data_s, **more))


def steps_of(path):
    return lasting(read_log(path), "step")


def losses(path):
    return [(record["step"], record["loss"]) for record in steps_of(path)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def test_lines_are_there_as_soon_as_written(path):
    with RunLog(path) as log:
        assert not path.exists()
        log.open({"job": "toy"})
        step(log, 0.0, 1)
        log.write("evaluation", {"step": 1, "metrics": {"accuracy": 0.5}})
        assert [r["record"] for r in records(path)] == ["header", "step", "evaluation"]


def test_steps_wait_a_quarter_of_a_second_and_no_longer(path):
    with RunLog(path) as log:
        log.open({})
        for number, now_s in enumerate((0.0, 0.1, 0.2), start=1):
            step(log, now_s, number)
        assert [number for number, _ in losses(path)] == [1]
        step(log, WRITE_EVERY_S, 4)
        assert [number for number, _ in losses(path)] == [1, 2, 3, 4]
        step(log, 0.3, 5)
    assert [number for number, _ in losses(path)] == [1, 2, 3, 4, 5]


def test_a_step_after_which_the_next_would_be_late_is_written_at_once(path):
    with RunLog(path) as log:
        log.open({})
        step(log, 0.0, 1, step_time_s=0.2)
        step(log, 0.2, 2, step_time_s=0.2)
        assert [number for number, _ in losses(path)] == [1, 2]


def test_any_other_record_comes_after_the_steps_before_it(path):
    with RunLog(path) as log:
        log.open({})
        for number in (1, 2, 3):
            step(log, 0.05 * number, number)
        log.write("event", {"text": "a spike"})
        assert [r.get("step") or r["record"] for r in records(path)] == ["header", 1, 2, 3, "event"]


def test_what_a_step_says(path):
    with RunLog(path) as log:
        log.open({})
        step(log, 1.0, 5, loss=2.5, step_time_s=0.03, data_s=0.01, gradient_norm=1.5, memory_bytes=2**30)
    (answer,) = steps_of(path)
    del answer["time"]
    assert answer == {
        "record": "step",
        "step": 5,
        "samples": 40,
        "epoch": 0.5,
        "loss": 2.5,
        "learning_rate": 1e-3,
        "step_time_s": 0.03,
        "data_s": 0.01,
        "samples_per_s": 200.0,
        "steps": 1,
        "grad_norm": 1.5,
        "memory_bytes": 2**30,
    }


def test_quick_steps_share_a_record(path):
    with RunLog(path) as log:
        log.open({})
        for number in range(1, 10_001):  # ten seconds
            step(log, number * 1e-3, number, loss=float(number), step_time_s=1e-3)
    answer = steps_of(path)
    assert len(answer) <= 1.1 * 10 / LEAST_APART_S
    assert sum(record["steps"] for record in answer) == 10_000
    assert answer[-1]["step"] == 10_000
    assert all(r["loss"] == pytest.approx(r["step"] - (r["steps"] - 1) / 2) for r in answer)
    assert answer[5]["samples_per_s"] == pytest.approx(8000)


def test_a_long_run_writes_less_often(path):
    with RunLog(path) as log:
        log.open({})
        for number in range(1, 201):
            step(log, number * 600.0, number)  # slow steps keep their records
        for number in range(1, 1001):
            step(log, 120_000 + number * 0.01, 200 + number)
    answer = steps_of(path)
    assert all(record["steps"] == 1 for record in answer[:200])
    assert len(answer) - 200 <= 10 / MOST_APART_S + 2


def test_losses_that_are_no_numbers_are_counted_and_spoil_no_mean(path):
    with RunLog(path) as log:
        log.open({})
        for number, loss in enumerate((1.0, math.nan, 3.0, math.inf), start=1):
            step(log, number * 1e-3, number, loss=loss)
        log.flush()
        step(log, 1.0, 5, loss=math.nan)
    first, second, third = records(path)[1:]
    assert first["loss"] == 1.0
    assert (second["loss"], second["not_finite"], second["steps"]) == (3.0, 2, 3)
    assert (third["loss"], third["not_finite"]) == (None, 1)


def test_a_resumed_run_goes_on_and_repeated_steps_count_once(path):
    with RunLog(path) as log:
        log.open({})
        for number in range(1, 8):
            step(log, float(number), number, loss=1.0)
    with RunLog(path) as log:
        log.open({})
        log.write("resumed", {"step": 4})
        for number in range(5, 10):
            step(log, float(number), number, loss=2.0)
    assert losses(path) == [(n, 1.0) for n in (1, 2, 3, 4)] + [(n, 2.0) for n in (5, 6, 7, 8, 9)]
    assert sum(record["record"] == "step" for record in read_log(path)) == 12


def test_a_mean_over_the_step_that_is_resumed_from_stands_for_those_before(path):
    with RunLog(path) as log:
        log.open({})
        step(log, 0.0, 1)
        for number in (2, 3, 4, 5):
            step(log, 0.1 + number * 1e-3, number, loss=7.0)
    with RunLog(path) as log:
        log.open({})
        log.write("resumed", {"step": 3})
    assert [(r["step"], r["steps"], r["loss"]) for r in steps_of(path)] == [(1, 1, 0.5), (3, 2, 7.0)]


def test_a_new_run_in_the_same_file_starts_its_curve_anew(path):
    for loss in (1.0, 2.0):
        with RunLog(path) as log:
            log.open({})
            step(log, 0.0, 1, loss=loss)
    assert losses(path) == [(1, 2.0)]


def test_numbers_that_json_lacks_become_null(path):
    with RunLog(path) as log:
        log.open({"a": [math.inf, {"b": math.nan}], "c": 1.5})
    assert records(path)[0]["a"] == [None, {"b": None}]
    assert records(path)[0]["c"] == 1.5


@pytest.mark.parametrize(
    "torn", [b'{"record": "st', '{"record": "event", "text": "µ'.encode()[:-1], b"\xff\xfe", b"[" * 99_999]
)
def test_a_second_run_is_appended_even_after_a_torn_line(path, torn):
    for job in ("first", "second"):
        with RunLog(path) as log:
            log.open({"job": job})
        with path.open("ab") as file:
            file.write(torn)
    assert [r["job"] for r in read_log(path)] == ["first", "second"]


def test_a_separator_of_lines_within_a_text_is_no_end_of_a_record(path):
    with RunLog(path) as log:
        log.open({"job": "a\u2028b\x85c"})
    assert [r["job"] for r in read_log(path)] == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    "content", [b"import torch\n", b"\xff\xfe\x00", b"[1]\n", b'{"a": 1}\n', b"{" * 100_000, b"[" * 100_000]
)
def test_a_file_that_is_no_log_is_left_alone(tmp_path, content):
    path = tmp_path / "train.py"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no log"):
        RunLog(path)
    assert path.read_bytes() == content


def test_paths_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        RunLog(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        RunLog(tmp_path / "no" / "log.jsonl")


def test_without_a_path_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunLog(None) as log:
        log.open({})
        step(log, 0.0, 1)
        log.write("event", {})
    assert list(tmp_path.iterdir()) == []


class Full:
    """A file on a disk that takes the first `room` bytes."""

    def __init__(self, room=0):
        self.room, self.taken = room, b""

    def write(self, line):
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = line[: self.room]
        self.taken, self.room = self.taken + bytes(taken), self.room - len(taken)
        return len(taken)

    def close(self):
        pass


@pytest.mark.parametrize("room", [0, 10])
def test_a_full_disk_ends_the_log_not_the_run(path, room):
    with RunLog(path) as log:
        log._file = Full(room)
        step(log, 0.0, 1)
        step(log, 1.0, 2)
        log.write("event", {})
    assert log.problem is not None
    assert "No space left" in log.problem


def test_a_write_that_takes_a_part_is_completed(path):
    class Slow(Full):
        def write(self, line):
            self.room = 7
            return super().write(line)

    with RunLog(path) as log:
        log._file = slow = Slow()
        log.write("event", {"text": "a sentence of some length"})
    assert json.loads(slow.taken)["text"] == "a sentence of some length"
    assert log.problem is None


@pytest.mark.parametrize(("error", "record"), [(InputError("no"), "error"), (KeyboardInterrupt(), "interrupted")])
def test_how_a_run_failed_is_its_last_record(path, error, record):
    def failing():
        with RunLog(path) as log:
            log.open({})
            step(log, 0.0, 1)
            step(log, 0.1, 2)
            raise error

    with pytest.raises(type(error)):
        failing()
    assert [r["record"] for r in records(path)] == ["header", "step", "step", record]
