"""What a run does besides stepping: evaluations, the best checkpoint, early stop, skipped steps, averages, its folder."""

from __future__ import annotations

import json
import math
import sys

import pytest
import torch
from tests.training_samples import STRATEGY, loss, points, toy, train, training
from torch import nn

from gpuwise.errors import InputError, JobError, MissingDependencyError
from gpuwise.job import Job
from gpuwise.runtime.build.ema import ExponentialMovingAverage
from gpuwise.runtime.checkpoint import CheckpointStore
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.runtime.show import read_log
from gpuwise.strategy import Strategy


def scores(*values: float):
    """An evaluation that gives these, one after another, then the last again."""
    left = list(values)
    return lambda model: {"score": left.pop(0) if len(left) > 1 else left[0]}


def failing_at(step: int, what: float):
    calls = []

    def failing(model, batch):
        calls.append(1)
        return loss(model, batch) * (what if len(calls) == step else 1)

    return failing


def test_evaluations_are_logged_and_the_best_checkpoint_is_kept(tmp_path):
    result = train(
        toy(evaluate=scores(0.1, 0.9, 0.3, 0.2, 0.1)), steps=10, evaluate_every=2, monitor="max:score", folder=tmp_path
    )
    assert result.best == {"step": 4, "metric": "score", "value": 0.9}
    results = [(r["step"], r["metrics"]["score"]) for r in read_log(tmp_path / "log.jsonl") if r["record"] == "evaluation"]
    assert results == [(2, 0.1), (4, 0.9), (6, 0.3), (8, 0.2), (10, 0.1)]
    store = CheckpointStore(tmp_path / "checkpoints")
    best, last = store.best(), store.latest()
    assert best is not None
    assert last is not None
    assert (best.step, last.step) == (4, 10)


def test_a_run_stops_early(tmp_path):
    result = train(
        toy(evaluate=scores(3, 2, 5, 4)), steps=100, evaluate_every=2, monitor="min:score", patience=2, folder=tmp_path
    )
    assert (result.stopped, result.steps) == ("early stop", 8)
    assert result.best is not None
    assert result.best["step"] == 4
    assert json.loads((tmp_path / "run.json").read_text())["ended"] == "early stop"


def test_patience_is_remembered_by_a_resumed_run(tmp_path):
    values = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    job = toy(evaluate=lambda model: {"score": next(values)})
    settings = {"steps": 100, "evaluate_every": 1, "monitor": "min:score", "patience": 4, "folder": tmp_path}
    for step in training(job, **settings):
        if step.step == 3:
            break
    assert train(job, **settings).steps == 5


def test_a_metric_that_is_not_there_is_refused_and_nothing_is_lost(tmp_path):
    with pytest.raises(InputError, match="gives no 'acuracy'; it gives accuracy"):
        train(toy(), steps=4, evaluate_every=2, monitor="max:acuracy", folder=tmp_path)
    latest = CheckpointStore(tmp_path / "checkpoints").latest()
    assert latest is not None
    assert latest.step == 2
    assert train(toy(), steps=4, evaluate_every=2, monitor="max:accuracy", folder=tmp_path).resumed_from == 2


def test_there_is_no_model_before_the_run_has_begun():
    with pytest.raises(InputError, match="has not begun"):
        training(toy(), steps=1).model  # noqa: B018


@pytest.mark.parametrize(
    "settings",
    [
        {"monitor": "accuracy"},
        {"monitor": "best:accuracy"},
        {"patience": 3},
        {"keep": 1},
        {"time_limit_s": 0},
        {"seed": -1},
        {"resume": "maybe"},
        {"on_nonfinite": "ignore"},
        {"preemption": "ibm"},
        {"interruptions_per_day": -1},
        {"evaluate_every": 0},
        {"save_every_s": math.nan},
        {"steps": 1, "tokens": 1},
    ],
)
def test_senseless_settings(settings):
    with pytest.raises(InputError):
        TrainSettings(**settings)


def test_evaluation_draws_nothing_from_the_training():
    dropping = {"model": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))}
    quiet = train(toy(evaluate=None, **dropping), steps=6)
    drawing = train(toy(evaluate=lambda model: {"x": torch.rand(1).item()}, **dropping), steps=6, evaluate_every=1)
    assert quiet.last_loss == drawing.last_loss


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_step_that_is_no_number_is_skipped_when_asked(bad, tmp_path):
    result = train(toy(loss=failing_at(3, bad)), Strategy(micro_batch=8), steps=6, on_nonfinite="skip", folder=tmp_path)
    assert (result.steps, result.skipped_steps) == (6, 1)
    assert math.isfinite(result.last_loss)
    assert all(torch.isfinite(p).all() for p in result.model.parameters())
    bad_batch = json.loads((tmp_path / "bad-batch.json").read_text())
    assert bad_batch["step"] == 3
    assert len(bad_batch["where"]["micro_batches"][0]["samples"]) == 8


class KnownLater:
    """Losses as of a GPU: each is known two steps after it was put."""

    numbers = 1

    def __init__(self):
        self.waiting, self.steps_before = [], []

    def put(self, row, values):
        self.waiting.append((row, [value.item() for value in values]))

    def ready(self, *, wait=False):
        count = len(self.waiting) if wait else max(0, len(self.waiting) - 1)
        result, self.waiting = self.waiting[:count], self.waiting[count:]
        return result


def known_later(run):
    """The steps of a run whose losses are known as late as a GPU's."""
    steps = iter(run)
    first = next(steps)  # its loss was judged here, as a CPU's
    run._run.stepper._sees_losses, run._run.stepper._unknown = False, KnownLater()
    yield first
    yield from steps


def test_a_loss_that_is_known_later_names_the_data_of_its_own_step(tmp_path):
    seen = []

    def noticing(model, batch):
        seen.append(batch["x"])
        return loss(model, batch) * (math.nan if len(seen) == 3 else 1)

    with pytest.raises(JobError, match="nan at step 3"):
        list(known_later(training(toy(loss=noticing), Strategy(micro_batch=8), steps=9, folder=tmp_path)))
    assert len(seen) == 5  # two more were taken by then
    bad_batch = json.loads((tmp_path / "bad-batch.json").read_text())
    (samples,) = (part["samples"] for part in bad_batch["where"]["micro_batches"])
    assert torch.equal(points(160)["x"][samples], seen[2])


def test_waiting_for_the_device_is_part_of_a_step(tmp_path):
    run, ended = training(toy(), steps=5), []
    for step in known_later(run):
        if step.step == 1:
            later = run._run.stepper._unknown
            later.ready = lambda wait=False: ended.append(run._run.meter.step) or []
    assert ended[:4] == [1, 2, 3, 4]  # of steps 2 to 5, asked before the meter ended them


def test_a_run_whose_first_step_is_skipped_is_kept_all_the_same(tmp_path):
    result = train(toy(loss=failing_at(1, math.nan)), Strategy(micro_batch=8), steps=6, on_nonfinite="skip", folder=tmp_path)
    assert (result.skipped_steps, result.checkpoints["last_step"]) == (1, 6)


def test_gradients_that_are_no_numbers_are_skipped_too():
    def poisoned(model, batch):
        """A finite loss whose gradient is not."""
        return loss(model, batch) + torch.sqrt(model.weight * 0).sum()

    with pytest.raises(JobError, match=r"the gradients are not finite, though the loss is .*, at step 20"):
        train(toy(loss=poisoned), Strategy(micro_batch=8), steps=40, on_nonfinite="skip")


def test_too_many_in_a_row_end_the_run():
    with pytest.raises(JobError, match="is nan at step 20"):
        train(toy(loss=lambda model, batch: loss(model, batch) * math.nan), steps=40, on_nonfinite="skip")


def test_nothing_is_saved_that_is_no_number(tmp_path):
    def poisoned(model, batch):
        """A finite loss whose gradient is not."""
        return loss(model, batch) + (torch.sqrt(model.weight.sum() * 0) if poison else 0)

    poison = []
    steps = iter(training(toy(loss=poisoned), folder=tmp_path, steps=9, save_every_s=1e-9))
    for _ in range(4):
        next(steps)
    poison.append(1)
    with pytest.raises(JobError, match="nan at step 6"):
        list(steps)
    latest = CheckpointStore(tmp_path / "checkpoints").latest()
    assert latest is not None
    assert all(torch.isfinite(tensor).all() for tensor in latest.load()["model"].values())


def test_clipping_holds_the_gradients_down():
    steep = {"loss": lambda model, batch: 1e4 * loss(model, batch), "optimizer": "sgd", "learning_rate": 1.0}
    clipped = train(toy(clip_norm=1e-3, **steep), steps=1).model
    torch.manual_seed(0)
    before = nn.Linear(4, 2)
    pairs = zip(clipped.parameters(), before.parameters(), strict=True)
    moved = math.sqrt(sum((a - b).square().sum().item() for a, b in pairs))
    assert moved == pytest.approx(1e-3, rel=1e-2)


def test_gradient_norms_are_logged(tmp_path):
    train(toy(clip_norm=1.0), steps=3, log_path=tmp_path / "log.jsonl")
    steps = [r for r in read_log(tmp_path / "log.jsonl") if r["record"] == "step"]
    assert all(r["grad_norm"] > 0 for r in steps)


def test_the_average_follows_and_is_what_is_evaluated_and_exported(tmp_path):
    from safetensors.torch import load_file

    seen = []
    run = training(toy(ema_decay=0.9, evaluate=lambda model: {"w": seen.append(model.weight.detach().clone()) or 0.0}), steps=5)
    weights = [run.model.weight.detach().clone() for _ in run]
    torch.manual_seed(0)
    average = nn.Linear(4, 2).weight.detach().clone()
    for update, weight in enumerate(weights, 1):
        average.lerp_(weight, 1 - min(0.9, (1 + update) / (10 + update)))
    assert torch.allclose(seen[-1], average)
    assert torch.equal(run.model.weight, weights[-1])
    run.export(tmp_path / "weights.safetensors")
    assert torch.allclose(load_file(tmp_path / "weights.safetensors")["weight"], average)


def test_an_average_swaps_back_when_evaluation_fails():
    model = nn.Linear(2, 2)
    average, before = ExponentialMovingAverage(model, 0.9), model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1)

    def fail():
        with average.in_place():
            assert torch.equal(model.weight, before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(model.weight, before + 1)


def test_tokens_say_how_long():
    job = toy(sample_unit="token", tokens_per_sample=10)
    assert train(job, tokens=321).steps == 3  # 16 samples of 10 tokens a step
    with pytest.raises(InputError, match="counts samples, not tokens"):
        train(toy(), tokens=321)


def test_a_time_limit_ends_the_run_saved(tmp_path):
    result = train(toy(), steps=10**9, time_limit_s=0.5, folder=tmp_path)
    assert result.stopped == "time limit"
    assert result.interrupted
    assert result.checkpoints is not None
    assert result.checkpoints["last_step"] == result.steps


def test_the_folder_tells_the_whole_run(tmp_path):
    result = train(toy(), steps=5, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "run.json",
        "state.json",
        "log.jsonl",
        "report.html",
        "lock",
        "checkpoints",
    }
    records = read_log(tmp_path / "log.jsonl")
    kinds = [r["record"] for r in records]
    assert kinds[0] == "header"
    assert kinds[-2:] == ["checkpoint", "summary"]
    assert "evaluation" in kinds
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert result.run_folder == str(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["global_batch"] == STRATEGY.global_batch


def test_a_run_that_fails_leaves_its_report(tmp_path):
    with pytest.raises(JobError, match="nan at step 3"):
        train(toy(loss=failing_at(3, math.nan)), Strategy(micro_batch=8), steps=6, folder=tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "Failed after step 3 of 6: the loss of toy is nan at step 3" in page


def test_a_run_that_fails_at_once_leaves_none(tmp_path):
    with pytest.raises(JobError, match="nan at step 1"):
        train(toy(loss=failing_at(1, math.nan)), Strategy(micro_batch=8), steps=6, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_writer_without_its_package_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match="wandb"):
        train(toy(loss=lambda model, batch: pytest.fail("it was trained")), steps=2, writers=("wandb",))


def test_a_full_disk_is_told_and_is_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("gpuwise.runtime.health.disk._free_bytes", lambda folder: 1)
    train(toy(), steps=3, folder=tmp_path)
    records = read_log(tmp_path / "log.jsonl")
    assert [r["step"] for r in records if r["record"] == "checkpoint"] == [3]
    assert sum("is nearly full" in r.get("text", "") for r in records) == 1


def test_nobody_calls_it_a_stall_that_the_caller_has_the_step():
    run = training(toy(), steps=3)
    assert [run._run.health.stall.phase for _ in run] == ["caller"] * 3
    assert run._run.health.stall.phase == "end"


def test_the_job_is_not_asked_for_a_batch_after_a_failed_step():
    requests = []
    job = toy(loss=lambda model, batch: 1 / 0, batch=lambda n: requests.append(n) or points(n))
    with pytest.raises(JobError, match="ZeroDivisionError"):
        train(job, steps=2)
    assert STRATEGY.micro_batch not in requests


def test_money_is_counted():
    result = train(toy(), steps=3, usd_per_hour=3600.0)
    assert result.usd == pytest.approx(result.wall_s)


def test_a_parameter_that_gets_no_gradient_is_named(tmp_path):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.forgotten = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return self.used(x)

    result = train(toy(model=Unused), steps=2)
    assert any("forgotten.weight" in note for note in result.notes)
    assert not any("used.weight" in note for note in train(toy(), steps=2).notes)


def test_a_loss_that_depends_on_nothing():
    job = Job(model=lambda: nn.Linear(4, 2), batch=points, loss=lambda model, batch: batch["x"].mean(), name="still")
    with pytest.raises(JobError, match="does not depend on any parameter"):
        train(job, steps=1)
