"""Other programs on a run's processors: noticed once, and counted for the comparison with the forecast."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwise.hardware.load import LoadSnapshot, processor_times
from gpuwise.results.training import ForecastCheck
from gpuwise.runtime.run.neighbours import LOOK_EVERY_S, Neighbours

Clock = Callable[[], LoadSnapshot]


def machine(*, processors: int, own: float, others: float, stolen: float = 0.0) -> Clock:
    """Snapshots ten seconds apart, in which these shares of the processors are used."""
    moments = iter(range(0, 1000, 10))

    def now() -> LoadSnapshot:
        at = next(moments)
        whole = at * processors
        return LoadSnapshot(
            float(at),
            float(at),
            processors=processors,
            busy_s=(own + others) * whole,
            own_s=own * whole,
            stolen_s=stolen * whole,
            idle_s=(1 - own - others - stolen) * whole,
        )

    return now


@pytest.fixture(autouse=True)
def passive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")


@pytest.mark.parametrize(
    ("processors", "threads", "own", "others", "stolen", "available", "said"),
    [
        (2, 2, 1.0, 0.0, 0.0, 1.0, ""),
        (2, 2, 0.9, 0.1, 0.0, 1.0, ""),
        (
            2,
            2,
            0.5,
            0.5,
            0.0,
            0.5,
            "other programs use 50 % of this machine's processors, so steps take longer than on a free "
            "one; --threads 1 takes what they leave.",
        ),
        (
            2,
            1,
            0.3,
            0.7,
            0.0,
            0.6,
            "other programs use 70 % of this machine's processors, so steps take longer than on a free one.",
        ),
        (2, 2, 0.6, 0.0, 0.4, 0.6, "other programs use 40 %"),
        (64, 16, 0.25, 0.5, 0.0, 1.0, ""),  # half of the machine is still twice what the run wants
        (64, 64, 0.25, 0.75, 0.0, 0.25, "--threads 16 takes what they leave"),
    ],
)
def test_what_others_take(processors: int, threads: int, own: float, others: float, stolen: float, available: float, said: str):
    clock = machine(processors=processors, own=own, others=others, stolen=stolen)
    seen = Neighbours(threads, clock)
    note = seen.look(10.0)
    assert said in ("" if note is None else note.text)
    assert bool(note) == bool(said)
    assert seen.available() == pytest.approx(available)


def test_it_is_said_once_and_looked_at_now_and_then():
    seen = Neighbours(2, machine(processors=2, own=0.5, others=0.5))
    assert seen.look(LOOK_EVERY_S - 0.1) is None
    assert seen.look(10.0) is not None
    assert seen.look(20.0) is None


def test_threads_that_spin_are_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("KMP_BLOCKTIME", raising=False)
    note = Neighbours(2, machine(processors=2, own=0.5, others=0.5)).look(10.0)
    assert note is not None
    assert "set OMP_WAIT_POLICY=passive before Python starts" in note.text


def test_a_system_that_does_not_tell_is_taken_as_free():
    seen = Neighbours(2, lambda: LoadSnapshot(0.0, 0.0))
    assert seen.look(10.0) is None
    assert seen.available() == 1.0


def test_this_machine_is_read():
    before, after = processor_times(), processor_times()
    assert after.taken_s >= before.taken_s
    assert 0 < Neighbours(1).available() <= 1


def test_a_forecast_is_held_against_what_was_available():
    alone, shared = (ForecastCheck(0.01, 0.008, 0.012, 0.02, available=share) for share in (1.0, 0.5))
    assert not alone.inside
    assert shared.inside
    assert shared.to_dict()["available"] == 0.5
    assert not ForecastCheck(0.01, 0.008, 0.012, 0.03, available=0.5).inside
