"""gpuwise export and gpuwise forecast --config on the command line, and in Python."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import gpuwise
from gpuwise import api
from gpuwise.cli.main import main
from gpuwise.errors import FileFormatError, InputError, JobError, UnsupportedError
from gpuwise.export.tables import with_tables
from gpuwise.export.targets import TARGETS
from gpuwise.plan.file import save_plan
from gpuwise.strategy import Mesh

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    plan = gpuwise.plan("gpt2", tokens="100M", on="h100-sxm:8", limit=1).best
    strategy = plan.strategy.but(recompute="selective", mesh=Mesh(dp_shard=8))
    save_plan(replace(plan, strategy=strategy), path)
    return path


def run(*words: str, out: Path | None = None) -> Result:
    return CliRunner().invoke(main, [*words, *([] if out is None else ["-o", str(out)])])


@pytest.mark.parametrize("name", TARGETS)
def test_a_plan_is_exported_and_its_file_forecast(name: str, plan_file: Path, tmp_path: Path):
    file = tmp_path / "exported"
    result = run("export", str(plan_file), "--to", name, "--json", out=file)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert file.read_text() == data["text"]
    assert data["plan_sha256"] == hashlib.sha256(plan_file.read_bytes()).hexdigest()
    for carried in (data["plan_sha256"], gpuwise.__version__, data["peer"], data["command"].split(" (")[0]):
        assert carried in data["text"]
    forecast = run("forecast", "gpt2", "--on", "h100-sxm:8", "--config", str(file), "--micro-batch", "4", "--json")
    assert forecast.exit_code == 0, forecast.output
    back = json.loads(forecast.stdout)
    assert back["config"]["kind"] == name
    assert back["strategy"]["mesh"]["dp_shard"] == 8
    assert back["assumptions"][0].startswith("read from exported")


def test_what_a_trainer_does_otherwise_is_priced(plan_file: Path):
    result = gpuwise.export(str(plan_file), to="accelerate")
    assert result.difference is not None
    assert {"recompute", "compress_gradients"} == set(result.difference.fields)
    plan = gpuwise.load_plan(plan_file)
    mine = gpuwise.forecast(
        "gpt2",
        on="h100-sxm:8",
        mesh="dp_shard=8",
        shard=plan.strategy.parallelism.shard,
        precision=plan.strategy.precision,
        recompute="selective",
        micro_batch=plan.strategy.micro_batch,
        accumulate=plan.strategy.accumulation,
    )
    assert result.difference.step_time_s[0] == pytest.approx(mine.step_time_s.value, rel=1e-6)
    assert "a step takes" in str(result)
    assert repr(result).startswith("<Exported gpt2 for accelerate")


def test_a_plan_object_gives_the_same_file_as_its_plan_file(plan_file: Path):
    assert gpuwise.export(gpuwise.load_plan(plan_file), to="deepspeed") == gpuwise.export(plan_file, to="deepspeed")


def test_a_job_that_the_plan_was_not_made_for_is_refused(plan_file: Path):
    with pytest.raises(JobError, match="another job"):
        gpuwise.export(plan_file, to="accelerate", job="gpt2-medium")


def test_damaged_and_edited_plans_give_the_errors_of_plan_files(plan_file: Path, tmp_path: Path):
    text = plan_file.read_text()
    for change, match in (("version = 1", "version 2"), ("dp_shard = 8", "dp_shard"), ("[end]", "cut short")):
        edited = tmp_path / "edited.toml"
        edited.write_text(
            text.replace(change, {"version = 1": "version = 2", "dp_shard = 8": "dp_shard = -8"}.get(change, "[e]"))
        )
        with pytest.raises(FileFormatError, match=match):
            gpuwise.export(edited, to="deepspeed")
    with pytest.raises(FileFormatError, match="there is no plan file"):
        gpuwise.export(tmp_path / "none.toml", to="deepspeed")


def test_a_mesh_that_was_edited_is_refused(plan_file: Path, tmp_path: Path):
    edited = tmp_path / "edited.toml"
    edited.write_text(plan_file.read_text().replace("dp_shard = 8", "dp_shard = 4"))
    with pytest.raises(InputError, match="8 devices, and its mesh dp_shard=4 has 4"):
        gpuwise.export(edited, to="deepspeed")


def test_what_a_trainer_cannot_have_writes_no_file(plan_file: Path, tmp_path: Path):
    file = tmp_path / "x.json"
    edited = tmp_path / "edited.toml"
    edited.write_text(plan_file.read_text().replace('precision = "amp-bf16"', 'precision = "fp8"'))
    with pytest.raises(UnsupportedError, match="precision = fp8"):
        gpuwise.export(edited, to="transformers", output=file)
    assert not file.exists()


def test_errors_of_the_command_line_have_exit_code_2(plan_file: Path, tmp_path: Path):
    assert run("export", str(plan_file), "--to", "deepsped").exit_code == 2
    assert run("export", str(plan_file), "--to", "deepspeed", out=tmp_path / "no" / "folder.json").exit_code == 2
    missing = run("forecast", "gpt2", "--on", "t4", "--config", str(tmp_path / "none.json"))
    assert missing.exit_code == 2
    assert "there is no file" in missing.output


def test_a_file_that_does_not_fit_shows_what_would(tmp_path: Path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 64, "bf16": {"enabled": True}}))
    result = api.forecast_config("gpt2", on="rtx-4090", config=file)
    assert result.forecast.memory.fits is False
    assert result.cheaper
    assert all(one.device_bytes < 24 * 2**30 for one in result.cheaper)
    assert "fits on the same devices" in str(result)


def test_what_would_be_cheaper_is_said_in_the_files_keys(tmp_path: Path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}))
    result = api.forecast_config("gpt2", on="a100-80gb-sxm", config=file)
    assert result.forecast.strategy.precision == "fp32"
    keys = {one.keys for one in result.cheaper}
    assert 'torch_autocast.enabled = true, torch_autocast.dtype = "bfloat16"' in keys
    for one in result.cheaper:  # as a forecast of the whole strategy has it
        assert one.saved > 0.01


def test_flags_come_before_the_file(tmp_path: Path):
    file = tmp_path / "args.json"
    file.write_text(json.dumps({"output_dir": "x", "per_device_train_batch_size": 4, "max_steps": 10, "bf16": True}))
    result = api.forecast_config("gpt2", on="a100-80gb-sxm", config=file, micro_batch=2, tokens="1M")
    assert result.forecast.strategy.micro_batch == 2
    assert result.forecast.run is not None
    assert result.forecast.run.samples == round(1e6 / 1024)


def test_the_tables_of_the_page_are_those_of_the_code():
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    assert with_tables(page) == page, "python -m gpuwise.export.tables docs/export.md writes them again"


@pytest.mark.parametrize("to", ["lightning", "torchtitan"])
def test_a_module_does_not_hide_the_trainer_that_it_configures(to: str, plan_file: Path, tmp_path: Path):
    """Python imports lightning.py in place of lightning. Without a file, the name proposed is another."""
    assert f"planned_{to}.py" in run("export", str(plan_file), "--to", to).stdout
    hiding = run("export", str(plan_file), "--to", to, out=tmp_path / f"{to}.py")
    assert hiding.exit_code == 2
    assert f"-o planned_{to}.py" in hiding.stderr
    assert not list(tmp_path.iterdir())
