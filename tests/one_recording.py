"""one_recording: how a model generates is recorded once for all tests of a process. Import the fixture to use it."""

from __future__ import annotations

import pytest

from gpuwise.job import Job, fingerprint
from gpuwise.serving.generation import Generation
from gpuwise.tracing import generation
from gpuwise.tracing.generation import record_generation

_RECORDED: dict[tuple[object, ...], Generation] = {}


@pytest.fixture(autouse=True)
def one_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(job: Job, **settings: object) -> Generation:
        key = (fingerprint(job), job.generate, job.context_length, *sorted(settings.items()))
        if key not in _RECORDED:
            _RECORDED[key] = record_generation(job, **settings)  # type: ignore[arg-type]
        return _RECORDED[key]

    monkeypatch.setattr(generation, "record_generation", of)
