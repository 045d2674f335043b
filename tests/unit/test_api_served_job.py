"""Jobs as plans of serving need them: presets ship, and what is recorded of other named jobs is kept on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_api_cache import refuse, write

from gpuwise.api import cache_entries, served_job
from gpuwise.api.generation_cache import GenerationCache, ServedFacts
from gpuwise.api.serving import serve_plan
from gpuwise.job.presets import preset_job
from gpuwise.serving.forecast import ServingForecast
from gpuwise.serving.generation_file import save_generation
from gpuwise.serving.preset_generations import load_preset_generation
from gpuwise.trace.presets.table import PRESETS

JOB = """from dataclasses import replace
from pathlib import Path
from gpuwise.job.presets import preset_job

job = replace(preset_job("gpt2"), name="mine", context_length=int((Path(__file__).parent / "longest.txt").read_text()))
table = preset_job("tabular-mlp")
"""
LOAD = {"rate": "1/s", "on": "l4", "input": 100, "output": 20}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file and a text that it reads, all from long ago, and an empty cache."""
    monkeypatch.delenv(cache_entries.OFF, raising=False)
    monkeypatch.setattr(cache_entries, "_STARTED_S", 4e9)  # an edit of a test file while tests run is not what is tested here
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder / "mine.py", JOB)
    write(folder / "longest.txt", "512")
    monkeypatch.chdir(folder)
    return folder


def entries(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache" / "gpuwise" / "traces").glob("*.npz"))


def answers(forecast: ServingForecast) -> dict[str, Any]:
    return {**forecast.to_dict(), "search": None}


@pytest.mark.parametrize("name", PRESETS)
def test_facts_of_presets_are_those_of_their_jobs(name: str):
    facts, made = served_job.served_job(name).facts, ServedFacts.of(preset_job(name))
    assert (facts.name, facts.writes_text, facts.context_length) == (made.name, made.writes_text, made.context_length)


@pytest.mark.parametrize("job", ["gpt2", "llama3-70b:8", "bert-base", "resnet50"])
def test_a_plan_of_a_preset_needs_no_torch(job: str):
    """Where PyTorch is not installed, either: it is not looked up, and the precision is the same."""
    name, _, count = job.partition(":")
    on, rate = (f"h100-sxm:{count}" if count else "l4"), "2/s"
    code = (
        "import importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more);"
        f"import sys; from gpuwise import api; plan = api.serve_plan({name!r}, rate={rate!r}, on={on!r});"
        "print('torch' in sys.modules, plan.rows[0].replicas, plan.precision)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "1", "bf16"]


def test_a_plan_made_again_needs_no_job(project: Path, monkeypatch: pytest.MonkeyPatch):
    first = serve_plan("mine.py:job", **LOAD)
    assert len(entries(project)) == 1
    monkeypatch.setattr(served_job, "job_of", refuse)
    assert answers(serve_plan("mine.py:job", **LOAD)) == answers(first)


def test_a_job_object_and_a_preset_have_the_same_plan(project: Path):
    preset, made = serve_plan("gpt2", **LOAD), serve_plan(preset_job("gpt2"), **LOAD)
    assert answers(preset) == answers(made)
    assert entries(project) == []


def test_an_edit_of_a_file_that_the_job_reads_is_noticed(project: Path):
    assert served_job.served_job("mine.py:job").context_length == 512
    assert GenerationCache("mine.py:job", {}).facts is not None
    write(project / "longest.txt", "256", time_s=1_500_000_100)
    assert GenerationCache("mine.py:job", {}).facts is None


def test_facts_of_a_job_with_forward_passes_are_kept(project: Path, monkeypatch: pytest.MonkeyPatch):
    load = {"rate": "10/s", "on": "l4"}
    first = serve_plan("mine.py:table", **load)
    monkeypatch.setattr(served_job, "job_of", refuse)
    assert answers(serve_plan("mine.py:table", **load)) == answers(first)


def test_a_damaged_entry_is_made_again(project: Path):
    first = serve_plan("mine.py:job", **LOAD)
    (path,) = entries(project)
    other = load_preset_generation("gpt2", target="accelerator", precision="bf16")
    assert other is not None
    for damage in (lambda: path.write_bytes(b"damaged"), lambda: save_generation(other, path)):
        damage()
        with pytest.warns(UserWarning, match="is ignored and made again"):
            assert answers(serve_plan("mine.py:job", **LOAD)) == answers(first)


@pytest.mark.parametrize(
    "note",
    [
        '{"name": 3',
        '{"files": {}}',
        '{"files": {}, "name": "a", "writes_text": 1, "context_length": 1, "assumption_notes": []}',
    ],
)
def test_a_damaged_note_is_made_again(note: str, project: Path):
    entry = GenerationCache("mine.py:job", {})
    assert entry.keep_facts(ServedFacts("mine", True, 512))
    (path,) = (project.parent / "cache" / "gpuwise" / "traces").glob("*.json")
    path.write_text(note)
    with pytest.warns(UserWarning, match="is ignored and made again"):
        assert GenerationCache("mine.py:job", {}).facts is None


def test_a_switched_off_cache_keeps_nothing(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(cache_entries.OFF, "1")
    assert served_job.served_job("mine.py:job").context_length == 512
    assert not (project.parent / "cache" / "gpuwise" / "traces").exists()
