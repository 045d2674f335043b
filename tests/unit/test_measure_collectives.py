"""Collectives between processes of this machine: figures, and what happens where a process dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

from gpuwise.measure.probes import collectives, collectives_worker  # noqa: E402

CPU = torch.device("cpu")
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


@pytest.mark.slow
def test_two_processes_agree():
    messages: list[str] = []
    results = list(collectives.rows(0.1, CPU, lambda note: messages.append(note.text)))
    assert messages == []
    sizes = collectives_worker.SIZES_BYTES[::2]  # every other, as time is short
    assert [(r.bytes, r.name) for r in results] == [(size, name) for size in sizes for name in NAMES]
    assert all(r.verified and r.group == "collective" and r.sizes["processes"] == 2 for r in results)
    assert all(r.timing.rounds >= collectives_worker.FEWEST_ROUNDS for r in results)


def test_a_process_that_is_killed_ends_it_with_a_message(monkeypatch):
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    messages: list[str] = []
    rows = collectives.rows(30.0, CPU, lambda note: messages.append(note.text))
    next(rows)
    os.kill(started[1].pid, signal.SIGKILL)
    list(rows)
    assert len(messages) == 1
    assert messages[0].startswith(f"collectives ended early: process 1 of 2 was killed by signal {signal.SIGKILL.value}")
    assert all(process.poll() is not None for process in started)


def test_alone_there_is_nothing_to_exchange():
    assert list(collectives.rows(1.0, CPU, pytest.fail, processes=1)) == []


def test_no_process_can_be_started(monkeypatch):
    def refused(*args, **kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)
    messages: list[str] = []
    assert list(collectives.rows(1.0, CPU, lambda note: messages.append(note.text))) == []
    assert messages == ["collectives were left out: no processes can be started (Resource temporarily unavailable)."]


def test_a_worker_ends_with_the_process_that_started_it(tmp_path: Path):
    request = {"world": 2, "rank": 0, "kind": "cpu", "meeting": str(tmp_path / "meeting"), "budget_s": 60.0}
    worker = subprocess.Popen(
        [sys.executable, "-m", collectives_worker.__name__, json.dumps(request)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert worker.stdin is not None
    worker.stdin.close()  # as the system does where that process is killed
    assert worker.wait(timeout=60) == 1


def test_a_wrong_result_is_found_out(tmp_path: Path, monkeypatch):
    dist = torch.distributed
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", collectives.LOOPBACK)
    dist.init_process_group("gloo", init_method=(tmp_path / "meeting").as_uri(), rank=0, world_size=1)
    try:
        for name, collective in collectives_worker.collectives(4096, 0, 1, CPU).items():
            assert collectives_worker._verified(collective, CPU), name
            broken = collectives_worker._Collective(lambda: None, lambda: False, collective.reset)
            assert not collectives_worker._verified(broken, CPU)
            assert collectives_worker.timed_together(collective, 0.001, CPU).rounds >= collectives_worker.FEWEST_ROUNDS
    finally:
        dist.destroy_process_group()
