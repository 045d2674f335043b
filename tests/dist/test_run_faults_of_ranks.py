"""Faults of ranks that `gpuwise train --mesh` has started: one message names the rank, and nothing hangs or stays behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from launched import ENDED_S, errors_of, gone, ranks_of, start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGSTOP, "has not answered for")]
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_lost_ends_all_with_its_name(number: signal.Signals, words: str, rank: int, tmp_path: Path):
    process = start(tmp_path)
    pids = ranks_of(process, tmp_path)
    os.kill(pids[rank], number)
    began_s = time.monotonic()
    (error,) = errors_of(process)
    assert f"rank {rank} on " in error
    assert words in error
    assert process.returncode == 4
    assert time.monotonic() - began_s < ENDED_S
    assert gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_launcher_that_is_lost_ends_all_ranks_and_one_of_them_says_so(number: signal.Signals, tmp_path: Path):
    """The launcher keeps the store that ranks meet in. One that is stopped looks to them like a machine that has gone."""
    process = start(tmp_path)
    pids = ranks_of(process, tmp_path)
    os.kill(process.pid, number)
    began_s = time.monotonic()
    while not ended(pids):
        assert time.monotonic() - began_s < ENDED_S
        time.sleep(0.05)  # for other processes
    process.kill()
    (error,) = errors_of(process)
    assert "rank 0 on " in error
    assert "has lost the launcher" in error


def ended(pids: list[int]) -> bool:
    """Whether all have ended; one whose parent is stopped stays as a zombie."""
    return all(not (stat := Path(f"/proc/{pid}/stat")).exists() or ") Z " in stat.read_text() for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_started_again_from_the_last_checkpoint(number: signal.Signals, tmp_path: Path):
    process = start(tmp_path, "--max-restarts", "1")
    first = ranks_of(process, tmp_path)
    os.kill(first[1], number)
    log = tmp_path / "run/log.jsonl"
    until_s = time.monotonic() + 200
    while '"record": "resumed"' not in log.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert errors_of(process) == []
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words", "code"),
    [
        ("raise 1", "rank 1 on .*small failed in step 5 .*ValueError: a bad day", 2),
        ("memory 0", "rank 0 on .*ran out of memory", 2),
        ("exit 1", "rank 1 on .*ended with exit code 7", 4),
    ],
)
def test_a_rank_that_fails_ends_all_with_its_error(fault: str, words: str, code: int, tmp_path: Path):
    import re

    process = start(tmp_path, FAULT=fault)
    (error,) = errors_of(process)
    assert re.search(words, error), error
    assert process.returncode == code


@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused(tmp_path: Path):
    first = start(tmp_path)
    ranks_of(first, tmp_path)
    (error,) = errors_of(start(tmp_path))
    assert "is in use by process" in error
    first.send_signal(signal.SIGTERM)
    assert errors_of(first) == []
    assert first.returncode == 130


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (("--save-every", "soon"), {}, "soon"),
        ((), {"WORLD_SIZE": "2"}, "RANK is not set"),
        ((), {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}, "3 ranks"),
    ],
)
def test_what_cannot_start_is_refused_before(flags: tuple[str, ...], environment: dict[str, str], words: str, tmp_path: Path):
    process = start(tmp_path, *flags, **environment)
    (error,) = errors_of(process)
    assert words in error
    assert process.returncode == 2
    assert not (tmp_path / "run").exists()
