"""`gpuwise train` and jobs that need PyTorch: files, Job objects, plans that fit the job and plans that do not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpuwise
import gpuwise.runtime
from gpuwise.cli.main import main
from gpuwise.errors import InputError, JobError
from gpuwise.plan import save_plan

torch = pytest.importorskip("torch")

JOB = """
import torch
from gpuwise import Job
torch.manual_seed(1)
X = torch.randn(64, {width})
Y = (X[:, :1] > 0).float()
job = Job(
    name="tiny",
    model=lambda: torch.nn.Linear({width}, 1),
    batch=lambda n: {{"x": torch.zeros(n, {width}), "y": torch.zeros(n, 1)}},
    loss=lambda model, batch: torch.nn.functional.binary_cross_entropy_with_logits(model(batch["x"]), batch["y"]),
    data=lambda: [{{"x": x, "y": y}} for x, y in zip(X, Y)],
    samples=64,
)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(JOB.format(width=4))
    (tmp_path / "other.py").write_text(JOB.format(width=5))
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> gpuwise.Plan:
    """The cheapest plan for two epochs on this machine."""
    path = tmp_path_factory.mktemp("job") / "tiny.py"
    path.write_text(JOB.format(width=4))
    return gpuwise.plan(f"{path}:job", epochs=2, on="here", precision="fp32", global_batch=16).best


def test_train_json_is_the_result_and_nothing_else(folder: Path):
    result = run(
        "train", "tiny.py:job", "--epochs", "2", "--micro-batch", "8", "--accumulate", "2", "--log", "log.jsonl", "--json"
    )
    assert result.exit_code == 0, result.output
    actual = json.loads(result.stdout)
    assert (actual["steps"], actual["samples"]) == (8, 128)
    assert actual["strategy"]["accumulation"] == 2
    assert actual["forecast"]["forecast_s"] > 0
    records = [json.loads(line)["record"] for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [record for record in records if record not in ("step", "event", "checkpoint")] == ["header", "summary"]


def test_train_prints_the_forecast_beside_what_was_measured():
    shown = run("train", "tiny.py:job", "--steps", "3").stdout
    assert "tiny trained on cpu: fp32, micro-batch 32" in shown
    assert "measured" in shown
    assert "forecast" in shown


def test_a_plan_is_run_as_it_is(plan: gpuwise.Plan, folder: Path):
    assert plan.strategy.global_batch == 16
    save_plan(plan, folder / "plan.toml")
    result = json.loads(run("train", "tiny.py:job", "--plan", "plan.toml", "--json").stdout)
    assert result["strategy"] == plan.strategy.to_dict()
    assert result["steps"] == plan.steps == 8


def test_a_plan_for_no_steps_is_not_one_for_all(plan: gpuwise.Plan):
    with pytest.raises(InputError, match="steps"):
        gpuwise.train("tiny.py:job", plan=plan, steps=0)


def test_a_plan_for_another_job_is_refused(plan: gpuwise.Plan, folder: Path):
    save_plan(plan, folder / "plan.toml")
    result = run("train", "other.py:job", "--plan", "plan.toml", "--log", "log.jsonl")
    assert result.exit_code == 2
    assert "this plan is for another job" in result.stderr
    assert not (folder / "log.jsonl").exists()


def test_a_plan_for_other_sizes_is_refused(plan: gpuwise.Plan):
    with pytest.raises(InputError, match="the plan is for a job without seq_len"):
        gpuwise.train("tiny.py:job", plan=plan, seq_len=128)


def test_a_plan_for_another_device_is_refused(plan: gpuwise.Plan, folder: Path):
    rented = gpuwise.plan("tiny.py:job", epochs=2, on="t4", global_batch=16, spot=False).best
    save_plan(rented, folder / "plan.toml")
    result = run("train", "tiny.py:job", "--plan", "plan.toml", "--log", "log.jsonl")
    assert result.exit_code == 2
    assert "this plan is for 1 x t4" in result.stderr
    assert "--on here -o plan.toml" in result.stderr
    assert not (folder / "log.jsonl").exists()
    # a CPU is a CPU: what was planned for one in the catalog runs on this one
    server = replace(plan, device="xeon-8480plus")
    assert gpuwise.train("tiny.py:job", plan=server, progress="silent").steps == plan.steps


def test_a_plan_at_sizes_the_job_does_not_have_is_for_another_job(plan: gpuwise.Plan):
    sized = replace(plan, job="pictures", sizes={"image_size": 8})
    with pytest.raises(JobError, match="this plan is for another job: it was made for pictures at image_size 8"):
        gpuwise.train("tiny.py:job", plan=sized)


def test_an_interrupted_run_is_reported_and_exits_130(monkeypatch: pytest.MonkeyPatch):
    class Stopped(gpuwise.Trainer):
        def run(self) -> gpuwise.runtime.TrainResult:
            return replace(super().run(), stopped="interrupted", stop_reason="SIGTERM")

    monkeypatch.setattr(gpuwise.api, "Trainer", Stopped)
    result = run("train", "tiny.py:job")
    assert result.exit_code == 130
    assert "tiny interrupted on cpu" in result.stdout


def test_a_run_is_kept_in_its_folder_and_the_next_has_another(folder: Path):
    first = json.loads(run("train", "tiny.py:job", "--steps", "3", "--json").stdout)
    second = json.loads(run("train", "tiny.py:job", "--steps", "3", "--json").stdout)
    assert (first["run_folder"], second["run_folder"]) == (str(folder / "runs/tiny"), str(folder / "runs/tiny-2"))
    kept = {path.name for path in (folder / "runs" / "tiny").iterdir()}
    assert kept == {"checkpoints", "lock", "log.jsonl", "report.html", "run.json", "state.json"}
    assert first["checkpoints"]["last_step"] == 3
    assert json.loads(run("train", "tiny.py:job", "--steps", "3", "--no-run", "--json").stdout)["run_folder"] is None
    assert len(list((folder / "runs").iterdir())) == 2


def test_what_was_interrupted_is_continued_by_the_same_command(folder: Path):
    trainer = gpuwise.Trainer("tiny.py:job", steps=6, run="auto", progress="silent", micro_batch=8)
    for step in trainer:
        if step.step == 2:
            break
    assert trainer.result is not None
    assert trainer.result.interrupted
    again = json.loads(run("train", "tiny.py:job", "--steps", "6", "--micro-batch", "8", "--resume", "--json").stdout)
    assert (again["run_folder"], again["resumed_from"], again["stopped"]) == (str(folder / "runs/tiny"), 2, "finished")
    refused = run("train", "tiny.py:job", "--steps", "6", "--micro-batch", "8", "--resume")
    assert refused.exit_code == 2
    assert "no run of tiny to continue" in refused.stderr


def test_weights_are_exported(folder: Path):
    from safetensors.torch import load_file

    assert run("train", "tiny.py:job", "--steps", "2", "--export", "out/weights.safetensors").exit_code == 0
    assert set(load_file(folder / "out" / "weights.safetensors")) == {"weight", "bias"}


@pytest.mark.parametrize("target", ["tiny.py/weights.safetensors", "tiny.py", "folder.safetensors"])
def test_weights_that_could_not_be_exported_are_not_trained(target: str, folder: Path):
    (folder / "folder.safetensors").mkdir()
    result = run("train", "tiny.py:job", "--steps", "2", "--export", target)
    assert result.exit_code == 2
    assert f"cannot write the weights to {target}" in result.stderr
    assert not (folder / "runs").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["folder.safetensors", "other.py", "tiny.py"]


def test_a_failing_export_leaves_the_result(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise InputError("cannot write weights.safetensors: No space left on device.")

    monkeypatch.setattr(gpuwise.Trainer, "export", full)
    result = run("train", "tiny.py:job", "--steps", "2", "--export", "weights.safetensors", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["steps"] == 2
    assert "No space left on device" in result.stderr


def test_debug_shows_where_the_users_code_failed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "broken.py").write_text(JOB.format(width=4).replace('model(batch["x"])', 'model(batch["y"] @ 3)'))
    assert "Traceback" not in run("forecast", "broken.py:job", "--on", "t4").stderr
    monkeypatch.setenv("GPUWISE_DEBUG", "1")
    shown = run("forecast", "broken.py:job", "--on", "t4")
    assert shown.exit_code == 2
    assert 'batch["y"] @ 3' in shown.stderr


def test_a_plan_for_several_devices_is_refused(plan: gpuwise.Plan):
    wide = replace(plan, strategy=plan.strategy.but(mesh=gpuwise.Mesh(dp_replicate=2)))
    with pytest.raises(gpuwise.GpuwiseError, match="2 devices"):
        gpuwise.train("tiny.py:job", plan=wide)


def test_train_takes_no_unknown_setting():
    with pytest.raises(InputError, match="train does not take colour"):
        gpuwise.train("tiny.py:job", colour="red")
    with pytest.raises(InputError) as refused:
        gpuwise.train("tiny.py:job", accumulation=2)
    assert refused.value.ways_out[0] == "nearest: accumulate"


@pytest.mark.parametrize(
    ("job", "said"),
    [("tiny.py", "tiny.py:job"), ("none.py:job", "none.py"), ("tiny.py:nothing", "nothing"), ("tiny.npz", "not trained")],
)
def test_what_is_no_job_is_refused(job: str, said: str):
    result = run("train", job)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.filterwarnings("default")  # train says that it has no forecast before it fails itself
def test_a_job_whose_forward_raises_is_explained(folder: Path):
    text = JOB.format(width=4).replace('model(batch["x"])', 'model(batch["x"][:, :3])')
    (folder / "broken.py").write_text(text)
    trained = run("train", "broken.py:job")
    assert trained.exit_code == 2
    assert "broken.py:" in trained.stderr
    assert "shapes cannot be multiplied" in trained.stderr
    forecast = run("forecast", "broken.py:job", "--on", "t4")
    assert forecast.exit_code == 2
    assert "error: a step of tiny fails: RuntimeError" in forecast.stderr


def test_a_batch_of_the_wrong_shape_is_explained(folder: Path):
    (folder / "broken.py").write_text(JOB.format(width=4).replace("torch.zeros(n, 1)", "torch.zeros(3, 1)"))
    result = run("forecast", "broken.py:job", "--on", "t4")
    assert result.exit_code == 2
    assert "its first dimension must be" in result.stderr


def test_a_job_object_is_a_job():
    job = gpuwise.Job(
        name="mine",
        model=lambda: torch.nn.Linear(4, 1),
        batch=lambda n: {"x": torch.zeros(n, 4)},
        loss=lambda model, batch: model(batch["x"]).mean(),
        samples=100,
    )
    result = gpuwise.forecast(job, on="rtx-4090", micro_batch=3, precision="fp32")
    assert (result.job, result.strategy.micro_batch) == ("mine", 3)
    assert gpuwise.plan(job, budget=10, on="rtx-4090").best.samples == 100
    with pytest.raises(InputError, match="this job makes batches of seq_len None, not 8"):
        gpuwise.forecast(job, on="rtx-4090", seq_len=8)


def test_here_is_this_machine():
    result = gpuwise.forecast("tiny.py:job", on="here")
    assert result.memory.capacity_bytes > 2**28
    assert result.usd_per_hour is None
    assert any(line.startswith("`here` is") for line in result.assumptions)


def test_plans_for_here_count_what_was_measured_as_train_does(monkeypatch: pytest.MonkeyPatch):
    from gpuwise.api import step_price

    monkeypatch.setattr(step_price, "as_last_measured", lambda forecast, *_: replace(forecast, measured={"steps": 9}))
    planned = gpuwise.plan("tiny.py:job", epochs=2, on="here").best.forecast
    trained = gpuwise.Trainer("tiny.py:job", epochs=2, progress="silent").forecast
    assert trained is not None
    assert (planned.measured, trained.measured) == ({"steps": 9}, {"steps": 9})


def test_a_forecast_that_fails_never_stops_a_run(monkeypatch: pytest.MonkeyPatch):
    from gpuwise.api.source import StepSource

    def fail(*_: object, **__: object) -> None:
        raise JobError("cannot be traced.")

    monkeypatch.setattr(StepSource, "step_traces", fail)
    with pytest.warns(UserWarning, match="no forecast to compare with: cannot be traced"):
        assert gpuwise.train("tiny.py:job", steps=1, progress="silent").forecast is None
