"""Traces kept on disk: what finds them again, what makes them stale, and what is never kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gpuwise.job
import gpuwise.tracing
from gpuwise import api
from gpuwise.api import cache_entries, cache_folder
from gpuwise.api.cache import JobCache, JobFacts
from gpuwise.api.files_read import FilesRead, state_of
from gpuwise.api.source import StepSource
from gpuwise.api.sources import source_of
from gpuwise.api.traced import NamedSource
from gpuwise.errors import JobError, UnsupportedError
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace, TraceFamily
from gpuwise.trace.presets import load_preset

FACTS = JobFacts("tabular-mlp", tokens_per_sample=1, samples_per_epoch=None)
JOB = """import json
from pathlib import Path
import torch
from gpuwise import Job
import neighbour_{unique}

width = json.loads((Path(__file__).parent / "config.json").read_text())["width"]
hidden = neighbour_{unique}.HIDDEN
job = Job(lambda: torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, 3)),
          lambda n: {{"x": torch.zeros(n, width)}}, lambda model, batch: model(batch["x"]).sum(), samples=77)
"""


@pytest.fixture(autouse=True)
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, switched on."""
    monkeypatch.delenv(cache_entries.OFF, raising=False)
    monkeypatch.setattr(cache_entries, "_STARTED_S", 4e9)  # an edit of a test file while tests run is not what is tested here
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpuwise" / "traces"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file, a module beside it and a configuration that it reads, all from long ago."""
    folder = tmp_path / "project"
    folder.mkdir()
    unique = tmp_path.name.replace("-", "_")  # modules stay loaded from one test to the next
    write(folder / "train.py", JOB.format(unique=unique))
    write(folder / f"neighbour_{unique}.py", "HIDDEN = 8")
    write(folder / "config.json", '{"width": 16}')
    monkeypatch.chdir(folder)
    return folder


def write(path: Path, text: str, *, time_s: float = 1_500_000_000) -> None:
    path.write_text(text)
    os.utime(path, (time_s, time_s))


def family() -> TraceFamily:
    result = load_preset("tabular-mlp", precision="fp32")
    assert result is not None
    return result


def refuse(*args: Any, **more: Any) -> Any:
    raise AssertionError("the job was made again")


def trace_of(source: StepSource, strategy: Strategy) -> Trace:
    return source.step_traces().trace(strategy)


def known(argument: str = "train.py:job", **sizes: int) -> bool:
    result = JobCache.of(argument, dict(sizes))
    return result is not None and result.facts is not None


@pytest.mark.parametrize(
    "ask",
    [
        lambda: api.fit("train.py:job", on="t4"),
        lambda: api.forecast("train.py:job", on="a100-40gb-pcie", micro_batch=3, precision="tf32"),
        lambda: api.compare("train.py:job", on="t4,cpu", micro_batch=4),
        lambda: api.plan("train.py:job", on="t4", epochs=10),
    ],
    ids=["fit", "forecast", "compare", "plan"],
)
def test_a_question_asked_again_needs_no_job(ask: Callable[[], Any], project: Path, monkeypatch: pytest.MonkeyPatch):
    first = ask()
    monkeypatch.setattr(gpuwise.job, "resolve", refuse)
    again = ask()
    assert {**again.to_dict(), "search": None} == {**first.to_dict(), "search": None}


@pytest.mark.parametrize(
    "ask",
    [
        "api.forecast('train.py:job', on='t4', micro_batch=3).memory",
        "api.fit('train.py:job', on='t4').rows[0].memory",
    ],
    ids=["forecast", "fit"],
)
def test_a_fresh_process_answers_without_pytorch(ask: str, project: Path):
    code = f"import sys; from gpuwise import api;memory = {ask}; print('torch' in sys.modules, memory.peak_allocated_bytes)"
    answers = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert [answer[0] for answer in answers] == ["True", "False"]
    assert answers[0][1] == answers[1][1]


@pytest.mark.parametrize(
    "ask",
    [
        "api.fit('gpt2', on='rtx-4090')",
        "api.forecast('llama3-8b', on='h100-80gb-sxm', optimizer='adamw-8bit')",
        "api.plan('gpt2', on='rtx-4090', optimizer='sgd', samples=1000)",
    ],
    ids=["fit", "forecast", "plan"],
)
def test_a_preset_is_answered_without_pytorch(ask: str):
    code = f"import sys; from gpuwise import api; {ask}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_what_is_kept_tells_of_the_job_what_a_source_tells(project: Path):
    first = source_of("train.py:job")
    trace_of(first, Strategy(micro_batch=2))
    again = source_of("train.py:job")
    assert isinstance(again, NamedSource)
    assert again.name == "train:job"
    assert (again.samples_per_epoch, again.tokens_per_sample) == (77, 1)
    assert again(Strategy()).header == first(Strategy()).header
    assert "live" in vars(first)
    assert again.facts == first.facts


@pytest.mark.parametrize("changed", ["train.py", "neighbour", "config.json"])
def test_a_change_of_any_file_the_job_read_makes_it_stale(changed: str, project: Path):
    trace_of(source_of("train.py:job"), Strategy())
    assert known()
    (path,) = project.glob(f"{changed}*")
    write(path, path.read_text() + " ")
    assert not known()
    write(path, path.read_text()[:-1], time_s=1_400_000_000)  # content counts, not the time
    assert known()
    path.unlink()
    assert not known()


def test_the_parts_of_gpuwise_that_make_a_recording_exist():
    home = Path(gpuwise.tracing.__file__).parents[1]
    assert all(list((home / name).rglob("*.py")) for name in cache_entries.RECORDING)
    assert "notes" in cache_entries.RECORDING  # a trace keeps the notes of its recording


def test_a_job_is_found_by_all_that_was_asked(project: Path, monkeypatch: pytest.MonkeyPatch):
    trace_of(source_of("train.py:job"), Strategy())
    assert not known("train.py:other")
    assert not known(seq_len=8)
    monkeypatch.setattr(cache_entries, "_environment", lambda recording: "another version of PyTorch")
    assert not known()


def test_a_change_of_the_installed_packages_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    look = partial(cache_entries._environment.__wrapped__, cache_entries.RECORDING)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = look()
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    after = look()
    assert len({before, after}) == 2
    (tmp_path / "torch-2.13.0.dist-info").rename(tmp_path / "torch-2.14.0.dist-info")
    assert look() not in (before, after)


def test_one_variant_does_not_answer_for_another():
    entries = JobCache("a", {})
    entries.store(family(), FACTS, Strategy(), "accelerator")
    assert entries.load(Strategy(), "accelerator") is not None
    for variant in (Strategy("bf16"), Strategy(recompute="full"), Strategy(offload="optimizer"), Strategy(adapter="lora")):
        assert entries.load(variant, "accelerator") is None
    assert entries.load(Strategy(), "cpu") is None
    assert entries.load(Strategy(), "accelerator", micro_batch=1) is None


def test_a_cpu_trace_answers_for_one_instruction_set(monkeypatch: pytest.MonkeyPatch):
    entries = JobCache("preset:tabular-mlp", {})
    family = load_preset("tabular-mlp", precision="fp32", recompute="none", mode="train")
    assert family is not None
    for target in ("cpu", "accelerator"):
        entries.store(family, FACTS, Strategy("fp32").variant, target)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert entries.load(Strategy("fp32").variant, "cpu") is None
    assert entries.load(Strategy("fp32").variant, "accelerator") is not None


def test_a_family_answers_for_one_step_and_not_the_other_way_round(project: Path, monkeypatch: pytest.MonkeyPatch):
    one = trace_of(source_of("train.py:job"), Strategy(micro_batch=1))
    assert source_of("train.py:job")(Strategy()).axes
    monkeypatch.setattr(gpuwise.job, "resolve", refuse)
    for micro_batch in (1, 5):
        assert trace_of(source_of("train.py:job"), Strategy(micro_batch=micro_batch, accumulation=2)).samples == 2 * micro_batch
    assert trace_of(source_of("train.py:job"), Strategy(micro_batch=1)).header.sizes == one.header.sizes


def test_a_refusal_is_kept_too(project: Path, monkeypatch: pytest.MonkeyPatch):
    def unsupported(*args: Any, **more: Any) -> Any:
        raise UnsupportedError("no such thing.", ["another"])

    def broken(*args: Any, **more: Any) -> Any:
        raise JobError("not today.")

    for raised, precision in ((unsupported, "fp32"), (broken, "bf16")):
        with monkeypatch.context() as patch:
            patch.setattr(gpuwise.tracing, "trace_family", raised)
            with pytest.raises((UnsupportedError, JobError)):
                source_of("train.py:job")(Strategy(precision))
    with pytest.raises(UnsupportedError, match="no such thing") as caught:
        source_of("train.py:job")(Strategy())
    assert caught.value.ways_out == ("another",)
    assert source_of("train.py:job")(Strategy("bf16"))


def test_nothing_is_kept_of_a_job_object_nor_when_switched_off(project: Path, traces: Path, monkeypatch: pytest.MonkeyPatch):
    job = gpuwise.job.resolve("train.py:job")
    source_of(job)(Strategy())
    monkeypatch.setenv(cache_entries.OFF, "1")
    trace_of(source_of("train.py:job"), Strategy())
    assert not traces.exists()


def test_nothing_is_kept_of_a_file_changed_since_the_process_began(project: Path, traces: Path):
    os.utime(project / "config.json", (5e9, 5e9))
    trace_of(source_of("train.py:job"), Strategy())
    assert not traces.exists()


def test_a_preset_is_kept_where_its_recording_does_not_answer(traces: Path, monkeypatch: pytest.MonkeyPatch):
    requested = Strategy(adapter="lora", micro_batch=2)
    first = trace_of(source_of("tabular-mlp"), requested)
    assert any(traces.iterdir())
    monkeypatch.setattr(gpuwise.job, "resolve", refuse)
    assert trace_of(source_of("tabular-mlp"), requested).header == first.header


def test_the_cache_stays_inside_its_limit(traces: Path, monkeypatch: pytest.MonkeyPatch):
    def size_bytes() -> int:
        return sum(path.stat().st_size for path in traces.iterdir())

    entries = JobCache("a", {})
    entries.store(family(), FACTS, Strategy(), "accelerator")
    first = set(traces.glob("*.npz"))
    for path in traces.iterdir():
        os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(cache_folder, "LIMIT_BYTES", size_bytes())
    assert entries.load(Strategy(), "accelerator") is not None  # used now: it is not the oldest any more
    entries.store(family(), FACTS, Strategy(), "cpu")
    assert first <= set(traces.glob("*.npz"))
    assert size_bytes() <= cache_folder.LIMIT_BYTES
    for micro_batch in range(1, 5):
        entries.store(family(), FACTS, Strategy(), "cpu", micro_batch)
        assert size_bytes() <= cache_folder.LIMIT_BYTES


def test_writers_and_readers_do_not_meet_halves(traces: Path):
    def write_and_read(_: int) -> bool:
        entries = JobCache("a", {})
        entries.store(family(), FACTS, Strategy(), "accelerator")
        result = JobCache("a", {}).load(Strategy(), "accelerator")
        return result is not None and result.header == family().header

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write_and_read, range(40)))
    assert not [path for path in traces.iterdir() if path.name.startswith(".")]


def test_an_entry_is_data_and_private_to_the_user(traces: Path):
    JobCache("a", {}).store(family(), FACTS, Strategy(), "accelerator")
    assert traces.stat().st_mode & 0o077 == 0
    (note,) = traces.glob("*.json")
    assert set(json.loads(note.read_text())) == {
        *("name", "tokens_per_sample", "samples_per_epoch", "own_step", "clips", "averages", "files", "seal")
    }


def test_the_place_follows_the_convention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert cache_folder.folder() == tmp_path / "cache" / "gpuwise" / "traces"
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):  # the convention says to ignore a relative one
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder.folder() == tmp_path / ".cache" / "gpuwise" / "traces"


def test_files_opened_inside_the_context_are_noted(tmp_path: Path):
    write(tmp_path / "a.txt", "a")
    write(tmp_path / "b.txt", "b")
    read = FilesRead()
    with read:
        (tmp_path / "a.txt").read_text()
        (tmp_path / "new.txt").write_text("")
    (tmp_path / "b.txt").read_text()
    result = read.states(unchanged_since_s=1_600_000_000)
    assert result[str(tmp_path / "a.txt")] == state_of(str(tmp_path / "a.txt"))
    assert str(tmp_path / "b.txt") not in result
    assert str(tmp_path / "new.txt") not in result


def test_the_state_of_a_large_file_is_its_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "data.bin", "0123456789")
    small = state_of(str(tmp_path / "data.bin"))
    monkeypatch.setattr("gpuwise.api.files_read.LARGEST_HASHED_BYTES", 5)
    large = state_of(str(tmp_path / "data.bin"))
    assert small != large == "10 bytes at 1500000000000000000"
    assert state_of(str(tmp_path)) is None
    os.mkfifo(tmp_path / "pipe")
    assert state_of(str(tmp_path / "pipe")) is None


def test_a_trace_that_another_optimizer_was_asked_of_is_named_so():
    entries = JobCache("a", {})
    requested = Strategy(optimizer="sgd")
    made = replace(family(), header=replace(family().header, strategy=requested))
    entries.store(made, FACTS, requested, "accelerator")
    result = entries.load(requested, "accelerator")
    assert result is not None
    assert result.header.strategy.optimizer == "sgd"
