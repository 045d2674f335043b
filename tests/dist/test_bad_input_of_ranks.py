"""Data, folders and checkpoints that ranks cannot train with: each rank ends with the reason; the folder stays as it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import runs
from ranks import on_ranks

import gpuwise
from gpuwise.errors import GpuwiseError
from gpuwise.runs.lock import RunLock

SETTINGS: dict[str, Any] = {"precision": "fp32", "compile": False, "progress": "silent", "preemption": "none"}


def as_ranks(mesh: str, folder: str, micro_batch: int, steps: int) -> str:
    """How the run of this rank ended: "steps S from F", or the error."""
    runs.as_rank()
    try:
        result = gpuwise.train(runs.job(), mesh=mesh, run=folder, micro_batch=micro_batch, steps=steps, **SETTINGS)
    except GpuwiseError as error:
        return f"{error.exit_code}: {error.what} {' '.join(error.ways_out)}"
    return f"steps {result.steps} from {result.resumed_from}"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"}


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The folder of a run of one process, in steps of six samples."""
    gpuwise.train(runs.job(), run=tmp_path / "run", micro_batch=6, steps=2, **SETTINGS)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("ranks", "micro_batch", "words"),
    [
        (2, 6, "6 samples a step, not 12; continued so it would be another run. the same on this mesh: --micro-batch 3"),
        (4, 2, "6 samples a step, not 8; continued so it would be another run. --mesh dp=1 as before: 4 data-parallel ranks"),
    ],
)
def test_a_run_goes_on_in_steps_of_as_many_samples(ranks: int, micro_batch: int, words: str, begun: Path):
    before = contents(begun)
    answers = on_ranks(ranks, as_ranks, f"dp={ranks}", str(begun), micro_batch, 4)
    assert all(answer.startswith("2: ") and words in answer for answer in answers), answers
    assert contents(begun) == before


def test_the_same_batch_over_two_ranks_goes_on(begun: Path):
    assert on_ranks(2, as_ranks, "dp=2", str(begun), 3, 4) == ["steps 4 from 2"] * 2


def test_data_of_fewer_samples_than_a_step_of_all_ranks(tmp_path: Path):
    answers = on_ranks(2, as_ranks, "dp=2", str(tmp_path / "run"), 80, 2)
    words = "has 128 samples, one optimizer step takes 160 (80 a micro-batch × 1 × 2 ranks)"
    assert all(answer.startswith("2: ") and words in answer for answer in answers), answers
    assert contents(tmp_path) == {}


def test_a_folder_that_another_run_has(begun: Path):
    before = contents(begun)
    with RunLock(begun):
        answers = on_ranks(2, as_ranks, "dp=2", str(begun), 3, 4)
    assert all(answer.startswith("2: ") and "is in use by process" in answer for answer in answers), answers
    assert contents(begun) == before


@pytest.mark.slow
def test_a_checkpoint_without_the_file_of_a_rank(tmp_path: Path):
    """The older checkpoint is taken; without one the run does not begin anew by itself."""
    folder = tmp_path / "run"
    assert on_ranks(2, as_ranks, "dp_shard=2", str(folder), 3, 2) == ["steps 2 from None"] * 2
    shutil.copytree(folder, tmp_path / "older")
    assert on_ranks(2, as_ranks, "dp_shard=2", str(folder), 3, 4) == ["steps 4 from 2"] * 2
    newest, only = folder / "checkpoints/step-00000004", tmp_path / "older/checkpoints/step-00000002"
    for checkpoint in (newest, only):
        (checkpoint / "model.rank-00001.safetensors").unlink()
    assert on_ranks(2, as_ranks, "dp_shard=2", str(folder), 3, 6) == ["steps 6 from 2"] * 2
    before = contents(tmp_path / "older")
    answers = on_ranks(2, as_ranks, "dp_shard=2", str(tmp_path / "older"), 3, 4)
    assert all(answer.startswith("2: ") and "model.rank-00001.safetensors" in answer for answer in answers), answers
    assert contents(tmp_path / "older") == before
