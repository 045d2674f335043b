"""The GPU session at toy sizes, on the CPU: rows in processes of their own, kept as they come, carried on after an end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu_session import checks_steps, needs  # noqa: E402
from benchmarks.gpu_session.cases import memory_cases, time_cases  # noqa: E402
from benchmarks.gpu_session.checks_steps import compared, overflow  # noqa: E402
from benchmarks.gpu_session.device_memory import live_at_peak  # noqa: E402
from benchmarks.gpu_session.memory import differing  # noqa: E402
from benchmarks.gpu_session.models import classifier  # noqa: E402
from benchmarks.gpu_session.rows import FAILED, MEASURED, OUT_OF_MEMORY, SKIPPED, WRONG, NotHereError, RowFile  # noqa: E402
from benchmarks.gpu_session.server import outcome_of, rows_of  # noqa: E402
from benchmarks.gpu_session.session import Session  # noqa: E402

from gpuwise.errors import MissingDependencyError  # noqa: E402

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def command(part: int, folder: Path, *more: str) -> list[str]:
    program = [sys.executable, "-m", "benchmarks.gpu_session"]
    return [*program, "--part", str(part), "--toy", "--out", str(folder), "--beside", "1", *more]


def session(part: int, folder: Path, *more: str) -> RowFile:
    """Runs a part to its end."""
    done = subprocess.run(command(part, folder, *more), cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return RowFile(folder / f"part-{part}.jsonl")


@contextmanager
def watched(part: int, folder: Path, see: Callable[[subprocess.Popen[bytes], dict[str, Any]], None]) -> Iterator[None]:
    """Runs a part, and shows each new record of its file as it comes."""
    seen = 0
    with subprocess.Popen(command(part, folder), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        ends = False
        while not ends:
            try:
                process.wait(timeout=0.01)
                ends = True
            except subprocess.TimeoutExpired:
                pass
            records = RowFile(folder / f"part-{part}.jsonl").records
            for record in records[seen:]:
                see(process, record)
            seen = len(records)
        yield


@pytest.mark.slow
def test_memory_with_a_row_killed_and_the_session_killed_in_another(tmp_path: Path) -> None:
    killed: Counter[str] = Counter()

    def see(process: subprocess.Popen[bytes], record: dict[str, Any]) -> None:
        if record["record"] != "begun":
            return
        if record["row"].startswith("step/mlp"):
            os.kill(record["pid"], signal.SIGKILL)
            killed[record["row"]] += 1
        elif record["row"].startswith("step/"):
            process.kill()

    with watched(1, tmp_path, see):
        pass
    first = RowFile(tmp_path / "part-1.jsonl")
    [(mlp, times)] = killed.items()
    assert times == 2, "a row whose process is killed is run once more, and no more"
    assert (first.row(mlp) or {})["outcome"] == FAILED
    assert f"{-signal.SIGKILL}" in (first.row(mlp) or {})["said"]

    file = session(1, tmp_path)
    begun = Counter(record["row"] for record in file.records if record["record"] == "begun")
    names = [row.name for row in rows_of("1", "cpu", toy=True)]
    assert {record["row"] for record in file.rows()} == set(names)
    assert file.records[: len(first.records)] == first.records, "what was measured stays as it was"
    assert all(begun[name] == 1 for name in names if name.startswith("forecast/"))
    [interrupted] = [name for name in names if name.startswith("step/") and begun[name] == 2 and name != mlp]
    for name in names:
        if name != mlp:
            assert file.figures(name) is not None, file.row(name)
    forecast, measured = file.figures(interrupted.replace("step/", "forecast/")), file.figures(interrupted)
    assert forecast is not None
    assert measured is not None
    assert 0.9 < forecast["memory"]["peak_allocated_bytes"] / measured["allocated_bytes"] < 1.1
    table = (tmp_path / "part-1.txt").read_text(encoding="utf-8")
    assert all(name.partition("/")[2] in table for name in names)
    assert [record["machine"]["versions"]["torch"] for record in file.records if record["record"] == "session"] == [
        needs.versions()["torch"]
    ] * 2


@pytest.mark.slow
def test_times_are_forecast_first(tmp_path: Path) -> None:
    file = session(2, tmp_path, "--only", "mlp")
    order = [record["row"].partition("/")[0] for record in file.rows()]
    assert order == ["forecast", "time", "again"]
    figures = file.figures("time/mlp, fp32, 64 samples")
    assert figures is not None
    assert figures["step"]["median_s"] > 0
    assert "power" in figures
    assert "mlp, fp32, 64 samples" in (tmp_path / "part-2.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_training_is_checked_and_compared(tmp_path: Path) -> None:
    file = session(3, tmp_path)
    outcomes = {record["row"]: (record["outcome"], record["said"]) for record in file.rows()}
    assert set(outcomes) == {row.name for row in rows_of("3", "cpu", toy=True)}
    assert outcomes.pop("check/batches ahead")[0] == SKIPPED
    assert {outcome for outcome, _ in outcomes.values()} == {MEASURED}, outcomes
    lines = (tmp_path / "part-3.txt").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("gpt") and "by hand, index batches" in line for line in lines)


class NoServer(Session):
    """Tells of two rows, and starts none."""

    @contextmanager
    def _serving(self, scratch: str) -> Iterator[None]:
        yield

    def _heard(self) -> dict[str, Any]:
        return {"rows": [{"name": name, "parallel": False, "seconds": 5, "limit_s": 9} for name in ("step/a", "step/b")]}


def test_a_part_without_time_begins_nothing_and_names_what_is_left(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "part-1.jsonl")
    left = NoServer(file, "1", "cpu", toy=True, only="", budget_s=4, beside=1).run()
    assert left == ["step/a", "step/b"]
    assert [record["record"] for record in file.records] == ["session"]


def test_a_row_that_took_the_session_with_it_twice_has_failed(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "part-1.jsonl")
    for _ in range(2):
        file.add("begun", row="step/a", pid=1)
    assert NoServer(file, "1", "cpu", toy=True, only="a", budget_s=99, beside=1).run() == []
    assert (file.row("step/a") or {})["outcome"] == FAILED


def test_all_parts_have_rows_of_their_own_for_a_gpu() -> None:
    for part, least in (("1", 30), ("2", 20), ("3", 30)):
        rows = rows_of(part, "cuda", toy=False)
        kinds = Counter(row.name.partition("/")[0] for row in rows)
        assert len({row.name for row in rows}) == len(rows)
        assert kinds.most_common(1)[0][1] >= least
    assert len(memory_cases()) >= 30
    assert len(time_cases()) == 20


def test_an_error_is_the_outcome_of_its_row_alone() -> None:
    assert outcome_of(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))[0] == OUT_OF_MEMORY
    assert outcome_of(MissingDependencyError("torchao is not there."))[0] == SKIPPED
    assert outcome_of(NotHereError("needs a CUDA device"))[0] == SKIPPED
    assert outcome_of(AssertionError("3 differ"))[0] == WRONG
    assert outcome_of(ValueError("no"))[0] == FAILED


def test_what_is_missing_is_said_in_a_line_with_the_command() -> None:
    assert needs.missing({"json": "json"}) == ""
    assert needs.missing({"json": "json", "no_such_module": "no-such>=2"}) == (
        'not there: no-such>=2 (python -m pip install "no-such>=2")'
    )


def test_rows_are_read_again_as_they_were_written(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    file.add("begun", row="step/a", pid=1)
    file.add("left", row="step/a")
    file.add("begun", row="step/a", pid=2)
    assert file.attempts("step/a") == 1
    file.add("row", row="step/a", outcome=MEASURED, figures={"bytes": 3})
    again = RowFile(tmp_path / "rows.jsonl")
    assert again.records == file.records
    assert again.figures("step/a") == {"bytes": 3}
    assert [json.loads(line)["record"] for line in file.path.read_text().splitlines()] == ["begun", "left", "begun", "row"]


def test_sizes_at_the_peak_are_of_what_is_alive_there() -> None:
    events = [
        {"action": "alloc", "addr": 1, "size": 512},
        {"action": "alloc", "addr": 2, "size": 1024},
        {"action": "free_requested", "addr": 1, "size": 512},
        {"action": "free_completed", "addr": 1, "size": 512},
        {"action": "alloc", "addr": 1, "size": 4096},
        {"action": "alloc", "addr": 3, "size": 4096},
        {"action": "free_completed", "addr": 2, "size": 1024},
    ]
    sizes, order, alive = live_at_peak(events)
    assert sizes == [512, 1024, 4096, 4096]
    assert order == [0, 1, ~0, 2, 3, ~1]
    assert alive == {4096: 2, 1024: 1}
    assert differing([[4096, 1], [512, 1], [1024, 1]], list(map(list, alive.items()))) == [(4096, 1, 2), (512, 1, 0)]


@pytest.fixture
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks, without the settings that they make for the process they have to themselves."""
    monkeypatch.setattr(checks_steps, "deterministic", lambda: None)


@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("broken", ["update", "gradient"])
def test_the_comparison_with_plain_pytorch_sees_a_step_that_is_not_taken(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpuwise.runtime.build.program as program

    compared(CPU, job=classifier, optimizer="adamw", precision="fp32", optimizer_kernels="foreach")
    if broken == "update":
        monkeypatch.setattr(program.Program, "update", lambda self: self.zero_grad())
    else:
        monkeypatch.setattr(program.Program, "zero_grad", lambda self: None)  # gradients of the step before stay
    with pytest.raises(AssertionError, match=r"apart|step \d+ is"):
        compared(CPU, job=classifier, optimizer="adamw", precision="fp32", optimizer_kernels="foreach")


def test_the_overflow_check_sees_a_step_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpuwise.runtime.build.program as program

    monkeypatch.setattr(program.Program, "update", lambda self: (self.optimizer.step(), self.zero_grad()))
    with pytest.raises(AssertionError):
        overflow(CPU, optimizer="momentum", kernels="for-loop")
