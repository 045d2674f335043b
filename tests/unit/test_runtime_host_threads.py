"""Threads of the CPU's operations, and what a device has no use for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from gpuwise.hardware.detect.cpu import Cpu, core_processors
from gpuwise.notes import sentences
from gpuwise.runtime.build import host_threads
from gpuwise.runtime.build.host_threads import apply_threads, bind_threads, unusable
from gpuwise.strategy import HostSettings, Strategy

ZEN4 = Cpu("EPYC", "AMD", 2, 4, flags=("avx2", "avx512", "avx512-bf16"))
OLD = Cpu("Xeon", "Intel", 2, 4, flags=("avx2", "avx512"))
HERE = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_are_those_asked_for():
    assert apply_threads(HostSettings(threads=1)) == []
    assert torch.get_num_threads() == 1


def test_without_a_word_there_is_no_more_than_a_thread_a_core(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(host_threads, "detect_cpu", lambda: ZEN4)
    for before, after in ((1, 1), (8, 2)):
        torch.set_num_threads(before)
        apply_threads(HostSettings())
        assert torch.get_num_threads() == after
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.set_num_threads(3)
    apply_threads(HostSettings())
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)


def test_threads_that_cannot_be_bound_are_told(monkeypatch):
    monkeypatch.setattr(host_threads, "core_processors", lambda: [0])
    notes = apply_threads(HostSettings(threads=2, pin_threads=True))
    assert sentences(notes) == ("threads are not bound to cores: 2 threads have 1 cores",)
    monkeypatch.setattr(host_threads, "_OPENMP", ("no library is called so",))
    assert "without OpenMP" in (bind_threads(1, [0]) or "")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "only Linux" in (bind_threads(1, [0]) or "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are bound on Linux alone")
def test_each_thread_but_the_calling_one_is_bound_to_a_core():
    code = """
import os, torch
from gpuwise.runtime.build.host_threads import bind_threads
torch.set_num_threads(2)
torch.randn(300, 300) @ torch.randn(300, 300)
free = sorted(os.sched_getaffinity(0))
print(bind_threads(2, [free[0], free[-1]]))
print([sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")].count([free[-1]]))
print(sorted(os.sched_getaffinity(0)) == free)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    problem, bound, free = done.stdout.split()
    if problem == "None" and len(os.sched_getaffinity(0)) > 1:
        assert (bound, free) == ("1", "True")


def test_cores_are_told_by_one_processor_each():
    result = core_processors()
    assert result
    assert len(set(result)) == len(result)
    assert set(result) <= os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else True


@pytest.mark.parametrize(
    ("settings", "cpu", "said"),
    [
        (Strategy("tf32"), ZEN4, "tf32 is ignored here: a CPU has no such arithmetic"),
        (Strategy("amp-bf16"), OLD, "amp-bf16 is emulated here: Xeon has no bfloat16 arithmetic"),
        (Strategy("amp-fp16"), ZEN4, "amp-fp16 is slow here"),
        (Strategy("fp8"), ZEN4, "fp8 is emulated here"),
        (HostSettings(pinned_memory=True), ZEN4, "pinned memory is ignored here"),
        (HostSettings(threads=5), ZEN4, "5 threads share 4 processors here"),
    ],
)
def test_what_a_cpu_has_no_use_for(monkeypatch, settings, cpu, said):
    monkeypatch.setattr(host_threads, "detect_cpu", lambda: cpu)
    host = isinstance(settings, HostSettings)
    (result,) = unusable(Strategy(), HERE, host=settings) if host else unusable(settings, HERE)
    assert result.text.startswith(said)


def test_nothing_is_said_of_what_a_cpu_can_do(monkeypatch):
    monkeypatch.setattr(host_threads, "detect_cpu", lambda: ZEN4)
    assert unusable(Strategy("amp-bf16", channels_last=True), HERE, host=HostSettings(threads=2, pinned_memory=False)) == []


def test_a_gpu_before_ampere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    device = torch.device("cuda")
    (tf32,) = sentences(unusable(Strategy("tf32"), device))
    assert tf32 == "tf32 is ignored here: Tesla T4 has no such arithmetic, products run in fp32"
    assert "amp-fp16 is faster" in unusable(Strategy("amp-bf16"), device)[0].text
    assert unusable(Strategy("amp-fp16"), device, host=HostSettings(pinned_memory=True)) == []
