"""What one verb answers holds for another: shards without a mesh, rates of data, ways out that can be typed."""

import shlex

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.cli.main import main
from gpuwise.errors import DoesNotFitError, InputError


@pytest.mark.parametrize("devices", [2, 8])
def test_fit_and_forecast_share_a_model_alike_on_one_machine(devices: int) -> None:
    on = f"rtx-4090:{devices}"
    step = gpuwise.forecast("gpt2-xl", on=on, recompute="full", micro_batch=1)
    fit = gpuwise.fit("gpt2-xl", on=on, recompute="full", micro_batch=1)
    assert step.memory.fits
    assert fit.fits
    assert fit.rows[0].strategy.mesh == step.strategy.mesh
    assert any("sharded" in note for note in fit.assumptions)


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
