"""RUN/state.json and `gpuwise state`, without a training: who reads it, what it survives, what a wrapper gets."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwise.cli.main import main
from gpuwise.errors import FileFormatError, InputError, JobError, OtherRankError, RankLostError, RunEndedError
from gpuwise.results.run_status import DONE, FAILED, INTERRUPTED, RUNNING, RunStatus, StopReason
from gpuwise.runs import attempt as attempt_module
from gpuwise.runs.attempt import Attempt, after_error, failure_noted
from gpuwise.runs.lock import RunLock, is_locked
from gpuwise.runs.state_file import read_status, run_status, write_status

STATUS = RunStatus(
    state=INTERRUPTED,
    step=117,
    steps=1000,
    checkpoint_step=117,
    exit_code=130,
    reason=StopReason("signal", "SIGTERM"),
    attempts=3,
    attempts_without_checkpoint=0,
    began="2026-11-28T09:00:00+00:00",
    written="2026-11-28T09:10:00+00:00",
    host="n0",
    pid=4711,
    ranks=2,
    gpuwise_version="0.1.0",
)
# A run that has the folder until it is killed.
LIFE = """
import sys
from pathlib import Path
from gpuwise.runs.attempt import Attempt
from gpuwise.runs.lock import RunLock
RunLock(sys.argv[1]).acquire()
attempt = Attempt(Path(sys.argv[1]))
attempt.begin()
attempt.ready(step=0, steps=10)
attempt.saved(4, step=5)
print("begun", flush=True)
sys.stdin.read()
"""


def state(folder: Path, *flags: str):
    return CliRunner().invoke(main, ["state", str(folder), *flags])


@pytest.mark.parametrize(
    "status",
    [
        STATUS,
        replace(STATUS, state=RUNNING, exit_code=None, reason=None, steps=None, checkpoint_step=None),
        replace(STATUS, state=FAILED, reason=StopReason("bad-job", 'it said:\n"no" \u2028 \x1b[31m \udc80'), host="ö"),
    ],
)
def test_what_is_written_is_read(status: RunStatus, tmp_path: Path):
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(("name", "code"), [(DONE, 0), (FAILED, 1), (INTERRUPTED, 75)])
def test_a_wrapper_gets_a_word_and_an_exit_code(name: str, code: int, tmp_path: Path):
    write_status(tmp_path, replace(STATUS, state=name))
    result = state(tmp_path)
    assert (result.stdout, result.exit_code) == (f"{name}\n", code)
    result = state(tmp_path, "--json")
    assert RunStatus.from_dict(json.loads(result.stdout)) == replace(STATUS, state=name)
    assert result.exit_code == code


def test_a_running_attempt_is_running_while_its_lock_stands(tmp_path: Path):
    write_status(tmp_path, replace(STATUS, state=RUNNING))
    with RunLock(tmp_path):
        result = state(tmp_path)
        assert (result.stdout, result.exit_code) == ("running\n", 3)
    result = state(tmp_path, "--json")
    assert result.exit_code == 75
    assert json.loads(result.stdout)["reason"]["kind"] == "killed"


def test_a_killed_attempt_may_be_continued(tmp_path: Path):
    life = subprocess.Popen([sys.executable, "-c", LIFE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert life.stdout is not None
    assert life.stdout.readline() == b"begun\n"
    assert run_status(tmp_path).state == RUNNING
    life.send_signal(signal.SIGKILL)
    life.communicate()
    status = run_status(tmp_path)
    assert (status.state, status.step, status.steps, status.checkpoint_step, status.exit_code) == (INTERRUPTED, 5, 10, 4, None)
    assert (status.pid, status.attempts, status.attempts_without_checkpoint) == (life.pid, 1, 0)
    assert status.may_continue
    Attempt(tmp_path).begin()
    assert (run_status(tmp_path).attempts, run_status(tmp_path).attempts_without_checkpoint) == (2, 1)


def test_looks_at_the_lock_refuse_no_run(tmp_path: Path):
    """Another process looks all the time; a run that starts meanwhile gets its lock."""
    code = "import sys\nfrom gpuwise.runs.lock import is_locked\nprint('looks', flush=True)\nwhile True: is_locked(sys.argv[1])"
    (tmp_path / "lock").touch()
    looker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert looker.stdout is not None
    looker.stdout.readline()
    try:
        for _ in range(200):
            with RunLock(tmp_path):
                pass
    finally:
        looker.kill()
        looker.communicate()


def test_a_lock_is_seen_without_its_file_and_on_filesystems_without_locks(tmp_path: Path):
    with RunLock(tmp_path):
        (tmp_path / "lock").unlink()
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    (tmp_path / "lock.held").write_text(json.dumps({"pid": os.getpid(), "host": "elsewhere"}))
    assert is_locked(tmp_path)  # nobody here can tell whether it is gone: it counts as there, as for RunLock
    (tmp_path / "lock.held").write_text(json.dumps({"pid": 2**22 + 1, "host": attempt_module.socket.gethostname()}))
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "nowhere")


def test_starts_that_save_nothing_end_after_some_tries(tmp_path: Path):
    write_status(tmp_path, replace(STATUS, attempts_without_checkpoint=2))
    assert (state(tmp_path, "--tries", "3").exit_code, state(tmp_path).exit_code) == (75, 75)
    result = state(tmp_path, "--tries", "2")
    assert (result.stdout, result.exit_code) == ("failed\n", 1)
    write_status(tmp_path, replace(STATUS, state=DONE, attempts_without_checkpoint=2))
    assert state(tmp_path, "--tries", "2").exit_code == 0


# --- bad input


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00" * 500,
        "[" * 100_000,
        '{"format": "something else"}',
        json.dumps({"format": "gpuwise-run-state", "version": 2, **STATUS.to_dict()}),
        json.dumps({"format": "gpuwise-run-state", "version": 1, **STATUS.to_dict(), "state": "fine; rm -rf /"}),
        json.dumps({"format": "gpuwise-run-state", "version": 1, **STATUS.to_dict(), "pid": "1"}),
        json.dumps({"format": "gpuwise-run-state", "version": 1, **STATUS.to_dict(), "step": 1e999}),
        json.dumps({"format": "gpuwise-run-state", "version": 1, **STATUS.to_dict(), "reason": "SIGTERM"}),
        json.dumps({"format": "gpuwise-run-state", "version": 1, **STATUS.to_dict(), "host": "x" * 2_000_000}),
    ],
)
def test_a_damaged_foreign_or_newer_state_is_bad_input_and_the_next_attempt_writes_it_anew(text: str, tmp_path: Path):
    (tmp_path / "state.json").write_text(text)
    result = state(tmp_path)
    assert (result.stdout, result.exit_code) == ("", 2)
    assert "state.json is damaged, or not of a run of gpuwise" in result.stderr
    Attempt(tmp_path).begin()
    assert run_status(tmp_path).attempts == 1


def test_a_cut_state_is_damaged_at_every_length(tmp_path: Path):
    write_status(tmp_path, STATUS)
    whole = (tmp_path / "state.json").read_bytes()
    for length in range(0, len(whole) - 2):
        (tmp_path / "state.json").write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match="damaged"):
            run_status(tmp_path)


@pytest.mark.parametrize("name", ["none", "file"])
def test_no_run_is_bad_input(name: str, tmp_path: Path):
    (tmp_path / "file").touch()
    result = state(tmp_path / name, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "bad-file"


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "state.json")
    assert state(tmp_path).exit_code == 2


# --- errors


@pytest.mark.parametrize(
    ("error", "name", "code", "kind"),
    [
        (JobError("its loss is NaN."), FAILED, 2, "bad-job"),
        (InputError("another seed."), FAILED, 2, "bad-input"),
        (RankLostError("rank 1 on n1 was killed by SIGKILL."), INTERRUPTED, 4, "rank-lost"),
        (OtherRankError("rank 1 on n1: no memory.", code="does-not-fit", exit_code=2), FAILED, 2, "does-not-fit"),
        (OtherRankError("rank 1 on n1: at once.", code="interrupted", exit_code=130), INTERRUPTED, 130, "interrupted"),
        (KeyboardInterrupt(), INTERRUPTED, 130, "signal"),
        (SystemExit(143), INTERRUPTED, 143, "signal"),
        (ZeroDivisionError("no"), FAILED, 1, "unexpected"),
    ],
)
def test_an_error_says_whether_another_start_helps(error: BaseException, name: str, code: int, kind: str):
    status = after_error(replace(STATUS, state=RUNNING, reason=None), error)
    assert status.reason is not None
    assert (status.state, status.exit_code, status.reason.kind) == (name, code, kind)
    assert after_error(replace(STATUS, state=DONE), error).state == DONE


def test_a_run_that_has_ended_before_is_done():
    status = after_error(replace(STATUS, state=RUNNING), RunEndedError("has taken all of its steps.", step=1000))
    assert (status.state, status.step, status.reason) == (DONE, 1000, None)


def test_an_attempt_that_fails_before_it_begins_is_noted_over_the_attempt_before(tmp_path: Path):
    write_status(tmp_path, STATUS)
    with pytest.raises(JobError), failure_noted(tmp_path):
        raise JobError("no such file.")
    assert run_status(tmp_path).state == FAILED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "state.json"]


def test_no_state_is_made_where_there_was_none_or_another_process_has_the_run(tmp_path: Path):
    with pytest.raises(JobError), failure_noted(tmp_path / "new"):
        raise JobError("no such file.")
    assert not (tmp_path / "new").exists()
    write_status(tmp_path, replace(STATUS, state=RUNNING))
    before = (tmp_path / "state.json").read_bytes()
    with RunLock(tmp_path), pytest.raises(InputError), failure_noted(tmp_path):
        raise InputError("in use by another.")
    assert (tmp_path / "state.json").read_bytes() == before


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    attempt = Attempt(tmp_path)
    attempt.begin()
    before = (tmp_path / "state.json").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(attempt_module, "write_status", full)
    attempt.saved(3, step=4)
    assert attempt.problem == "the state of the run could not be written: No space left on device."
    assert (tmp_path / "state.json").read_bytes() == before
    monkeypatch.undo()
    attempt.end(DONE, step=5, checkpoint_step=5, exit_code=0, reason=None)
    assert attempt.problem is None
    assert (run_status(tmp_path).state, run_status(tmp_path).checkpoint_step) == (DONE, 5)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    attempt = Attempt(None)
    attempt.begin()
    attempt.ready(step=0, steps=1)
    attempt.saved(1, step=1)
    attempt.fail(JobError("no."))
    with pytest.raises(JobError), attempt.noted():
        raise JobError("no.")
    assert list(tmp_path.iterdir()) == []


def test_the_command_loads_neither_pytorch_nor_numpy(tmp_path: Path):
    write_status(tmp_path, STATUS)
    code = (
        "import sys\nfrom gpuwise.cli.main import main\n"
        "try: main(['state', sys.argv[1]])\n"
        "except SystemExit as end: print(end.code)\n"
        "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["interrupted", "75", "[]"]
