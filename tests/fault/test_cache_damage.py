"""A damaged cache: told in a warning, made again, and never the end of a command."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwise.api import cache_entries
from gpuwise.api.cache import JobCache, JobFacts
from gpuwise.cli.main import main
from gpuwise.errors import UnsupportedError
from gpuwise.strategy import Strategy
from gpuwise.trace import TraceFamily, save
from gpuwise.trace.presets import load_preset

FACTS = JobFacts("tabular-mlp", tokens_per_sample=1, samples_per_epoch=None)
ASKED = Strategy()


@pytest.fixture(autouse=True)
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(cache_entries.OFF, raising=False)
    monkeypatch.setattr(cache_entries, "_STARTED_S", 4e9)  # an edit of a test file while tests run is not what is tested here
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpuwise" / "traces"


def family() -> TraceFamily:
    result = load_preset("tabular-mlp", precision="fp32")
    assert result is not None
    return result


def kept(made: TraceFamily | UnsupportedError | None = None) -> None:
    JobCache("a", {}).store(made or family(), FACTS, ASKED, "accelerator")


def the(pattern: str, traces: Path) -> Path:
    (path,) = traces.glob(pattern)
    return path


def put(path: Path, text: str) -> None:
    """Writes a note as gpuwise would, with its seal where it is an object."""
    with suppress(ValueError, RecursionError):
        if isinstance(content := json.loads(text), dict):
            text = cache_entries.sealed(path.name, content)
    path.write_bytes(text.encode(errors="surrogateescape"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 0xFF  # inside the header: the archive's checksum tells
    path.write_bytes(content)


def of_another_job(path: Path) -> None:
    save(replace(family(), header=replace(family().header, job="another")), path)


def of_another_precision(path: Path) -> None:
    result = load_preset("tabular-mlp", precision="bf16")
    assert result is not None
    save(result, path)


def one_trace(path: Path) -> None:
    save(family().at(), path)


TRACE_DAMAGES: list[Callable[[Path], object]] = [
    truncate,
    flip,
    of_another_job,
    of_another_precision,
    one_trace,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_text("not a trace"),
    lambda path: path.write_bytes(b"\x80\x04cos\nsystem\n(S'echo'\ntR."),
]


@pytest.mark.parametrize("damage", TRACE_DAMAGES)
def test_a_damaged_trace_is_told_and_made_again(damage: Callable[[Path], object], traces: Path):
    kept()
    damage(the("*.npz", traces))
    entries = JobCache("a", {})
    with pytest.warns(UserWarning, match=r"the cached .*\.npz is ignored and made again"):
        assert entries.load(ASKED, "accelerator") is None
    kept()
    again = JobCache("a", {}).load(ASKED, "accelerator")
    assert again is not None
    assert again.header == family().header


NOTES = [
    "",
    "{",
    "[]",
    "null",
    "1e999",
    '"text"',
    "[" * 100_000,
    "\udcff",
    "{}",
    '{"name": "x", "tokens_per_sample": 1, "samples_per_epoch": null}',
    '{"name": 3, "tokens_per_sample": 1, "samples_per_epoch": null, "files": {}}',
    '{"name": "x", "tokens_per_sample": 0, "samples_per_epoch": null, "files": {}}',
    '{"name": "x", "tokens_per_sample": true, "samples_per_epoch": null, "files": {}}',
    '{"name": "x", "tokens_per_sample": 1, "samples_per_epoch": "many", "files": {}}',
    '{"name": "x", "tokens_per_sample": 1, "samples_per_epoch": null, "files": []}',
    '{"name": "x", "tokens_per_sample": 1, "samples_per_epoch": null, "files": {"/a": 1}}',
    '{"name": "x", "tokens_per_sample": 1, "samples_per_epoch": null, "files": {}, "model": "os.system"}',
]


@pytest.mark.parametrize("text", NOTES)
def test_a_damaged_note_is_told_and_made_again(text: str, traces: Path):
    kept()
    put(the("*.json", traces), text)
    with pytest.warns(UserWarning, match=r"the cached .*\.json is ignored and made again"):
        kept()
    assert JobCache("a", {}).facts == FACTS


def test_a_note_that_was_edited_or_copied_is_told_and_made_again(traces: Path):
    kept()
    JobCache("b", {}).store(family(), replace(FACTS, tokens_per_sample=7), ASKED, "accelerator")
    one, other = sorted(traces.glob("*.json"))
    whole = one.read_text()
    for text in (whole.replace("null", "5"), other.read_text()):
        one.write_text(text)
        with pytest.warns(UserWarning, match="was changed, or is a copy of another entry"):
            assert None in (JobCache("a", {}).facts, JobCache("b", {}).facts)


def test_a_trace_under_the_name_of_another_is_told_and_made_again(traces: Path):
    kept()
    longer = replace(family(), header=replace(family().header, sizes={"micro_batch": 5}))
    JobCache("b", {}).store(longer, FACTS, ASKED, "accelerator")
    of_a = JobCache("a", {})._path((ASKED.to_dict(), None), "accelerator")
    (of_b,) = set(traces.glob("*.npz")) - {of_a}
    of_a.write_bytes(of_b.read_bytes())
    with pytest.warns(UserWarning, match=r"npz is ignored and made again: it is a copy of another entry"):
        assert JobCache("a", {}).load(ASKED, "accelerator") is None
    assert JobCache("b", {}).load(ASKED, "accelerator") is not None


def test_a_note_without_end_is_not_read(traces: Path, monkeypatch: pytest.MonkeyPatch):
    kept()
    monkeypatch.setattr(cache_entries, "LARGEST_NOTE_BYTES", 10)
    with pytest.warns(UserWarning, match="too large"):
        assert JobCache("a", {}).facts is None


def test_a_note_that_names_a_device_or_a_pipe_does_not_wait_for_it(traces: Path, tmp_path: Path):
    kept()
    os.mkfifo(tmp_path / "pipe")
    note = the("*.json", traces)
    for path in ("/dev/zero", str(tmp_path / "pipe"), "/\0", str(tmp_path)):
        content = {name: value for name, value in json.loads(note.read_text()).items() if name != "seal"}
        put(note, json.dumps({**content, "files": {path: "0"}}))
        assert JobCache("a", {}).facts is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"error": 1}',
        '{"error": {"code": "x", "message": "", "ways_out": []}}',
        '{"error": {"code": "unsupported", "message": 1, "ways_out": []}}',
        '{"error": {"code": "unsupported", "message": "", "ways_out": 3}}',
    ],
)
def test_a_damaged_refusal_is_told_and_asked_again(text: str, traces: Path):
    kept(UnsupportedError("not here."))
    entries = JobCache("a", {})
    with pytest.raises(UnsupportedError, match="not here"):
        entries.load(ASKED, "accelerator")
    put(the("*.refused.json", traces), text)
    with pytest.warns(UserWarning, match=r"refused\.json is ignored"):
        assert entries.load(ASKED, "accelerator") is None


def test_a_trace_replaces_a_refusal_that_is_no_longer_true(traces: Path):
    kept(UnsupportedError("not here."))
    kept()
    assert JobCache("a", {}).load(ASKED, "accelerator") is not None


def test_a_folder_where_an_entry_should_be_is_told(traces: Path):
    kept()
    path = the("*.npz", traces)
    path.unlink()
    path.mkdir()
    entries = JobCache("a", {})
    with pytest.warns(UserWarning, match="ignored"):
        assert entries.load(ASKED, "accelerator") is None
    with pytest.warns(UserWarning, match="traces cannot be kept"):
        entries.store(family(), FACTS, ASKED, "accelerator")


@pytest.mark.parametrize("trouble", ["no folder", "full"])
def test_a_cache_that_cannot_be_written_is_told_once(
    trouble: str, tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if trouble == "full":
        monkeypatch.setattr(os, "replace", full)
    else:
        (tmp_path / "gpuwise").write_text("a file where the folder should be")
    entries = JobCache("a", {})
    with pytest.warns(UserWarning, match=rf"^traces cannot be kept in {traces} \(.*{cache_entries.OFF}=1"):
        entries.store(family(), FACTS, ASKED, "accelerator")
    for micro_batch in (1, 2):
        entries.store(family(), FACTS, ASKED, "accelerator", micro_batch)  # a warning would be an error here
    assert trouble != "full" or not [path for path in traces.iterdir() if path.is_file()]


@pytest.mark.filterwarnings("always::UserWarning")
def test_the_command_goes_on(tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import torch\nfrom gpuwise import Job\njob = Job(lambda: torch.nn.Linear(4, 2), "
        "lambda n: torch.zeros(n, 4), lambda model, batch: model(batch).sum())"
    )
    os.utime(folder / "train.py", (1e9, 1e9))
    monkeypatch.chdir(folder)

    def run() -> tuple[dict[str, object], str]:
        done = CliRunner().invoke(main, ["forecast", "train.py:job", "--on", "t4", "--micro-batch", "2", "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["memory"], done.stderr

    memory, text = run()
    assert run() == (memory, "") == (memory, text)
    truncate(the("*.npz", traces))
    again, answer = run()
    assert again == memory
    assert answer.startswith("warning: the cached ")
    assert run() == (memory, "")
    for path in traces.iterdir():
        path.write_text("{")
    again, answer = run()
    assert again == memory
    assert "warning" in answer
    assert run() == (memory, "")
