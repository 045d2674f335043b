"""Snapshots of who uses this machine, and what is said of two of them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwise.hardware import load as module
from gpuwise.hardware.detect import GpuLoad
from gpuwise.hardware.disturbances import Shares, all_busy, disturbances, shares
from gpuwise.hardware.load import LoadSnapshot, load
from gpuwise.notes import Note, sentences

TICKS = os.sysconf("SC_CLK_TCK")
BEFORE = LoadSnapshot(
    1000.0,
    5e8,
    2000.0,
    2,
    busy_s=100.0,
    idle_s=50.0,
    stolen_s=1.0,
    own_s=10.0,
    clock_hz=3.4e9,
    heat_throttles=7,
    waiting_s=3.0,
    throttled_s=1.0,
    cpu_limit=1.5,
)
# Ten seconds later: of twenty of processor time this process had ten, ten were idle.
QUIET = replace(BEFORE, taken_s=1010.0, wall_s=5e8 + 10.0, awake_s=2010.0, busy_s=110.0, idle_s=60.0, own_s=20.0)
GPU = GpuLoad(
    "NVIDIA L4",
    0.0,
    23 << 30,
    500 << 20,
    power_limit_w=72.0,
    default_power_limit_w=72.0,
    held_back_s={"power": 100.0, "heat": 5.0},
)


def tree(root: Path, contents: dict[str, str]) -> Path:
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_quiet_run_has_nothing_to_tell():
    assert shares(BEFORE, QUIET) == Shares(0.0, 0.0, 0.5)
    assert disturbances(BEFORE, QUIET) == []
    assert disturbances(replace(BEFORE, gpus=(GPU,)), replace(QUIET, gpus=(GPU,))) == []
    assert not all_busy(BEFORE, QUIET)


SAID = [
    ({"busy_s": 116.2, "idle_s": 53.8}, "other processes used 31 % of the processors meanwhile"),
    ({"stolen_s": 3.4, "idle_s": 57.6}, "the hypervisor took 12 % of the processors (steal)"),
    ({"waiting_s": 7.0}, "programs waited for a free processor 40 % of the time"),
    ({"throttled_s": 3.5}, "the container's limit of 1.5 processors stopped the program for 2.5 s"),
    ({"throttled_s": 3.5, "cpu_limit": None}, "the container's limit stopped the program for 2.5 s"),
    ({"clock_hz": 2.1e9}, "the clock fell from 3.4 to 2.1 GHz: thermal or power limit"),
    ({"heat_throttles": 9}, "heat lowered the processors' clock 2 times"),
    ({"wall_s": 5e8 + 3610.0}, "the system clock jumped by 3600 s; times are from the monotonic clock"),
    ({"wall_s": 5e8 - 50.0}, "the system clock jumped by -60 s; times are from the monotonic clock"),
    ({"wall_s": 5e8 + 610.0, "awake_s": 2610.0}, "the machine was suspended for 600 s"),
]


@pytest.mark.parametrize(("changed", "sentence"), SAID)
def test_what_disturbed_is_said(changed: dict[str, float], sentence: str):
    assert sentences(disturbances(BEFORE, replace(QUIET, **changed))) == (sentence,)


@pytest.mark.parametrize(
    "changed",
    [
        {"busy_s": 110.5, "idle_s": 59.5},
        {"stolen_s": 1.2},
        {"clock_hz": 2.9e9},  # from one busy core to all
        {"clock_hz": 4e9},
        {"wall_s": 5e8 + 10.9},
        {"waiting_s": 4.0},
        {"throttled_s": 1.1},
        {"heat_throttles": 0},  # the counter began anew
        {"busy_s": None},
        {"own_s": None, "busy_s": 100.2},
        {"idle_s": 0.0},
        {"clock_hz": None, "heat_throttles": None, "waiting_s": None, "throttled_s": None, "awake_s": None},
    ],
)
def test_what_is_small_or_unknown_is_not(changed: dict[str, float | None]):
    assert disturbances(BEFORE, replace(QUIET, **changed)) == []


def on_gpus(before: GpuLoad, after: GpuLoad, count: int = 1) -> list[str]:
    return list(sentences(disturbances(replace(BEFORE, gpus=(before,) * count), replace(QUIET, gpus=(after,) * count))))


def test_what_disturbed_a_gpu():
    assert on_gpus(replace(GPU, busy=0.45), replace(GPU, busy=1.0)) == [
        "the GPU was busy 45 % of the time before the measurement began"
    ]
    assert on_gpus(replace(GPU, memory_used_bytes=3 << 30), replace(GPU, memory_used_bytes=20 << 30)) == [
        "other programs held 3 GiB of the GPU's memory when the measurement began"
    ]
    capped = replace(GPU, power_limit_w=200.0, default_power_limit_w=350.0)
    assert on_gpus(GPU, capped) == ["the power limit is 200 W, the card's default is 350 W"]
    assert on_gpus(GPU, capped, 2)[1] == "the power limit is 200 W, the card's default is 350 W (GPU 1)"
    hot = replace(GPU, held_back_s={"power": 100.5, "heat": 8.0})
    assert on_gpus(GPU, hot, 2)[0] == "heat held back the clock of GPU 0 30 % of the time"
    answer = replace(GPU, held_back=("power limit", "heat"), held_back_s={})
    assert on_gpus(replace(GPU, held_back_s={}), answer) == ["the clock of the GPU is held back: power limit, heat"]


def test_when_others_leave_nothing():
    idle_we = replace(BEFORE, taken_s=1001.0, wall_s=5e8 + 1, awake_s=2001.0, busy_s=101.95, idle_s=50.05)
    assert all_busy(BEFORE, idle_we)
    assert all_busy(BEFORE, replace(idle_we, busy_s=101.0, stolen_s=1.95))
    half_each = replace(QUIET, busy_s=120.0, idle_s=50.0)
    assert all_busy(BEFORE, half_each)
    assert not all_busy(BEFORE, replace(QUIET, busy_s=120.0, idle_s=50.0, own_s=29.0))  # all of it ours
    assert not all_busy(BEFORE, replace(QUIET, busy_s=114.0, idle_s=56.0))
    assert not all_busy(BEFORE, replace(QUIET, idle_s=None))
    assert not all_busy(BEFORE, QUIET, device="cuda")
    assert all_busy(replace(BEFORE, gpus=(replace(GPU, busy=0.99),)), QUIET, device="cuda")
    assert not all_busy(replace(BEFORE, gpus=(replace(GPU, busy=0.99), GPU)), QUIET, device="cuda")


def stat(process: int, parent: int, *times: int, name: str = "python") -> str:
    """As /proc writes it; times: utime, stime, cutime, cstime."""
    return f"{process} ({name}) S {parent} 1 1 0 -1 4194560 1 2 3 4 {' '.join(map(str, times))} 20 0 1 0"


def test_a_snapshot_reads_the_processors_we_may_use_and_our_own_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_SETTLE_S", 0.0)
    times = [
        "cpu  9 9 9 9 9 9 9 9 9 9",
        "cpu0 100 10 20 300 5 1 2 7 0 0",
        "cpu1 100 0 0 0 0 0 0 0 0 0",
        "cpu2 900 0 0 0 0 0 0 9 0 0",
        "intr 1",
    ]
    root = tree(
        tmp_path,
        {
            "proc/cpuinfo": "\n".join(f"processor\t: {n}\ncpu MHz\t: {mhz}\n" for n, mhz in enumerate((2000.5, 2500, 1))),
            "proc/self/status": "Cpus_allowed_list:\t0-1\n",
            "proc/stat": "\n".join(times),
            "proc/loadavg": "0.50 1.25 2.00 3/96 8483\n",
            "proc/pressure/cpu": "some avg10=1.16 avg60=1.14 avg300=0.34 total=2500000\nfull avg10=0.00 total=0\n",
            "proc/self/stat": stat(50, 1, 100, 10, 5, 5),
            "proc/50/stat": stat(50, 1, 100, 10, 5, 5),
            "proc/60/stat": stat(60, 50, 30, 0, 0, 0, name="a (strange) name"),
            "proc/61/stat": stat(61, 60, 7, 0, 0, 0),
            "proc/70/stat": stat(70, 1, 9000, 0, 0, 0),
            "proc/80/stat": "80 (going",
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "2\n",
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "1\n",
            "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "4\n",
            "sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count": "4\n",
        },
    )
    result = load(root)
    assert (result.busy_s, result.idle_s, result.stolen_s) == pytest.approx((233 / TICKS, 305 / TICKS, 7 / TICKS))
    assert result.own_s == pytest.approx(157 / TICKS)
    assert (result.processors, result.clock_hz, result.heat_throttles, result.waiting_s) == (2, 2.5e9, 7, 2.5)
    assert result.load_average == (0.5, 1.25, 2.0)
    tree(root, {"sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "3100000\n"})
    assert load(root).clock_hz == 3.1e9


def test_a_machine_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_SETTLE_S", 0.0)
    before, after = load(tmp_path), load(tmp_path)
    assert (before.busy_s, before.own_s, before.clock_hz, before.load_average) == (None, None, None, ())
    assert disturbances(before, after) == []
    assert not all_busy(before, after)


def test_this_machine():
    before = load()
    until_s = time.process_time() + 0.1
    while time.process_time() < until_s:
        pass
    after = load()
    result = shares(before, after)
    if result is not None:  # where the system counts processor times
        assert result.own > 0
        assert result.others >= 0
        assert result.others + result.stolen + result.own <= 1.0 + 1e-9
    assert all(isinstance(note, Note) for note in disturbances(before, after))
