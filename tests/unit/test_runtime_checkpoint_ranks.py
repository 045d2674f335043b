"""Checkpoints that several ranks write together: who writes what, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.fault.checkpoint_faults import Quick, Refuses, emptied, flipped, same, truncated
from tests.unit.rank_checkpoints import CutSaver, cut, latest_of, numbered, on_threads, save_cut

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint import Checkpoint, CheckpointStore, Saved, SaveFailure
from gpuwise.runtime.checkpoint.pieces import SavedTensor
from gpuwise.runtime.parallel.regions import Region

W = "model/weight"


def state(rank: int = 0) -> dict[str, object]:
    return {
        "model": {"weight": numbered(5, 3), "bias": numbered(3)},
        "run": {"position": 7},
        "random": {"torch": torch.full((4,), rank, dtype=torch.uint8), "python": (3, rank)},
    }


def halves() -> list[object]:
    """Rows 0 to 2 on rank 0, 3 and 4 on rank 1."""
    regions = [Region((0, 0), (3, 3)), Region((3, 0), (2, 3))]
    return [cut(state(rank), {W: region}) for rank, region in enumerate(regions)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    outcomes = save_cut(tmp_path, halves())
    assert all(isinstance(outcome, Saved) for outcome in outcomes), outcomes
    return tmp_path / "step-00000001"


def test_each_rank_writes_its_part_and_the_first_what_all_have(saved: Path):
    assert sorted(path.name for path in saved.iterdir()) == [
        "manifest.json",
        "model.rank-00000.safetensors",
        "model.rank-00001.safetensors",
        "random.rank-00000.safetensors",
        "random.rank-00001.safetensors",
        "state.json",
        "state.rank-00000.json",
        "state.rank-00001.json",
    ]
    with safe_open(saved / "model.rank-00001.safetensors", framework="pt") as file:
        assert list(file.keys()) == ["weight"]
        assert file.get_slice("weight").get_shape() == [2, 3]
        assert json.loads(file.metadata()["shards"]) == {"weight": [[5, 3], [3, 0]]}


def test_one_process_reads_all_of_it(saved: Path):
    checkpoint = CheckpointStore(saved.parent).latest()
    assert checkpoint is not None
    assert same(checkpoint.load(), state(0))
    assert (checkpoint.manifest.ranks, checkpoint.manifest.mesh) == (2, "dp_shard=2")
    assert checkpoint.meta == {"seed": 1}


def test_a_rank_reads_what_it_needs_and_its_own_values(saved: Path):
    tree = Checkpoint(saved, 1).open(rank=1)
    weight = tree["model"]["weight"]
    assert isinstance(weight, SavedTensor)
    assert (weight.shape, weight.dtype) == ((5, 3), torch.float32)
    assert weight.region(Region((2, 1), (2, 2))).equal(numbered(5, 3)[2:4, 1:3])
    assert weight.region(Region((0, 0), (0, 3))).shape == (0, 3)
    assert tree["random"]["python"] == (3, 1)
    assert tree["random"]["torch"].tolist() == [1] * 4
    assert "random" not in Checkpoint(saved, 1).open(rank=2)


def test_what_a_rank_reads_from_its_own_file_opens_no_other(tmp_path: Path):
    save_cut(tmp_path, [cut({"model": {"weight": numbered(4, 2)}}, {W: Region((2 * rank, 0), (2, 2))}) for rank in range(2)])
    saved = tmp_path / "step-00000001"
    weight = Checkpoint(saved, 1).open(rank=1)["model"]["weight"]
    (saved / "model.rank-00000.safetensors").unlink()
    assert weight.region(Region((2, 0), (2, 2))).equal(numbered(4, 2)[2:])
    with pytest.raises(FileFormatError, match=r"model.rank-00000.safetensors"):
        weight.whole()


def test_names_that_only_some_ranks_have_are_all_saved(tmp_path: Path):
    """As in a pipeline: rank 0 has the weight, ranks 1 and 2 the bias, each whole."""
    states = [cut(state(), {"model/bias": None}), *(cut(state(), {W: None}) for _ in range(2))]
    outcomes = save_cut(tmp_path, states)
    assert all(isinstance(outcome, Saved) for outcome in outcomes), outcomes
    names = {path.name for path in (tmp_path / "step-00000001").iterdir()}
    assert "model.rank-00001.safetensors" in names
    assert "model.rank-00002.safetensors" not in names
    latest = CheckpointStore(tmp_path).latest()
    assert latest is not None
    assert same(latest.load()["model"], state()["model"])


@pytest.mark.parametrize("damage", [Path.unlink, truncated, emptied, flipped])
@pytest.mark.parametrize("name", ["model.rank-00001.safetensors", "state.rank-00001.json", "random.rank-00000.safetensors"])
def test_a_damaged_file_of_one_rank_is_named_on_every_rank_and_the_older_one_used(damage, name, tmp_path: Path):
    for step in (1, 2):
        save_cut(tmp_path, halves(), step=step)
    damage(tmp_path / "step-00000002" / name)
    for ranks in (1, 2, 3):
        assert [checkpoint.step for checkpoint in latest_of(tmp_path, ranks)] == [1] * ranks
    damage(tmp_path / "step-00000001" / name) if damage is not Path.unlink else (tmp_path / "step-00000001" / name).unlink()
    with pytest.raises(FileFormatError, match=name):
        latest_of(tmp_path, 2)


def test_a_disk_that_is_full_on_one_rank_costs_that_checkpoint_on_all(tmp_path: Path):
    save_cut(tmp_path, halves())
    before = sorted(tmp_path.rglob("*"))
    for at in range(1, 4):
        outcomes = save_cut(tmp_path, halves(), step=2, files=[Quick(), Refuses(at, kinds=("write",))])
        for outcome in outcomes:
            assert isinstance(outcome, SaveFailure)
            assert "rank 1 on here: the disk is full" in outcome.error
            assert "The older ones are still there." in outcome.error
        assert sorted(tmp_path.rglob("*")) == before


def test_a_state_that_one_rank_cannot_save_costs_that_checkpoint_on_all(tmp_path: Path):
    outcomes = save_cut(tmp_path, [halves()[0], {"model": {"weight": object()}}])
    for outcome in outcomes:
        assert isinstance(outcome, SaveFailure)
        assert "rank 1 on here: model.weight is a object" in outcome.error
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_no_rank_has_is_noticed_before_anything_is_written(tmp_path: Path):
    outcomes = save_cut(tmp_path, [halves()[0], cut(state(1), {W: Region((3, 0), (1, 3))})])
    for outcome in outcomes:
        assert isinstance(outcome, SaveFailure)
        assert "model/weight is not whole" in outcome.error
    assert list(tmp_path.iterdir()) == []


def test_later_saves_copy_only_what_a_rank_writes_and_a_change_is_noticed(tmp_path: Path):
    def saves(ranks):
        saver = CutSaver(CheckpointStore(tmp_path, files=Quick()), ranks, mesh="dp_shard=2")
        outcomes, rank = [], ranks.rank
        for step in (1, 2):
            saver.begin(step, halves()[rank])
            outcomes += saver.finish()
        sizes = {part: list(tensors) for part, tensors in saver._pack(halves()[rank]).tensors.items()}
        # Rank 0 no longer has the bias, which it alone has written: rank 1 has not copied it.
        changed = cut(state(), {W: Region((0, 0), (3, 3)), "model/bias": None}) if rank == 0 else halves()[1]
        for step in (3, 4):
            saver.begin(step, changed)
            outcomes += saver.finish()
        return sizes, outcomes

    (sizes0, outcomes), (sizes1, _) = on_threads(2, saves)
    assert sizes0["model"] == ["weight", "bias"]
    assert sizes1["model"] == ["weight"]
    assert [type(outcome) for outcome in outcomes] == [Saved, Saved, SaveFailure, Saved]
    assert "has changed" in outcomes[2].error
    latest = CheckpointStore(tmp_path).latest()
    assert latest is not None
    assert latest.step == 4
    assert same(dict(sorted(latest.load()["model"].items())), dict(sorted(state()["model"].items())))


def test_leftovers_of_a_save_that_died_go_when_the_next_run_starts(tmp_path: Path):
    (tmp_path / ".step-00000009.4711.tmp").mkdir(parents=True)
    (tmp_path / ".step-00000009.4711.tmp" / "model.rank-00003.safetensors").write_bytes(b"half")
    save_cut(tmp_path, halves())
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_nothing_of_a_save_stays_in_the_store_of_the_ranks(tmp_path: Path):
    stores = []

    def saves(ranks):
        stores.append(ranks._store)
        saver = CutSaver(CheckpointStore(tmp_path, files=Quick()), ranks, mesh="dp_shard=2")
        for step in (1, 2, 3):
            saver.save_now(step, halves()[ranks.rank])
            counts.append(stores[0].num_keys())

    counts: list[int] = []
    on_threads(2, saves)
    assert max(counts) <= 2 * 9
