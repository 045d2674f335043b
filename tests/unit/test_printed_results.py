"""What Python prints of a result: `str` is the report of the command line, `repr` one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.cli.main import main


@pytest.fixture(scope="module")
def results() -> dict[str, object]:
    plans = gpuwise.plan("gpt2", samples=1000, on="t4,rtx-4090")
    return {
        "Forecast": gpuwise.forecast("gpt2", on="t4"),
        "FitResult": gpuwise.fit("gpt2", on="t4"),
        "Comparison": gpuwise.compare("gpt2", on="t4,l4"),
        "PlanResult": plans,
        "Plan": plans.best,
        "Roofline": gpuwise.roofline("gpt2", on="t4"),
        "Timeline": gpuwise.memory_timeline("gpt2", on="t4"),
        "StepTimeline": gpuwise.step_timeline("gpt2", on="t4"),
        "KernelForecast": gpuwise.kernel("gemm", on="t4", dtype="fp16", m=64, n=64, k=64),
        "Installation": gpuwise.doctor(),
        "ServingForecast": gpuwise.serve_plan("gpt2", on="l4", rate="5/s"),
    }


def test_repr_is_one_line(results: dict[str, object]):
    for name, result in results.items():
        assert repr(result).startswith(f"<{name} ")
        assert repr(result).endswith(">")
        assert "\n" not in repr(result)
        assert len(repr(result)) < 250


def test_repr_has_the_figures(results: dict[str, object]):
    forecast = results["Forecast"]
    assert isinstance(forecast, gpuwise.Forecast)
    assert "gpt2 on t4: amp-fp16, micro-batch 1" in repr(forecast)
    assert repr(forecast).endswith(", fits>")
    assert repr(results["Plan"]) in str(results["Plan"])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Forecast", ("forecast", "gpt2", "--on", "t4")),
        ("FitResult", ("fit", "gpt2", "--on", "t4")),
        ("Comparison", ("compare", "gpt2", "--on", "t4,l4")),
        ("PlanResult", ("plan", "gpt2", "--samples", "1000", "--on", "t4,rtx-4090")),
    ],
)
def test_str_is_what_the_command_line_prints(results: dict[str, object], name: str, arguments: tuple[str, ...]):
    printed = CliRunner().invoke(main, list(arguments))
    assert printed.stdout.rstrip("\n") == str(results[name]).rstrip("\n")
    assert "\x1b" not in str(results[name])


def test_chips_and_offers_are_those_of_the_command_line():
    chips = gpuwise.chips("memory>=80GB kind=gpu-datacenter")
    assert chips
    assert all(isinstance(chip, gpuwise.Chip) and (chip.memory_bytes or 0) >= 80e9 for chip in chips)
    offers = gpuwise.offers("h100-sxm", spot=True)
    assert offers
    assert {offer.terms for offer in offers} == {"spot"}
    assert [o.usd_per_device_hour for o in offers] == sorted(o.usd_per_device_hour for o in offers)
    with pytest.raises(gpuwise.UnknownNameError):
        gpuwise.chips("kind=gpu-consumr")


def test_chips_and_offers_print_as_one_line():
    (chip,) = gpuwise.chips("rtx-4090")
    assert str(chip) == repr(chip) == "<Chip rtx-4090: gpu-consumer, 24 GiB>"
    lines = [str(offer) for offer in gpuwise.offers("rtx-4090")]
    assert any(line.startswith("<Offer 1 x rtx-4090 of vast") and line.endswith("/h>") for line in lines)
    assert all("\n" not in line for line in lines)


def test_types_are_shipped():
    assert (Path(gpuwise.__file__).parent / "py.typed").is_file()
