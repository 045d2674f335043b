"""Tracing that takes a while is shown on stderr, and quick tracing is not."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwise.api.progress import tracing, tracing_shown_by
from gpuwise.cli import tracing_progress
from gpuwise.cli.main import main
from gpuwise.strategy import Strategy

JOB = """
import torch
from torch import nn
from gpuwise import Job
job = Job(model=lambda: nn.Linear(4, 2), batch=lambda n: {"x": torch.randn(n, 4)},
          loss=lambda m, b: m(b["x"]).mean(), name="net")
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Passed:
    """An event that is set after so many waits."""

    def __init__(self, waits: int):
        self.left = waits

    def wait(self, seconds: float) -> bool:
        self.left -= 1
        return self.left < 0


def test_every_tracing_of_a_job_is_shown(tmp_path: Path) -> None:
    from gpuwise.api.traced import JobSource
    from gpuwise.job import resolve

    (tmp_path / "net.py").write_text(JOB, encoding="utf-8")
    job, seen = resolve(f"{tmp_path}/net.py:job"), []

    @contextmanager
    def display(name, strategy):
        seen.append((name, strategy.precision))
        yield
        seen.append("done")

    source = JobSource(job, "", {})
    with tracing_shown_by(display):
        source.find(Strategy(), "cpu")
    source.step(Strategy(), "cpu")
    assert seen == [("net", "fp32"), "done"]


def test_without_a_display_nothing_is_shown() -> None:
    with tracing("net", Strategy()):
        pass


@pytest.mark.parametrize(("waits", "shown"), [(0, ""), (1, "tracing the step of net (fp32, micro-batch 1) ...\n")])
def test_elsewhere_it_is_one_line_after_a_while(waits: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    tracing_progress._watch(tracing_progress.words("net", Strategy()), Passed(waits))
    assert stream.getvalue() == shown


def test_a_terminal_shows_the_seconds_and_keeps_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    tracing_progress._watch("tracing net", Passed(3))
    assert stream.getvalue().count("\rtracing net: ") == 2
    assert stream.getvalue().endswith("\r\x1b[2K")


def test_a_verb_with_a_job_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def shown(name, strategy):
        seen.append(name)
        yield

    monkeypatch.setattr(tracing_progress, "shown", shown)
    (tmp_path / "net.py").write_text(JOB, encoding="utf-8")
    result = CliRunner().invoke(main, ["forecast", f"{tmp_path}/net.py:job", "--on", "rtx-4090", "--json"])
    assert result.exit_code == 0, result.output
    assert "net" in seen
