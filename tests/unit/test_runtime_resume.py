"""A run that was stopped and continued is the run that never was: every later loss has the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
import torch
from tests.training_samples import STRATEGY, Convolving, Drawing, layers, loss, pictures, points, toy, train, training
from torch import nn
from torch.utils.data import IterableDataset

from gpuwise.errors import FileFormatError, InputError, JobError
from gpuwise.job import Job
from gpuwise.runs.state_file import run_status
from gpuwise.runtime.run.continuing import check_continues
from gpuwise.runtime.run.folder import RunIdentity
from gpuwise.strategy import Mesh, Strategy

STEPS, STOP = 9, 4


def contents(folder: Path) -> dict[Path, bytes]:
    """All that a run rests on. Its lock and state.json tell of every start, refused ones included."""
    starts = (folder / "lock", folder / "state.json")
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path not in starts}


class Stream(IterableDataset):
    def __iter__(self):
        return iter({"x": torch.randn(4) + i, "y": torch.tensor(i % 2)} for i in range(50))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2)) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def dropping(**changes) -> Job:
    return toy(model=layers, **changes)


def convolving(**changes) -> Job:
    return Job(model=Convolving, batch=pictures, loss=loss, data=lambda: pictures(60), name="pictures", **changes)


CASES = {
    "dropout": (dropping(), STRATEGY),
    "clip, average, cosine": (dropping(clip_norm=0.1, ema_decay=0.9, schedule="cosine", warmup_steps=3), STRATEGY),
    "wsd": (toy(schedule="wsd"), STRATEGY),
    "random data": (toy(data=Drawing, samples=50), STRATEGY),
    "a stream": (toy(data=Stream, samples=50), STRATEGY),
    "batch norm, channels last": (convolving(), Strategy(micro_batch=8, channels_last=True)),
    "mixed precision": (convolving(), Strategy(micro_batch=8, precision="amp-bf16")),
    "fp16 with a scaler": (toy(), Strategy(micro_batch=8, precision="amp-fp16")),
    "bf16": (toy(), Strategy(micro_batch=8, precision="bf16")),
    "recompute": (toy(model=Blocks), Strategy(micro_batch=8, recompute="full")),
    "kept gradients": (toy(), Strategy(micro_batch=8, keep_gradients=True)),
    "in backward": (dropping(), Strategy(micro_batch=8, optimizer_in_backward=True)),
    **{name: (dropping(), Strategy(micro_batch=8, optimizer=name)) for name in ("sgd", "momentum", "adam", "adafactor")},
    "own optimizer": (dropping(optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.01)), STRATEGY),
}


def losses(job: Job, strategy: Strategy, folder: Path, *, until: int | None = None, **settings) -> dict[int, float]:
    """Loss by step; left after step `until`."""
    results = {}
    for step in training(job, strategy, folder=folder, **{"steps": STEPS, **settings}):
        results[step.step] = step.loss
        if step.step == until:
            break
    return results


@pytest.mark.parametrize("name", CASES)
def test_continued_bit_for_bit(name, tmp_path):
    job, strategy = CASES[name]
    whole = losses(job, strategy, tmp_path / "whole")
    first = losses(job, strategy, tmp_path / "parts", until=STOP)
    second = losses(job, strategy, tmp_path / "parts")
    assert list(second) == list(range(STOP + 1, STEPS + 1))
    assert {**first, **second} == whole
    assert len(set(whole.values())) > STEPS - 2


def test_weights_are_the_same_too(tmp_path):
    job, strategy = CASES["clip, average, cosine"]
    whole = train(job, strategy, folder=tmp_path / "whole", steps=STEPS)
    losses(job, strategy, tmp_path / "parts", until=STOP)
    parts = train(job, strategy, folder=tmp_path / "parts", steps=STEPS)
    assert (parts.resumed_from, parts.steps, parts.stopped) == (STOP, STEPS, "finished")
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert parts.metrics == whole.metrics
    assert parts.first_loss == whole.first_loss


def test_another_micro_batch_of_the_same_global_batch_goes_on_with_a_note(tmp_path):
    losses(toy(), STRATEGY, tmp_path, until=STOP)
    result = train(toy(), Strategy(micro_batch=4, accumulation=4), folder=tmp_path, steps=STEPS)
    whole = train(toy(), STRATEGY, steps=STEPS)
    assert result.resumed_from == STOP
    (note,) = (note for note in result.notes if "other settings" in note)
    assert "batch norm" in note
    assert result.last_loss == pytest.approx(whole.last_loss, rel=1e-3)


def test_the_note_of_another_mesh_has_it_as_it_is_written(tmp_path):
    def identity(mesh: Mesh) -> RunIdentity:
        of_strategy = Strategy(micro_batch=8 // mesh.devices, mesh=mesh).to_dict()
        same = {"job": "toy", "fingerprint": "f", "global_batch": 8, "seed": 0, "steps": 5, "recipe": {}}
        return cast(RunIdentity, {**same, "strategy": of_strategy})

    [note] = check_continues(identity(Mesh(dp_shard=2)), identity(Mesh(dp_replicate=2, tp=2)), tmp_path)
    assert "mesh dp_shard=2 -> dp=2,tp=2, micro_batch 4 -> 2" in note.text


def test_a_job_that_is_trained_otherwise_goes_on_with_a_note(tmp_path):
    losses(toy(), STRATEGY, tmp_path, until=STOP)
    result = train(toy(learning_rate=0.01, clip_norm=1.0), STRATEGY, folder=tmp_path, steps=STEPS)
    (note,) = (note for note in result.notes if "the job has changed" in note)
    assert "clip_norm None -> 1.0, learning_rate 0.05 -> 0.01" in note
    assert result.learning_rate == 0.01


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"strategy": Strategy(micro_batch=8)}, InputError, "16 samples a step, not 8"),
        ({"seed": 5}, InputError, "0 as its seed, not 5"),
        (
            {"strategy": STRATEGY.but(optimizer="adafactor")},
            InputError,
            "trains with .*, whose state adafactor cannot go on with",
        ),
        ({"job": toy(model=lambda: nn.Linear(4, 2, bias=False))}, JobError, "a run of another job"),
        ({"resume": "never"}, InputError, "holds a run already"),
    ],
)
def test_another_run_is_refused_and_nothing_is_touched(changes, error, match, tmp_path):
    losses(toy(), STRATEGY, tmp_path, until=STOP)
    before = contents(tmp_path)
    settings = {"job": toy(), "strategy": STRATEGY, **changes}
    with pytest.raises(error, match=match):
        train(settings.pop("job"), settings.pop("strategy"), folder=tmp_path, steps=STEPS, **settings)
    assert contents(tmp_path) == before
    assert run_status(tmp_path).state == "failed"


def test_a_job_whose_own_optimizer_became_another_is_refused(tmp_path):
    """Momentum has settings that Adam lacks, and the other way round: PyTorch would put the one's in place of the other's."""
    losses(toy(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01)), STRATEGY, tmp_path, until=STOP)
    with pytest.raises(InputError, match="the checkpoint is of another optimizer"):
        train(toy(optimizer=lambda parameters: torch.optim.Adam(parameters)), folder=tmp_path, steps=STEPS)


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_a_run_continued_without_a_length_keeps_its_own(resume, tmp_path):
    """As the printed `go on with` does. An epoch of these data is not as long."""
    job = dropping(schedule="cosine")
    losses(job, STRATEGY, tmp_path / "parts", until=STOP)
    parts = train(job, STRATEGY, folder=tmp_path / "parts", resume=resume)
    assert (parts.resumed_from, parts.steps, parts.stopped) == (STOP, STEPS, "finished")
    assert parts.last_loss == losses(job, STRATEGY, tmp_path / "whole")[STEPS]
    assert not any("was to take" in note for note in parts.notes)


def test_nothing_to_continue(tmp_path):
    with pytest.raises(InputError, match="nothing to continue"):
        train(toy(), folder=tmp_path / "new", steps=3, resume="must")
    assert not (tmp_path / "new").exists()


def test_a_run_that_is_over_says_so_and_goes_on_when_asked_for_more(tmp_path):
    train(toy(), folder=tmp_path, steps=3)
    with pytest.raises(InputError, match=r"has taken all of its 3 steps; its weights are in .*model\.safetensors"):
        train(toy(), folder=tmp_path, steps=3)
    more = train(toy(), folder=tmp_path, steps=5)
    assert (more.resumed_from, more.steps) == (3, 5)


def test_a_run_killed_between_its_last_step_and_its_report_is_concluded(tmp_path):
    whole = train(toy(), folder=tmp_path, steps=3)
    answer = json.loads((tmp_path / "run.json").read_text())
    del answer["ended"]
    (tmp_path / "run.json").write_text(json.dumps(answer))
    again = train(toy(), folder=tmp_path, steps=3)
    assert (again.steps, again.resumed_from, again.stopped) == (3, 3, "finished")
    assert (again.last_loss, again.metrics) == (whole.last_loss, whole.metrics)


def test_data_that_fails_loses_no_step(tmp_path):
    class Failing(Drawing):
        def __getitem__(self, index):
            if broken and next(calls) > 100:
                raise OSError("the disk is gone")
            return super().__getitem__(index)

    broken, calls = [1], iter(range(10**6))
    job = toy(data=Failing, samples=50)
    with pytest.raises(JobError, match="the disk is gone"):
        train(job, folder=tmp_path, steps=STEPS)
    broken.clear()
    parts = train(job, folder=tmp_path, steps=STEPS)
    assert parts.resumed_from == 6
    assert parts.last_loss == train(toy(data=Drawing, samples=50), steps=STEPS).last_loss


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path):
    train(toy(), folder=tmp_path, steps=3)
    for path in (tmp_path / "checkpoints").rglob("*.safetensors"):
        path.parent.joinpath("manifest.json").unlink(missing_ok=True)
    with pytest.raises(FileFormatError, match="damaged"):
        train(toy(), folder=tmp_path, steps=5)


def test_a_foreign_run_file_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"format": "something"}')
    with pytest.raises(FileFormatError, match="not of a run"):
        train(toy(), folder=tmp_path, steps=3)
    (tmp_path / "run.json").write_text(json.dumps({"format": "gpuwise-run", "version": 1, "steps": "many"}))
    with pytest.raises(FileFormatError, match="damaged"):
        train(toy(), folder=tmp_path, steps=3)
    (tmp_path / "run.json").write_text(json.dumps({"format": "gpuwise-run", "version": 99}))
    with pytest.raises(FileFormatError, match="newer"):
        train(toy(), folder=tmp_path, steps=3)


def test_a_first_step_that_fails_leaves_no_folder(tmp_path):
    with pytest.raises(JobError):
        train(toy(loss=lambda model, batch: model(batch["x"]).mean() * float("nan")), folder=tmp_path / "a" / "b", steps=3)
    assert list(tmp_path.iterdir()) == []


def test_data_of_another_length_is_refused(tmp_path):
    losses(toy(), STRATEGY, tmp_path, until=STOP)
    with pytest.raises(JobError):
        train(toy(data=lambda: points(320)), folder=tmp_path, steps=STEPS)
