"""What one verb answers holds for another: shards without a mesh, rates of data, ways out that can be typed."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import gpuwise
from gpuwise.cli.main import main
from gpuwise.errors import DoesNotFitError, InputError, UnsupportedError
from gpuwise.job import Job

EXAMPLES = Path(__file__).parents[2] / "examples"


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize("devices", [2, 8])
def test_fit_and_forecast_share_a_model_alike_on_one_machine(devices: int) -> None:
    on = f"rtx-4090:{devices}"
    step = gpuwise.forecast("gpt2-xl", on=on, recompute="full", micro_batch=1)
    fit = gpuwise.fit("gpt2-xl", on=on, recompute="full", micro_batch=1)
    assert step.memory.fits
    assert fit.fits
    assert fit.rows[0].strategy.mesh == step.strategy.mesh
    assert any("sharded" in note for note in fit.assumptions)


@pytest.mark.parametrize(("width", "mesh"), [(512, None), (512, "dp_shard=4"), (40_000, None)])
def test_fit_and_forecast_share_a_job_of_ones_own_alike(width: int, mesh: str | None) -> None:
    """A sharded mixed-precision step is recorded as bf16. `fit` leaves out recordings of other techniques, not that one."""
    job = Job(lambda: nn.Linear(width, width), lambda n: torch.ones(n, width), loss, optimizer="adamw", name="own")
    settings = {"on": "t4:4" if width == 512 else "rtx-4090:4", "precision": "amp-fp16", "micro_batch": 1, "mesh": mesh}
    step, fit = gpuwise.forecast(job, **settings), gpuwise.fit(job, **settings)
    assert fit.fits
    assert fit.rows[0].strategy.mesh == step.strategy.mesh
    assert fit.rows[0].memory.device_bytes == step.memory.device_bytes
    assert (step.strategy.mesh.dp_shard > 1) == (mesh is not None or width > 512)


def test_sequences_of_a_job_of_ones_own_are_divided_by_all_verbs() -> None:
    """`forecast` records a rank; `compare` and `fit` compose it from a recording of sequences as short as a rank's."""
    settings = {"on": "h100-sxm:2", "mesh": "cp=2", "precision": "bf16", "micro_batch": 4}
    job = f"{EXAMPLES}/char_gpt.py:job"
    memory = gpuwise.forecast(job, **settings).memory
    assert gpuwise.compare(job, **settings).rows[0].forecast.memory.device_bytes == memory.device_bytes
    assert gpuwise.fit(job, **settings).rows[0].memory.device_bytes == memory.device_bytes


def test_experts_in_one_module_are_divided_by_all_verbs(tmp_path: Path) -> None:
    """`forecast` records a rank; `compare` and `fit` compose it from a recording of one device."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **sizes, **experts}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    settings = {"on": "h100-sxm:4", "mesh": "ep=2,dp_shard=4", "seq_len": 32, "micro_batch": 4}
    memory = gpuwise.forecast(f"hf:{tmp_path}", **settings).memory
    composed = gpuwise.compare(f"hf:{tmp_path}", **settings).rows[0].forecast.memory
    assert composed.device_bytes == pytest.approx(memory.device_bytes, rel=0.001)
    assert gpuwise.fit(f"hf:{tmp_path}", **settings).rows[0].memory.device_bytes == composed.device_bytes
    with pytest.raises(InputError, match="does not divide 4 experts"):
        gpuwise.fit(f"hf:{tmp_path}", **{**settings, "on": "h100-sxm:8", "mesh": "ep=8,dp_shard=8"})


class Temperature(nn.Module):
    """A layer whose output is scaled by a number of its own, as CLIP's is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def test_a_parameter_without_dimensions_is_sharded_by_no_verb() -> None:
    job = Job(Temperature, lambda n: torch.ones(n, 64), loss, samples=1000, name="temperature")
    for verb in (gpuwise.forecast, gpuwise.fit):
        with pytest.raises(UnsupportedError, match="a parameter of temperature is a single number without dimensions"):
            verb(job, on="h100-sxm:2", mesh="dp_shard=2")
    assert gpuwise.forecast(job, on="h100-sxm:2", mesh="dp=2").strategy.mesh.dp_replicate == 2
    plan = gpuwise.plan(job, on="h100-sxm:2", samples=1000, global_batch=8)
    assert {each.strategy.mesh.dp_shard for each in plan.plans} == {1}


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_senseless_rate_of_data_is_named_by_plan_and_forecast(rate: float) -> None:
    for ask in (
        lambda: gpuwise.plan("gpt2", samples="5k", on="t4", loader_samples_per_s=rate),
        lambda: gpuwise.forecast("gpt2", on="t4", loader_samples_per_s=rate),
    ):
        with pytest.raises(InputError, match="--loader-samples-per-s must be a number above 0"):
            ask()


def test_the_change_that_fits_is_of_flags_that_plan_takes() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        gpuwise.plan("gpt2", tokens="2.5B", on="t4:1", micro_batch=100_000)
    flags = next(way for way in refused.value.ways_out if ": add " in way).partition(": add ")[2]
    assert "--micro-batch" in flags
    assert "--mesh" not in flags
    words = ["plan", "gpt2", "--tokens", "2.5B", "--on", "t4:1", *shlex.split(flags)]
    assert CliRunner().invoke(main, words).exit_code == 0
