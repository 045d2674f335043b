"""The training loop: lengths, results, failures of the job's own code."""

import json
import math

import pytest
import torch
from tests.training_samples import STRATEGY, loss, points, toy, train, training
from torch import nn

from gpuwise.cost.forecast import Forecast, Interval, MemoryForecast
from gpuwise.errors import DoesNotFitError, InputError, JobError, RunEndedError
from gpuwise.runtime.show import read_log
from gpuwise.strategy import Mesh, Strategy


def forecast_of(step_time_s: Interval) -> Forecast:
    memory = MemoryForecast(1, 1, 1, None, {"parameter": 1})
    return Forecast(
        "toy",
        "cpu",
        1,
        STRATEGY,
        step_time_s,
        1.0,
        "samples/s",
        memory,
        1,
        None,
        {"compute": 1.0},
        None,
        {"step_time_s": "datasheet"},
    )


def test_learns_and_evaluates():
    result = train(toy(), epochs=5)
    assert result.steps == 50
    assert result.samples == 800
    assert result.last_loss < 0.7 * result.first_loss
    assert result.metrics["accuracy"] > 0.9
    assert not result.interrupted
    assert not result.synthetic
    assert result.notes == ()
    assert not result.model.training
    assert json.loads(json.dumps(result.to_dict()))["step_time"]["steps"] == 47
    assert result.step_time.low_s <= result.step_time.median_s <= result.step_time.high_s


def test_equals_a_loop_written_by_hand():
    result = train(toy(data=lambda: points(16)), Strategy(micro_batch=16), steps=4)
    torch.manual_seed(0)
    model, batch = nn.Linear(4, 2), points(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(4):
        optimizer.zero_grad()
        by_hand = loss(model, batch)
        by_hand.backward()
        optimizer.step()
    assert result.last_loss == pytest.approx(by_hand.item(), rel=1e-5)


def test_accumulation_is_the_same_step_as_one_large_batch():
    whole = train(toy(data=lambda: points(16)), Strategy(micro_batch=16), steps=3)
    parts = train(toy(data=lambda: points(16)), Strategy(micro_batch=4, accumulation=4), steps=3)
    assert parts.last_loss == pytest.approx(whole.last_loss, rel=1e-4)


def test_same_seed_same_run():
    first, second, other = (train(toy(), steps=5, seed=seed) for seed in (3, 3, 4))
    assert first.last_loss == second.last_loss != other.last_loss


@pytest.mark.parametrize(
    ("length", "steps"),
    [({}, 10), ({"epochs": 2.5}, 25), ({"samples": 17}, 2), ({"steps": 3}, 3), ({"epochs": 0.01}, 1)],
)
def test_length(length, steps):
    assert train(toy(), **length).steps == steps


@pytest.mark.parametrize(
    "length", [{"steps": 0}, {"epochs": -1}, {"samples": math.nan}, {"epochs": math.inf}, {"steps": 1, "epochs": 1}]
)
def test_senseless_length(length):
    with pytest.raises(InputError):
        train(toy(), **length)


def test_strategies_that_cannot_run_here():
    with pytest.raises(InputError, match="8 devices, and this is one process"):
        train(toy(), Strategy(mesh=Mesh(dp_replicate=8)), steps=1)
    with pytest.raises(InputError, match="infer"):
        train(toy(), Strategy(mode="infer"), steps=1)


def test_forecast_next_to_measured():
    wide = train(toy(), STRATEGY, steps=5, forecast=forecast_of(Interval(1.0, 0.0, 60.0)))
    assert wide.forecast is not None
    assert wide.forecast.inside
    assert wide.forecast.measured_s == wide.step_time.median_s
    assert wide.forecast.error == pytest.approx(1 / wide.step_time.median_s - 1)
    narrow = train(toy(), STRATEGY, steps=5, forecast=forecast_of(Interval(1e4, 9e3, 2e4)))
    assert narrow.forecast is not None
    assert not narrow.forecast.inside


def test_iterating_gives_every_step():
    run = training(toy(), steps=4)
    seen = [(s.step, s.steps, s.samples) for s in run]
    assert seen == [(1, 4, 16), (2, 4, 32), (3, 4, 48), (4, 4, 64)]
    assert run.result is not None
    assert run.result.stopped == "finished"


def test_the_model_is_there_while_it_is_trained():
    run = training(toy(), steps=3)
    weights = [run.model.weight.detach().clone() for _ in run]
    assert not torch.equal(weights[0], weights[1])


def test_the_model_is_there_after_a_pass_over_a_run_that_is_over(tmp_path):
    """As a cell of a notebook that is run again."""
    run = training(toy(), steps=3, folder=tmp_path)
    list(run)
    trained = run.model
    with pytest.raises(RunEndedError):
        list(run)
    assert run.model is trained


def test_without_data_it_says_so():
    result = train(toy(data=None, samples=64))
    assert result.steps == 4
    assert result.synthetic
    assert "synthetic" in result.notes[0]


def test_micro_batches_that_fill_no_last_step_are_named():
    """56 samples are 7 micro-batches of 8; two are a step."""
    result = train(toy(data=None, samples=56), Strategy(micro_batch=8, accumulation=2), epochs=1)
    assert result.steps == 3
    assert any(note.startswith("1 micro-batch at the end of the last epoch") for note in result.notes)


def test_unknown_epoch_length():
    with pytest.raises(JobError, match="how many samples an epoch"):
        train(toy(data=None))


def failing_loss(model, batch):
    raise ValueError("no such column")


def failing_model():
    raise RuntimeError("cannot build")


@pytest.mark.parametrize(
    ("changes", "what", "part"),
    [
        ({"loss": failing_loss}, "no such column", failing_loss),
        ({"model": failing_model}, "cannot build", failing_model),
        ({"loss": lambda model, batch: model(batch["x"])}, "loss must be a tensor with one number", None),
        ({"loss": lambda model, batch: model(batch["x"]).mean().item()}, "loss must be", None),
        ({"loss": lambda model, batch: model(batch["x"].T).mean()}, "step 1", None),
        ({"data": lambda: 1 / 0}, "ZeroDivisionError", None),
        ({"data": lambda: 5}, "neither a dataset nor an iterable", None),
    ],
)
def test_job_that_fails(changes, what, part, tmp_path):
    with pytest.raises(JobError, match=what) as caught:
        train(toy(**changes), STRATEGY, steps=2, log_path=tmp_path / "log.jsonl")
    assert f"{__file__}:" in caught.value.what
    if part is not None:
        assert f"{__file__}:{part.__code__.co_firstlineno + 1}" in caught.value.what
    assert list(tmp_path.iterdir()) == []


def test_out_of_memory_names_the_way_out():
    def loss(model, batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    with pytest.raises(DoesNotFitError) as caught:
        train(toy(loss=loss), steps=1)
    assert "--micro-batch" in caught.value.ways_out[0]


def exploding(after: int):
    calls = []

    def loss_then_nan(model, batch):
        calls.append(1)
        return loss(model, batch) * (math.nan if len(calls) > after else 1)

    return loss_then_nan


def test_loss_that_is_no_number_stops(tmp_path):
    path = tmp_path / "log.jsonl"
    with pytest.raises(JobError, match="nan at step 3; the last good one was") as caught:
        train(toy(loss=exploding(2)), Strategy(micro_batch=8), steps=9, log_path=path)
    assert "learning rate" in caught.value.ways_out[0]
    records = read_log(path)
    assert [r["record"] for r in records if r["record"] != "step"] == ["header", "event", "error"]
    assert next(r for r in records if r["record"] == "event")["kind"] == "nonfinite"
    assert "nan at step 3" in records[-1]["message"]


def test_nan_in_the_first_step_writes_nothing(tmp_path):
    with pytest.raises(JobError, match="the first step"):
        train(toy(loss=exploding(0)), STRATEGY, steps=9, log_path=tmp_path / "log.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_failing_evaluation_does_not_lose_the_run(tmp_path):
    def evaluate(model):
        return {"accuracy": 1 / 0}

    result = train(toy(evaluate=evaluate), STRATEGY, steps=2, log_path=tmp_path / "log.jsonl")
    assert result.metrics == {}
    assert "ZeroDivisionError" in result.notes[0]
    assert read_log(tmp_path / "log.jsonl")[-1]["record"] == "summary"


def test_evaluation_sees_evaluation_mode_without_gradients():
    modes = []

    def evaluate(model):
        modes.append((model.training, torch.is_grad_enabled()))
        return {}

    train(toy(evaluate=evaluate), steps=1)
    assert modes == [(False, False)]
