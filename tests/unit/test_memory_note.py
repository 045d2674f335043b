"""What a forecast on this machine's CPU says where a step needs more memory than programs leave it now."""

from __future__ import annotations

import pytest

import gpuwise
from gpuwise.api import shared_cpu
from gpuwise.hardware.detect.memory import Memory


@pytest.mark.parametrize(("free_bytes", "notes"), [(2**30, 1), (2**40, 0), (None, 0)])
def test_a_step_that_needs_more_than_is_free_says_so(free_bytes: int | None, notes: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_cpu, "detect_memory", lambda: Memory(2**41, free_bytes))
    forecast = gpuwise.forecast("gpt2", on="here", micro_batch=1, seq_len=128, precision="fp32")
    assert forecast.memory.fits
    assert forecast.memory.device_bytes > 2**30
    fits = gpuwise.fit("gpt2", on="here", micro_batch=1, seq_len=128, precision="fp32")
    for result in (forecast, fits):
        assert [note.kind for note in result.assumption_notes].count("more-than-is-free") == notes


def test_other_devices_are_not_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_cpu, "detect_memory", lambda: Memory(2**41, 1))
    notes = gpuwise.forecast("gpt2", on="t4", micro_batch=1, seq_len=128).assumption_notes
    assert not any(note.kind == "more-than-is-free" for note in notes)
