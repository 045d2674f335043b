"""`gpuwise measure` and gpuwise.measure(): what they ask for, print and write, with the benchmarks themselves replaced."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from io import StringIO
from types import ModuleType

import pytest
from click.testing import CliRunner
from measure_samples import CPU, INCOMPLETE

import gpuwise
from gpuwise import api
from gpuwise.cli.main import main
from gpuwise.cli.measure_progress import shown
from gpuwise.errors import MissingDependencyError
from gpuwise.report.measure import GROUP_WORDS
from gpuwise.results.measurement import Progress


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the benchmarks were asked for, and progress as they would tell it."""
    calls: list[bool] = []

    def measure(*, quick: bool = False, on_progress=None):
        calls.append(quick)
        for done, row in enumerate((None, *CPU.rows)):
            if on_progress is not None:
                what = "what runs [now]" if row is None else GROUP_WORDS[row.group]
                on_progress(Progress(done, len(CPU.rows), what, row))
        return CPU

    run = ModuleType("gpuwise.measure.run")
    run.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuwise.measure.run", run)
    return calls


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def test_the_function_and_the_package_share_a_name(asked):
    assert gpuwise.measure(quick=True) is CPU
    assert api.measure() is CPU
    assert asked == [True, False]
    assert gpuwise.measure.__path__  # the package


def test_without_pytorch_it_says_what_to_install(asked, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="torch is needed to measure this machine"):
        gpuwise.measure()
    assert not asked


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "scipy" else object())
    with pytest.raises(MissingDependencyError, match="scipy is needed to measure this machine") as raised:
        gpuwise.measure()
    assert raised.value.ways_out == ('pip install "gpuwise[measure]"',)


def test_it_prints_the_report_and_a_line_a_stage(asked):
    result = run("measure", "--quick")
    assert (result.exit_code, asked) == (0, [True])
    assert "peaks of arithmetic" in result.stdout
    answer = result.stderr.splitlines()
    assert len(answer) == len({row.group for row in CPU.rows})
    assert answer[1] == "21/31 · matrix products: 12 measured, best product 4096 x 4096 x 4096 bf16: 348 GFLOP/s"
    assert answer[-1].startswith("31/31 · collectives: 3 measured, best broadcast 64 MiB fp32: 2.1 GB/s")
    assert "whole steps: 1 measured, best MLP fp32: 1.4 µs" in result.stderr


def test_json_is_the_result_and_nothing_else(asked):
    result = run("measure", "--json")
    assert (result.exit_code, result.stderr, asked) == (0, "", [False])
    assert json.loads(result.stdout) == json.loads(json.dumps(CPU.to_dict()))


def test_the_picture_is_printed_or_written(asked, tmp_path):
    printed = run("measure", "--roofline-plot", "-")
    assert printed.exit_code == 0
    assert "+ ridge point" in printed.stdout
    pytest.importorskip("matplotlib")
    written = run("measure", "--json", "--roofline-plot", str(tmp_path / "roofline.svg"))
    assert written.exit_code == 0, written.output
    assert json.loads(written.stdout)["chip"] == "here-cpu"
    assert "roofline written to" in written.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["roofline.svg"]


@pytest.mark.parametrize(
    ("plot", "said"),
    [("roofline.pdf", ".png or .svg"), ("none/roofline.svg", "no such folder"), ("-", "nothing but JSON")],
)
def test_a_picture_that_could_not_be_shown_is_refused_before_any_work(asked, tmp_path, monkeypatch, plot: str, said: str):
    monkeypatch.chdir(tmp_path)
    refused = run("measure", "--json", "--roofline-plot", plot)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert not asked


def test_one_that_was_ended_early_is_reported_and_exits_130(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(api, "measure", lambda **_: INCOMPLETE)
    pytest.importorskip("matplotlib")
    result = run("measure", "--roofline-plot", str(tmp_path / "roofline.png"))
    assert result.exit_code == 130
    assert "ended early" in result.stdout
    assert (tmp_path / "roofline.png").exists()


def test_one_that_was_not_kept_exits_3(asked, monkeypatch):
    monkeypatch.setattr(api, "measure", lambda **_: replace(CPU, calibration=""))
    assert run("measure", "--json").exit_code == 3


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("as_json", [True, False])
def test_on_a_terminal_a_bar_shows_what_runs_and_the_latest_figure(monkeypatch, as_json: bool):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with shown(as_json=as_json) as show:
        assert show is not None
        show(Progress(0, 33, "warming up", None))
        show(Progress(12, 33, f"[bold] product {'of a long name ' * 9}", CPU.rows[12]))
    answer = stream.getvalue()
    assert "12/33" in answer
    assert "[bold] product" in answer  # a name is no markup
    assert "…" in answer
    assert "294 GFLOP/s" in answer or "GFLOP/s" in answer
    assert "Traceback" not in answer
