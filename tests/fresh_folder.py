"""A folder in which gpuwise has measured and kept nothing: for tests of whole commands."""

from __future__ import annotations

from pathlib import Path

import pytest


def fresh_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, jobs: str) -> Path:
    """Makes it the current folder, with its own configuration, state and cache, and a jobs.py. Returns it."""
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "GPUWISE_CONFIG_DIR"):
        monkeypatch.setenv(name, str(folder / name.lower()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(folder)
    (folder / "jobs.py").write_text(jobs)
    return folder
