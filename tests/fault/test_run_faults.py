"""What can go wrong around a run: damaged checkpoints, disks, clocks, signals, notices, workers, other runs. None of it costs a
step that was saved, and of what could not be done the user is told."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fault import killed_runs as runs
from tests.fault.checkpoint_faults import Quick, emptied, flipped, truncated
from tests.fault.killed_runs import RUNS, TOLD, Life, Plan, check_ended, live_once, newest, wait_for_the_save
from tests.fault.test_notices import ACTION, Played

from gpuwise.errors import FileFormatError, GpuwiseError, InputError, JobError
from gpuwise.runs import lock
from gpuwise.runtime import Training, TrainSettings
from gpuwise.runtime.checkpoint import CheckpointStore, store
from gpuwise.runtime.checkpoint.manifest import VERSION, _checksum, dump_json
from gpuwise.runtime.interruption.providers import Aws
from gpuwise.runtime.run import folder as run_folder
from gpuwise.runtime.run import parts, summary, training
from gpuwise.runtime.show import log as log_module
from gpuwise.runtime.show import read_log

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signals of POSIX"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

STEPS, STOP = 12, 6
FILES = ("model", "optimizer", "average", "random")


@pytest.fixture(autouse=True)
def _saves_all_the_time(monkeypatch):
    """It looks around after each step, and does not wait for the disk: a test's machine keeps its power."""
    monkeypatch.setattr(training, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(store, "Files", Quick)


def made(folder: Path | None, run: str = "rows", **settings: Any) -> Training:
    job, strategy, more = RUNS[run]
    given = {"steps": STEPS, "save_every_s": 1e-9, "progress": "silent", "preemption": "none", **more, **settings}
    return Training(job, strategy, TrainSettings(folder=folder, **given))


def trained(folder: Path | None, run: str = "rows", *, until: int | None = None, **settings: Any) -> dict[int, bytes]:
    """What is told of each step; left after step `until`."""
    return told_by(made(folder, run, **settings), until=until)


def told_by(run: Training, *, until: int | None = None) -> dict[int, bytes]:
    results = {}
    for step in run:
        results[step.step] = TOLD.pack(step.step, step.loss, step.learning_rate)
        wait_for_the_save(run)
        if step.step == until:
            break
    return results


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Iterator[dict[int, bytes]]:
    """The run that nothing happens to."""
    return trained(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def begun(tmp_path, whole) -> Path:
    """The folder of a run that was stopped, with the checkpoints of two steps."""
    folder = tmp_path / "run"
    assert trained(folder, until=STOP).items() <= whole.items()
    assert [result.step for result in CheckpointStore(folder / "checkpoints").all()] == [STOP, STOP - 1]
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    """All that a run rests on. Its lock and state.json tell of every start, refused ones included."""
    starts = (folder / "lock", folder / "state.json")
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path not in starts}


def events(folder: Path) -> str:
    return " ".join(record.get("text", "") for record in read_log(folder / "log.jsonl"))


# --- damaged checkpoints


@pytest.mark.parametrize("damage", [Path.unlink, truncated, emptied, flipped])
@pytest.mark.parametrize("name", [*(f"{part}.safetensors" for part in FILES), "state.json", "manifest.json"])
def test_a_damaged_file_takes_the_run_back_to_the_checkpoint_before(name, damage, begun, whole):
    damage(begun / "checkpoints" / f"step-{STOP:08d}" / name)
    run = made(begun)
    later = told_by(run)
    assert list(later) == list(range(STOP, STEPS + 1))
    assert later.items() <= whole.items()
    assert run.result.resumed_from == STOP - 1
    messages = [
        note
        for note in run.result.notes
        if f"step-{STOP:08d} ({name}" in note or f"JSON of {name}" in note or f"of {name} is wrong" in note
    ]
    assert messages, run.result.notes
    assert messages[0] in events(begun)


def test_all_damaged_is_refused_and_nothing_is_deleted(begun):
    for path in (begun / "checkpoints").rglob("model.safetensors"):
        flipped(path)
    before = contents(begun)
    with pytest.raises(FileFormatError, match=r"all checkpoints in .* are damaged"):
        trained(begun)
    assert contents(begun) == before


# --- checkpoints of something else


def test_a_checkpoint_of_a_newer_version_is_refused_and_nothing_is_touched(begun):
    path = begun / "checkpoints" / f"step-{STOP:08d}" / "manifest.json"
    content = json.loads(path.read_bytes())["content"] | {"version": VERSION + 1, "gpuwise": "9.0"}
    path.write_bytes(dump_json({"checksum": _checksum(content), "content": content}))
    before = contents(begun)
    with pytest.raises(FileFormatError, match=r"written by gpuwise 9\.0"):
        trained(begun)
    assert contents(begun) == before


def test_a_checkpoint_of_another_job_is_refused_and_nothing_is_touched(begun, tmp_path):
    """Of the same shape, so that it could be loaded."""
    strategy = RUNS["rows"][1]
    other = runs.job(loss=lambda model, batch: 2 * runs.loss(model, batch), name="another")
    told_by(Training(other, strategy, TrainSettings(steps=9, folder=tmp_path / "other", progress="silent", preemption="none")))
    shutil.copytree(tmp_path / "other" / "checkpoints" / "step-00000009", begun / "checkpoints" / "step-00000009")
    before = contents(begun)
    with pytest.raises(GpuwiseError, match="step-00000009 is of another job"):
        trained(begun)
    assert contents(begun) == before


def test_checkpoints_of_nobody_knows_whom_are_refused_and_nothing_is_touched(begun):
    (begun / "run.json").unlink()
    before = contents(begun)
    with pytest.raises(GpuwiseError, match=r"no run\.json"):
        trained(begun)
    assert contents(begun) == before


def test_another_global_batch_is_refused_and_nothing_is_touched(begun):
    job, strategy, _ = RUNS["rows"]
    before = contents(begun)
    with pytest.raises(InputError, match="8 samples a step, not 12"):
        Training(job, replace(strategy, accumulation=3), TrainSettings(steps=STEPS, folder=begun, progress="silent")).run()
    assert contents(begun) == before


def test_a_log_whose_first_line_is_torn_is_no_reason_to_refuse(begun, whole):
    """As a full disk or a power cut may leave it."""
    os.truncate(begun / "log.jsonl", 30)
    assert trained(begun).items() <= whole.items()
    assert read_log(begun / "log.jsonl")[-1]["record"] == "summary"


# --- disks


class Disk(Quick):
    """Refuses to make or to write anything while `error` is set."""

    error = 0

    def create(self, path: Path) -> int:
        self._refuse()
        return super().create(path)

    def make_folder(self, path: Path) -> None:
        self._refuse()
        super().make_folder(path)

    def write(self, fd: int, data: memoryview) -> None:
        if self.error:
            super().write(fd, data[: len(data) // 2])
        self._refuse()
        super().write(fd, data)

    def _refuse(self) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_refuses_for_a_while_costs_only_the_saves_of_that_while(error, tmp_path, whole, monkeypatch):
    disk = Disk()
    monkeypatch.setattr(store, "Files", lambda: disk)
    run, answer, held = made(tmp_path), {}, []
    for step in run:
        answer[step.step] = TOLD.pack(step.step, step.loss, step.learning_rate)
        wait_for_the_save(run)
        if step.step == 5:
            held = [path.name for path in (tmp_path / "checkpoints").iterdir()]
        disk.error = error if 5 <= step.step < 9 else 0
    assert answer == whole
    assert len(held) == 2
    why = "the disk is full" if error == errno.ENOSPC else os.strerror(error)
    failed = [record for record in read_log(tmp_path / "log.jsonl") if record["record"] == "checkpoint" and "failed" in record]
    assert failed
    assert all(why in record["failed"] and "The older ones are still there." in record["failed"] for record in failed)
    assert why in events(tmp_path)
    assert run.result.checkpoints["last_step"] == STEPS
    assert run.result.checkpoints["problem"] is None
    assert newest(tmp_path) == STEPS
    assert all(path.name.startswith("step-") for path in (tmp_path / "checkpoints").iterdir())


def full(path: Path) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_full_to_the_end_is_told_and_costs_no_result(tmp_path, whole, monkeypatch):
    """Neither checkpoints nor report can be written any more, the run is done all the same."""
    disk = Disk()
    monkeypatch.setattr(store, "Files", lambda: disk)
    run, answer = made(tmp_path), {}

    for step in run:
        answer[step.step] = TOLD.pack(step.step, step.loss, step.learning_rate)
        wait_for_the_save(run)
        if step.step == 5:
            disk.error = errno.ENOSPC
            monkeypatch.setattr(run_folder, "written_whole", full)
            monkeypatch.setattr(summary, "written_whole", full)
    assert answer == whole
    assert run.result.steps == STEPS
    assert "the disk is full" in run.result.checkpoints["problem"]
    assert any("No space left on device" in note for note in run.result.notes)
    assert 0 < newest(tmp_path) <= 5
    monkeypatch.undo()
    assert trained(tmp_path).items() <= whole.items()
    assert newest(tmp_path) == STEPS


def test_a_run_without_its_report_has_not_ended_and_is_concluded_when_continued(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(summary, "written_whole", full)
        trained(tmp_path)
    assert "ended" not in json.loads((tmp_path / "run.json").read_text())
    trained(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["ended"] == "finished"
    assert (tmp_path / "report.html").stat().st_size > 0


def test_a_disk_full_before_anything_was_kept_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "written_whole", full)
    with pytest.raises(InputError, match=r"cannot write to the run folder .*: No space left on device"):
        trained(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_can_no_longer_be_written_ends_alone(tmp_path, whole, monkeypatch):
    class Full(log_module.FileIO):
        def write(self, data: Any) -> int:
            if b'"step"' in data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    monkeypatch.setattr(log_module, "FileIO", Full)
    run = made(tmp_path)
    assert told_by(run) == whole
    assert any("ends early: No space left" in note for note in run.result.notes)
    assert newest(tmp_path) == STEPS


def test_a_folder_that_cannot_be_written_to_is_refused(begun, monkeypatch):
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *more, **named)

    before = contents(begun)
    monkeypatch.setattr(lock.os, "open", read_only)
    with pytest.raises(InputError, match="cannot be locked: Read-only file system"):
        trained(begun)
    monkeypatch.undo()
    assert contents(begun) == before


class Slow(Quick):
    """A disk that takes as long as it is told to."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def create(self, path: Path) -> int:
        self.begun.set()
        assert self.go.wait(2), "the training waits for the disk"
        return super().create(path)


def test_a_slow_disk_does_not_hold_the_training_up(tmp_path, whole, monkeypatch):
    """While one checkpoint is being written, none is begun."""
    disk, answer = Slow(), {}
    monkeypatch.setattr(store, "Files", lambda: disk)
    for step in made(tmp_path):
        answer[step.step] = TOLD.pack(step.step, step.loss, step.learning_rate)
        if step.step == 3:
            assert disk.begun.wait(20)
        if step.step == STEPS - 2:
            disk.go.set()
    assert answer == whole
    saved = [record["step"] for record in read_log(tmp_path / "log.jsonl") if record["record"] == "checkpoint"]
    assert saved[0] == 2
    assert saved[1] >= STEPS - 2
    assert saved[-1] == STEPS


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_saves_go_on_when_the_clock_jumps(jump_s, tmp_path, whole, monkeypatch):
    run, answer, real = made(tmp_path, time_limit_s=600.0), {}, time.time
    for step in run:
        answer[step.step] = TOLD.pack(step.step, step.loss, step.learning_rate)
        wait_for_the_save(run)
        if step.step == STEPS // 2:
            monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    assert answer == whole
    saved = {record["step"] for record in read_log(tmp_path / "log.jsonl") if record["record"] == "checkpoint"}
    assert any(STEPS // 2 < step < STEPS for step in saved)
    assert run.result.stopped == "finished"


# --- processes


def test_a_killed_loader_worker_ends_the_run_and_a_resume_goes_on(tmp_path):
    whole = trained(tmp_path / "whole", "loader workers")
    messages = {}

    def train_and_kill() -> None:
        for step in made(tmp_path / "run", "loader workers"):
            messages[step.step] = TOLD.pack(step.step, step.loss, step.learning_rate)
            if step.step == 4:
                victim = multiprocessing.active_children()[0]
                victim.kill()
                victim.join()

    with pytest.raises(JobError, match="was killed by SIGKILL") as caught:
        train_and_kill()
    assert "--loader-workers 0" in " ".join(caught.value.ways_out)
    assert multiprocessing.active_children() == []
    assert read_log(tmp_path / "run" / "log.jsonl")[-1]["record"] == "error"
    later = trained(tmp_path / "run", "loader workers")
    assert {**messages, **later} == whole
    assert min(later) >= 4


def test_a_second_run_in_the_folder_is_refused_and_the_first_unharmed(tmp_path, whole):
    messages = {}
    for step in made(tmp_path):
        messages[step.step] = TOLD.pack(step.step, step.loss, step.learning_rate)
        if step.step == 5:
            with pytest.raises(InputError, match=f"in use by process {os.getpid()}"):
                trained(tmp_path)
    assert messages == whole
    assert newest(tmp_path) == STEPS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_whole_group_saves_and_the_rest_is_the_same(number, tmp_path):
    """The loader workers get it, too: they deliver until the run has saved."""
    expected = runs.reference("loader workers", tmp_path / "whole", STEPS)
    plan, answer = Plan("loader workers", tmp_path / "run", STEPS), {}
    life = Life(plan)
    for step, data in life:
        answer[step] = data
        if len(answer) == 3:
            os.killpg(life.process.pid, number)
    assert life.ended() == 0
    assert 3 <= len(answer) < STEPS
    assert answer.items() <= expected.told.items()
    assert newest(plan.folder) == max(answer)
    assert number.name in [record.get("why") for record in read_log(plan.folder / "log.jsonl")]
    assert live_once(plan, expected, runs.History())
    check_ended(plan.folder, expected)


def test_a_notice_of_the_cloud_saves_before_the_machine_goes(tmp_path, monkeypatch):
    with Played() as server:
        goes_s = time.time() + 5.5  # five seconds are kept free for the end
        server.pages |= {
            "/latest/api/token": "secret",
            ACTION: json.dumps(
                {"action": "terminate", "time": datetime.fromtimestamp(goes_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")}
            ),
        }
        monkeypatch.setattr(parts, "source_for", lambda name: Aws(server.url))
        run = made(tmp_path, steps=10**6)
        answer = told_by(run, until=10**5)
    assert time.time() < goes_s
    assert run.result.stopped == "interrupted"
    assert "AWS will terminate this spot instance" in run.result.stop_reason
    assert newest(tmp_path) == run.result.steps == max(answer)
    assert "AWS will terminate" in events(tmp_path)


# --- the last step


def test_the_best_checkpoint_is_still_the_best_when_it_is_the_last(tmp_path):
    scores = iter([0.1, 0.2, 0.3])
    strategy = RUNS["rows"][1]
    job = runs.job(evaluate=lambda model: {"accuracy": next(scores)})
    run = Training(
        job,
        strategy,
        TrainSettings(steps=6, folder=tmp_path, evaluate_every=2, monitor="max:accuracy", progress="silent", preemption="none"),
    )
    result = run.run()
    assert result.best == {"step": 6, "metric": "accuracy", "value": 0.3}
    assert CheckpointStore(tmp_path / "checkpoints").best().step == 6


def test_an_evaluation_that_a_stop_kept_from_being_made_is_made_up_for(tmp_path):
    settings = {"run": "monitored", "steps": 7}

    def evaluations(folder: Path) -> list[tuple[int, dict[str, float]]]:
        records = read_log(folder / "log.jsonl")
        return [(record["step"], record["metrics"]) for record in records if record["record"] == "evaluation"]

    whole = trained(tmp_path / "whole", **settings)
    first = trained(tmp_path / "parts", until=3, **settings)
    assert {**first, **trained(tmp_path / "parts", **settings)} == whole
    assert [step for step, _ in evaluations(tmp_path / "whole")] == [3, 6, 7]
    assert evaluations(tmp_path / "parts") == evaluations(tmp_path / "whole")
