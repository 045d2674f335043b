"""gpuwise launch --to notebook: the cells run, session after session, with folders in the place of Colab's and Kaggle's."""

from __future__ import annotations

import ast
import base64
import json
import os
import shutil
import sys
import time
import types
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.launch_samples import DIGITS, Clients, sample_plan

import gpuwise
from gpuwise import api
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.launch import notebook
from gpuwise.launch.notebook_calendar import code, escaped
from gpuwise.launch.notebook_cells import continue_from, last_step, train, write_files
from gpuwise.plan import Plan
from gpuwise.plan.economics.bill import bill
from gpuwise.plan.economics.free_sessions import free_sessions
from gpuwise.plan.economics.terms import HOUR_S, Terms
from gpuwise.report.launch import launch_report
from gpuwise.report.printed import plain_text
from gpuwise.strategy import HostSettings

SOURCES = Path(gpuwise.__file__).parents[1]


@cache
def cpu_plan() -> Plan:
    best: Plan = gpuwise.plan(DIGITS, on="cpu", own=["cpu:1"], epochs=1).best
    return replace(best, steps=12, host=HostSettings(threads=1))  # a busy machine would choose another number


@cache
def free_plan(device: str) -> Plan:
    best: Plan = gpuwise.plan("gpt2", on=device, where="provider=kaggle", tokens="5B").best
    return best


def cells(folder: Path) -> list[str]:
    content = json.loads((folder / "train.ipynb").read_text())
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


class Site:
    """The root of a machine that a site lends for a session, and what outlives it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        self.path, self.sessions = path, 0
        monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
        colab = types.ModuleType("google.colab")
        colab.drive = types.SimpleNamespace(mount=self._mount)
        monkeypatch.setitem(sys.modules, "google.colab", colab)

    def _mount(self, where: str) -> None:
        (self.path / "drive" / "MyDrive").mkdir(parents=True, exist_ok=True)
        Path(where).symlink_to(self.path / "drive")

    def session(self, code: list[str], *, left_s: float | None = None) -> bool:
        """A session on a new machine; what the last cell returns.

        left_s: time that is left to train; None leaves all of it.
        """
        self.sessions += 1
        root = self.path / f"machine-{self.sessions}"
        (root / "content").mkdir(parents=True)
        if (before := self.path / f"machine-{self.sessions - 1}" / "kaggle" / "working").exists():
            shutil.copytree(before, root / "kaggle" / "input" / "my-notebook")
        space: dict[str, object] = {}
        first, *middle, last = code
        assert first.count('ROOT = Path("/")') == 1
        exec(first.replace('ROOT = Path("/")', f"ROOT = Path({str(root)!r})"), space)
        for cell in middle:
            exec(cell, space)
        if left_s is not None:  # the first cell ran that long ago
            space["STARTED"] = time.monotonic() - (space["SESSION_S"] - space["RESERVE_S"]) + left_s  # type: ignore[operator]
        return bool(eval(last, space))


def trained(checkpoints: Path) -> dict[str, bytes]:
    """The tensors after the last step: weights, their average, the optimizer's state, random numbers."""
    return {file.name: file.read_bytes() for file in (checkpoints / "step-00000012").glob("*.safetensors")}


@pytest.mark.parametrize("site", ["colab", pytest.param("kaggle", marks=pytest.mark.slow)])
def test_sessions_that_are_cut_train_as_one_run(site, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    gpuwise.launch(cpu_plan(), to="notebook", output=tmp_path / "out", install="none", set=[f"site={site}"], env=["A=$(b) 'c'"])
    machine = Site(tmp_path, monkeypatch)
    code = cells(tmp_path / "out")
    assert machine.session(code, left_s=0.01) is False  # over as training begins: it saves after its first step
    assert "Saved. Run this notebook again" in capsys.readouterr().out
    assert machine.session(code) is True
    assert "All is trained." in (second := capsys.readouterr().out)
    kept = tmp_path / ("drive/MyDrive/gpuwise" if site == "colab" else "machine-2/kaggle/working") / "digits-job" / "run"
    monkeypatch.chdir(tmp_path)
    whole = gpuwise.train(DIGITS, cpu_plan(), run=tmp_path / "whole", progress="silent")
    assert trained(kept / "checkpoints") == trained(tmp_path / "whole" / "checkpoints")
    assert len(trained(kept / "checkpoints")) >= 3
    assert f"{whole.last_loss:.4g} at the end" in second
    with pytest.raises(SystemExit, match="no time left"):
        machine.session(code, left_s=-1.0)


def test_a_failed_training_ends_the_notebook_with_its_words(tmp_path, capfd):
    with pytest.raises(RuntimeError, match="exit code 3"):
        train(["-c", "print('why'); raise SystemExit(3)"], tmp_path, environment={}, setup=[], until_s=time.monotonic() + 60)
    assert "why" in capfd.readouterr().out


def test_the_training_has_the_environment_the_setup_and_the_rest_of_the_time(tmp_path, capfd):
    show = "import os, sys; print(ascii([os.environ['A'], os.environ['B'], *sys.argv[1:]]))"
    value = "x\n$(touch hacked) '\""
    assert train(
        ["-c", show], tmp_path, environment={"A": value}, setup=["export B='two  words'"], until_s=time.monotonic() + 60
    )
    a, b, flag, limit = ast.literal_eval(capfd.readouterr().out.splitlines()[0])
    assert (a, b, flag) == (value, "two  words", "--time-limit")
    assert 50 < float(limit.removesuffix("s")) <= 60
    assert not list(tmp_path.iterdir())


def test_of_several_saved_runs_the_longest_goes_on(tmp_path):
    inputs, working = tmp_path / "input", tmp_path / "working"
    for name, step in (("a", 5), ("b/c", 40), ("d", 7)):
        run = inputs / name / "digits" / "run"
        (run / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
        (run / "checkpoints" / f"step-{step:08}" / "manifest.json").write_text("{}")
        (run / "run.json").write_text(name)
    (inputs / "other" / "digits" / "run").mkdir(parents=True)
    run = working / "digits" / "run"
    continue_from(inputs, run, working=working)
    assert (last_step(run), (run / "run.json").read_text()) == (40, "b/c")
    (run / "run.json").write_text("mine")  # a cell that is run again changes nothing
    continue_from(inputs, run, working=working)
    assert (run / "run.json").read_text() == "mine"
    continue_from(tmp_path / "nothing", tmp_path / "w" / "x", working=tmp_path / "w")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("hours", [0.5, 12.0, 13.0, 30.0, 31.0, 100.0, 400.0])
@pytest.mark.parametrize("week_h", [20.0, 30.0, 84.0, None])
def test_the_calendar_has_the_hours_of_the_bill(hours, week_h):
    week_s = None if week_h is None else week_h * HOUR_S
    terms = Terms("free", 0.0, setup_s=300.0, save_s=20.0, session_s=12 * HOUR_S, week_s=week_s)
    expected = bill(hours * HOUR_S, terms)
    sessions = list(free_sessions(expected.machine_s, session_s=12 * HOUR_S, **({} if week_s is None else {"week_s": week_s})))
    assert sum(each.length_s for each in sessions) == pytest.approx(expected.machine_s)
    assert sessions[-1].start_s + sessions[-1].length_s == pytest.approx(expected.calendar_s)
    assert all(0 < each.length_s <= 12 * HOUR_S for each in sessions)
    assert [each.number for each in sessions] == list(range(1, len(sessions) + 1))
    for week in {each.week for each in sessions}:
        assert sum(each.length_s for each in sessions if each.week == week) <= (week_h or 168) * HOUR_S + 1e-6


def test_the_notebook_has_the_plans_calendar_with_its_dates(tmp_path):
    plan = free_plan("t4")
    gpuwise.launch(plan, to="notebook", output=tmp_path, set=["start=2026-12-01"])
    heading = "".join(json.loads((tmp_path / "train.ipynb").read_text())["cells"][0]["source"])
    rows = [row.strip("| ").split(" | ") for row in heading.splitlines() if row.startswith("| ") and "2026-12" in row]
    assert plan.machine_hours > 30  # more than a week's
    assert sum(float(row[3]) for row in rows) == pytest.approx(plan.machine_hours, abs=0.05 * len(rows))
    assert [row[:4] for row in rows[:4]] == [
        ["1", "1", "2026-12-01 00:00", "12.0"],
        ["2", "1", "2026-12-01 12:00", "12.0"],
        ["3", "1", "2026-12-02 00:00", "6.0"],
        ["4", "2", "2026-12-08 00:00", rows[3][3]],
    ]
    assert rows[-1][4] == f"{plan.steps:,}"


def test_a_plan_for_another_provider_runs_where_its_device_is(tmp_path):
    plan = replace(free_plan("t4"), offer=sample_plan().offer, count=1)
    result = gpuwise.launch(plan, to="notebook", output=tmp_path)
    assert result.run_folder == "/content/drive/MyDrive/gpuwise/gpt2/run"  # one T4 is at both; Colab comes first
    assert result.time_limit_s == 12 * HOUR_S
    assert result.restarts == 0
    content = json.loads((tmp_path / "train.ipynb").read_text())
    assert (content["metadata"]["accelerator"], content["metadata"]["colab"]["gpuType"]) == ("GPU", "T4")


def test_devices_that_no_site_has_are_refused_with_what_sites_have(tmp_path):
    with pytest.raises(UnsupportedError, match=r"Google Colab has 1 x t4.*Kaggle has 1 x p100-pcie-16gb, 2 x t4") as caught:
        gpuwise.launch(sample_plan(devices=8), to="notebook", output=tmp_path)
    assert "gpuwise plan gpt2 --where provider=kaggle -o plan.toml" in caught.value.ways_out
    with pytest.raises(UnsupportedError, match=r"2 x t4, which no notebook there runs on: Google Colab has"):
        gpuwise.launch(replace(free_plan("t4"), count=2), to="notebook", output=tmp_path, set=["site=colab"])
    with pytest.raises(UnsupportedError, match="Google Colab has no name for h100-80gb-sxm"):
        gpuwise.launch(sample_plan(), to="notebook", output=tmp_path, set=["site=colab"])


@pytest.mark.parametrize(
    ("settings_of_launch", "message"),
    [
        ({"run": "/tmp/run"}, "is lost with the session: Google Colab keeps /content/drive alone"),
        ({"run": "../../../x"}, "is lost with the session"),
        ({"run": "/tmp/run", "set": ["site=kaggle"]}, "Kaggle keeps /kaggle/working alone"),
        ({"set": ["start=2026-02-30"]}, "is no day"),
        ({"set": ["site=paperspace"]}, "site is"),
        ({"set": ["site=kaggle", "user=me"], "name": "abc"}, "Kaggle's names have 5 characters"),
        ({"time_limit": "5s"}, "no time is left to train"),
    ],
)
def test_what_a_session_cannot_do_is_refused(settings_of_launch, message, tmp_path):
    with pytest.raises((InputError, UnsupportedError), match=message):
        gpuwise.launch(sample_plan(cpu=True), to="notebook", output=tmp_path / "out", **settings_of_launch)
    assert not (tmp_path / "out").exists()


def test_kaggles_client_gets_the_metadata_that_it_reads(tmp_path, monkeypatch):
    clients = Clients(tmp_path / "clients", "kaggle")
    monkeypatch.setenv("PATH", f"{clients.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "clients" / "calls"))
    result = gpuwise.launch(
        free_plan("t4"), to="notebook", output=tmp_path / "out", go=True, name="my-gpt2", set=["user=me", "after=me/my-gpt2"]
    )
    [call] = clients.calls()
    assert (call.argv, call.folder, result.exit_code) == (["kernels", "push", "-p", "."], str(tmp_path / "out"), 0)
    metadata = json.loads((tmp_path / "out" / "kernel-metadata.json").read_text())
    assert metadata["id"] == "me/my-gpt2"
    assert metadata["machine_shape"] == "NvidiaTeslaT4"
    assert metadata["kernel_sources"] == ["me/my-gpt2"]
    assert (tmp_path / "out" / metadata["code_file"]).is_file()


def test_where_a_browser_is_the_client_go_says_so(tmp_path):
    with pytest.raises(UnsupportedError, match="a browser begins it"):
        gpuwise.launch(sample_plan(cpu=True), to="notebook", output=tmp_path / "out", go=True)
    assert not (tmp_path / "out").exists()
    result = gpuwise.launch(sample_plan(cpu=True), to="notebook", output=tmp_path / "out")
    assert any("upload train.ipynb at https://colab.research.google.com" in note for note in result.notes)
    assert "start it" not in plain_text(launch_report(result))
    with pytest.raises(UnsupportedError, match="a browser begins it"):
        api.start_launch(tmp_path / "out")


def test_the_file_is_a_notebook_of_format_4_5(tmp_path):
    """The rules of nbformat.v4.5.schema.json; tests/validators has nbformat itself."""
    gpuwise.launch(sample_plan(cpu=True), to="notebook", output=tmp_path)
    content = json.loads((tmp_path / "train.ipynb").read_text())
    assert set(content) == {"nbformat", "nbformat_minor", "metadata", "cells"}
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in content["cells"]:
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"id", "cell_type", "metadata", "source"} | code
        assert all(isinstance(line, str) for line in cell["source"])
    for code in cells(tmp_path):
        compile(code, "cell", "exec")


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NASTY = "'\"\\\n\r\u2028 $(touch hacked) `touch hacked` {0} %% <script>|"


@settings(max_examples=25, deadline=None)
@example(value=NASTY, run=NASTY, name=NASTY)
@given(value=TEXTS, run=TEXTS.filter(str.strip), name=TEXTS.filter(str.strip))
def test_values_reach_the_cells_as_they_are(value, run, name):
    plan = replace(sample_plan(cpu=True), job=name)
    launched = _launch(plan, environment={"A": value}, setup=(value,), files={name: value.encode()}, run_folder=run)
    if launched is None:
        return
    content = json.loads(notebook.files(launched)["train.ipynb"])
    first = "".join(content["cells"][1]["source"])
    space: dict[str, object] = {}
    exec(compile(first, "cell", "exec"), space)
    assert space["ENVIRONMENT"] == {"A": value}
    assert space["SETUP"] == [value]
    assert space["FILES"] == {name: base64.b64encode(value.encode()).decode()}
    assert space["ARGV"][-1] == str(Path("/content/drive/MyDrive/gpuwise/a", run))
    assert "<" not in "".join(content["cells"][0]["source"]).replace("\\<", "")


def _launch(plan, **changes):
    from gpuwise.launch.make import describe

    described = describe(plan, notebook.TARGET, {"name": "a"}, plan_bytes=b"", vendor="").launch
    try:
        return notebook.adapts(replace(described, **changes))[0]
    except InputError:
        return None


def test_files_are_written_into_their_folders(tmp_path):
    write_files({"a/b.py": base64.b64encode(b"\x00x").decode(), "c": ""}, tmp_path)
    assert (tmp_path / "a" / "b.py").read_bytes() == b"\x00x"
    assert (tmp_path / "c").read_bytes() == b""


def test_markdown_of_a_name_is_one_line_without_markup():
    assert code("/runs/my-job_`4`\n") == "`/runs/my-job_ 4  `"
    assert escaped("a|b\n<b>*x*_y_") == r"a\|b \<b\>\*x\*\_y\_"
