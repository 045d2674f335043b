"""Whether a CPU is enough for a network: the rules of docs/cpu-enough.md, and requests a second."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpuwise.cost.forecast import Interval
from gpuwise.plan.cpu.network_enough import enough_for_network
from gpuwise.plan.cpu.requests import mean_wait_s
from gpuwise.report.cpu_enough import cpu_enough
from gpuwise.report.printed import plain_text

HOUR = 3600.0


def option(
    provider: str, kind: str, hours: float, usd: float = 0.0, *, launch: float = 0.0, count: float = 1, **changes: object
):
    """What the rules read of an Option."""
    values = {
        "offer": SimpleNamespace(provider=provider, terms="owned" if provider == "here" else "on-demand", stale=False),
        "item": SimpleNamespace(chip=SimpleNamespace(kind=kind)),
        "device": "cpu" if kind == "cpu" else "t4",
        "count": count,
        "hours": hours,
        "usd": Interval(usd, usd, usd),
        "outcome": SimpleNamespace(calendar_s=Interval(hours * HOUR, hours * HOUR / 2, hours * HOUR * 2)),
        "terms": SimpleNamespace(setup_s=300.0),
        "estimate": SimpleNamespace(forecast=SimpleNamespace(bound={"launch": launch})),
        "train_obstacle": "",
    }
    return SimpleNamespace(**{**values, **changes})


def request(deadline_h: float | None = None, objective: str = "cheapest"):
    return SimpleNamespace(deadline_s=None if deadline_h is None else deadline_h * HOUR, objective=objective)


@pytest.mark.parametrize(
    ("cpu_h", "gpu_h", "deadline_h", "objective", "verdict"),
    [
        (0.9, 0.1, None, "cheapest", "enough"),  # within an hour
        (1.1, 0.1, None, "cheapest", "not-enough"),
        (0.9, 0.1, None, "fastest", "not-enough"),  # who wants the fastest saves 48 min
        (20.0, 19.95, None, "fastest", "enough"),  # 3 min saved, 5 min of setting up
        (20.0, 21.0, None, "cheapest", "enough"),  # the GPU is slower
        (20.0, 1.0, 48.0, "cheapest", "enough"),  # even the upper end is in time
        (20.0, 1.0, 30.0, "cheapest", "uncertain"),  # 40 h at the upper end
        (20.0, 1.0, 10.0, "cheapest", "not-enough"),
        (0.5, 0.1, 0.3, "cheapest", "not-enough"),  # the deadline comes first
    ],
)
def test_the_rules(cpu_h: float, gpu_h: float, deadline_h: float | None, objective: str, verdict: str):
    options = [option("aws", "gpu-datacenter", gpu_h, 0.5), option("here", "cpu", cpu_h, 0.01)]
    result = enough_for_network(options, request(deadline_h, objective))
    assert result is not None
    assert result.verdict == verdict
    figures = result.figures
    assert figures["saved_s"] == pytest.approx((cpu_h - gpu_h) * HOUR)
    assert (figures["time_s"], figures["gpu_usd"]) == (cpu_h * HOUR, 0.5)
    assert bool(cpu_enough(result)) == (verdict != "not-enough")


def test_the_sentence_has_the_figures_and_the_reasons():
    options = [option("here", "cpu", 0.2, 0.002), option("aws", "gpu-datacenter", 0.1, 0.09, launch=0.97)]
    result = enough_for_network(options, request())
    assert result is not None
    assert result.text == (
        "your CPU is enough: 12 min (6 min to 24 min) here for under a cent of electricity; "
        "the fastest GPU, t4 at aws, takes 6 min with setting it up: it saves 6 min for $0.09"
    )
    assert [note.kind for note in result.notes[1:]] == ["gpu-is-mostly-set-up", "gpu-waits-for-launches"]
    text = "\n".join(plain_text(part) for part in cpu_enough(result))
    assert "97% of a step on the GPU is launching kernels" in text


def test_the_gpu_is_one_that_can_be_rented_today_and_trains():
    here = option("here", "cpu", 2.0)
    faster = [
        option("aws", "tpu", 0.1, train_obstacle="needs PyTorch/XLA"),
        option("aws", "gpu-datacenter", 0.1, count=8),
        option("aws", "gpu-datacenter", 0.1, offer=SimpleNamespace(provider="aws", terms="on-demand", stale=True)),
        option("aws", "cpu", 0.1),
    ]
    result = enough_for_network([here, *faster], request())
    assert result is not None
    assert "gpu" not in result.figures
    assert enough_for_network(faster, request()) is None
    assert enough_for_network([option("here", "gpu-consumer", 0.1)], request()) is None


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_waiting_is_that_of_simulated_requests(load: float):
    random = np.random.default_rng(0)
    gaps, wait, total, count = random.exponential(1 / load, 400_000), 0.0, 0.0, 0
    for gap in gaps.tolist():  # Lindley's recursion, service of one second
        wait = max(0.0, wait + 1 - gap)
        total, count = total + wait, count + 1
    assert mean_wait_s(1.0, load=load) == pytest.approx(total / count, rel=0.05)
