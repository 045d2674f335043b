"""A log's copy to pipes and devices: all of it, or a sentence, and never a wait without end."""

import os
import socket
import threading
from pathlib import Path

import pytest

from gpuwise.errors import InputError
from gpuwise.runtime.show import LogStream, RunLog, is_stream, log_stream, read_log

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_what_is_a_stream(fifo: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert [is_stream(path) for path in (fifo, Path("/dev/null"), Path("/dev/fd/1"))] == [True] * 3
    assert [is_stream(path) for path in (tmp_path / "file", tmp_path / "none", tmp_path)] == [False] * 3
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        with pytest.raises(InputError, match="is a socket"):
            is_stream(tmp_path / "socket")


def test_a_pipe_that_nobody_reads_is_refused(fifo: Path):
    with pytest.raises(InputError, match="nobody reads it"):
        LogStream(fifo)


def test_all_of_a_log_reaches_a_slow_reader(fifo: Path, tmp_path: Path):
    read: list[bytes] = []

    def reader() -> None:
        with open(fifo, "rb", buffering=0) as file:
            while part := file.read(1000):
                read.append(part)

    thread = threading.Thread(target=reader)
    thread.start()
    while True:
        try:
            stream = LogStream(fifo)
            break
        except InputError:  # the reader is not there yet
            pass
    with RunLog(tmp_path / "log.jsonl", copy=stream) as log:
        log.open({"job": "x"})
        for number in range(2000):
            log.write("event", {"text": "more than a pipe holds" * 3, "number": number})
        assert log.problem is None
    thread.join()
    assert b"".join(read) == (tmp_path / "log.jsonl").read_bytes()
    assert len(read_log(tmp_path / "log.jsonl")) == 2001


def test_a_reader_that_does_not_read_ends_the_copy_alone(fifo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_stream, "PATIENCE_S", 0.0)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with RunLog(tmp_path / "log.jsonl", copy=LogStream(fifo)) as log:
        log.open({"job": "x"})
        for number in range(2000):
            log.write("event", {"text": "more than a pipe holds" * 3, "number": number})
        assert log.problem is not None
        assert "ends early: nobody has read it" in log.problem
    os.close(held)
    assert len(read_log(tmp_path / "log.jsonl")) == 2001


def test_a_reader_that_has_gone_ends_the_copy_alone(fifo: Path):
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with RunLog(None, copy=LogStream(fifo)) as log:
        os.close(held)
        log.open({"job": "x"})
        assert log.problem is not None
        assert "Broken pipe" in log.problem


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_device_that_is_full():
    with RunLog(None, copy=LogStream(Path("/dev/full"))) as log:
        log.open({"job": "x"})
        assert log.problem == "the log to /dev/full ends early: No space left on device."


def test_a_log_that_somebody_removed_is_told(tmp_path: Path):
    with RunLog(tmp_path / "log.jsonl") as log:
        log.open({"job": "x"})
        assert log.problem is None
        (tmp_path / "log.jsonl").unlink()
        assert log.problem is not None
        assert "was removed" in log.problem
