"""The path that docs/accuracy.md scores and the public functions give one time: recorded at two micro-batches and evaluated, or
recorded at the user's; of presets from the shipped recording."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from benchmarks.fit.steps import Step, entries_of, table_of
from benchmarks.support.published_case import Case
from benchmarks.support.published_recordings import step_of
from tests.quick import quick
from torch import Tensor, nn

import gpuwise
from gpuwise.cost.calibration import calibration
from gpuwise.hardware.catalog import Catalog
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import record

EQUAL = 1e-12  # sums in another order
# A vision model of timm, and language models: a shipped preset, and one that is recorded now.
JOBS = {"timm:resnet18": ("image_size", 224), "gpt2": ("seq_len", 1024), "bert-base": ("seq_len", 512)}


def scored_s(trace: Trace, on: str) -> float:
    """Seconds of a step as benchmarks.fit has them."""
    chip = Catalog().chip(on)
    table = table_of([Step(chip, trace, 1.0, "model")])
    return float(table.step_s(entries_of(calibration(chip), table.parts))[0])


def public_s(job: str | Job, strategy: Strategy, on: str) -> float:
    forecast = gpuwise.forecast(
        job,
        on=on,
        micro_batch=strategy.micro_batch,
        precision=strategy.precision,
        mode=strategy.mode,
        compile=strategy.compile,
        channels_last=strategy.channels_last,
    )
    assert forecast.bound["input"] == 0  # batches are copied during the step before
    return forecast.step_time_s.value


def check(name: str, strategy: Strategy, on: str, cache: Path) -> None:
    case = Case("published", name, strategy, (JOBS.get(name, ("image_size", 224)),), on, 1, 1, 1.0)
    assert public_s(name, strategy, on) == pytest.approx(scored_s(step_of(case, cache), on), rel=EQUAL)


@pytest.mark.parametrize(
    ("mode", "precision", "channels_last"),
    [
        *product(["infer"], ["amp-fp16", "fp32"], [False, True]),
        ("train", "fp32", False),
        pytest.param("train", "fp32", True, marks=pytest.mark.slow),
        *(pytest.param("train", "amp-fp16", channels_last, marks=pytest.mark.slow) for channels_last in (False, True)),
    ],
)
def test_a_vision_model_takes_as_long_as_the_page_scores(
    mode: str, precision: str, channels_last: bool, tmp_path: Path
) -> None:
    strategy = Strategy(precision, micro_batch=64, mode=mode, channels_last=channels_last)
    check("timm:resnet18", strategy, "rtx-3090", tmp_path)


@pytest.mark.parametrize(
    ("mode", "channels_last"),
    quick([("infer", False), ("infer", True), ("train", True)], slow=[("infer", True), ("train", True)]),
)
def test_a_compiled_vision_model_takes_as_long_as_the_page_scores(mode: str, channels_last: bool, tmp_path: Path) -> None:
    strategy = Strategy("amp-fp16", micro_batch=32, mode=mode, channels_last=channels_last, compile=True)
    check("timm:resnet18", strategy, "rtx-3090", tmp_path)


@pytest.mark.parametrize(
    ("name", "mode", "precision", "compiled"),
    [
        ("gpt2", "infer", "amp-fp16", False),
        pytest.param("gpt2", "train", "amp-fp16", False, marks=pytest.mark.slow),
        ("gpt2", "train", "fp32", False),
        pytest.param("bert-base", "train", "amp-bf16", False, marks=pytest.mark.slow),
        ("gpt2", "infer", "fp32", True),
        pytest.param("gpt2", "train", "amp-bf16", True, marks=pytest.mark.slow),
    ],
)
def test_a_language_model_takes_as_long_as_the_page_scores(
    name: str, mode: str, precision: str, compiled: bool, tmp_path: Path
) -> None:
    check(name, Strategy(precision, micro_batch=4, mode=mode, compile=compiled), "a100-80gb-sxm", tmp_path)


@pytest.mark.slow
def test_the_command_of_the_documentation_takes_as_long_as_the_page_scores(tmp_path: Path) -> None:
    check("resnet50", Strategy("amp-fp16", micro_batch=256, channels_last=True), "a100-80gb-sxm", tmp_path)


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv2d(3, 48, 3, stride=2), nn.BatchNorm2d(48), nn.Conv2d(48, 48, 3, padding=1, groups=2), nn.SiLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_job_whose_step_ends_soon_after_its_batch_is_there_takes_as_long_as_scored(mode: str, channels_last: bool) -> None:
    job = Job(
        Grouped,
        lambda n: {"x": torch.randn(n, 3, 64, 64)},
        lambda model, batch: model(batch["x"]).square().mean(),
        optimizer="sgd",
        name="grouped",
    )
    strategy = Strategy("amp-fp16", micro_batch=2048, mode=mode, channels_last=channels_last)
    trace, public = (
        record(job, strategy),
        gpuwise.forecast(job, on="rtx-3090", micro_batch=2048, precision="amp-fp16", mode=mode, channels_last=channels_last),
    )
    assert trace.uploads.sum() == 1 + (mode == "train")  # a copy of the images for each of the recorded micro-batches
    without_input_s = public.step_time_s.value * (1 - public.bound["input"])
    assert without_input_s == pytest.approx(scored_s(trace, "rtx-3090"), rel=EQUAL)


def test_on_a_cpu_nothing_is_uploaded() -> None:
    job = Job(
        Grouped, lambda n: {"x": torch.randn(n, 3, 16, 16)}, lambda model, batch: model(batch["x"]).mean(), name="grouped"
    )
    assert not record(job, Strategy(micro_batch=2, channels_last=True), target="cpu").uploads.any()


@pytest.mark.slow
def test_training_measured_on_an_mi250_is_that_of_one_die(tmp_path: Path) -> None:
    """The model of the row itself (sitar-lab/NeuSight: eager attention, no update of parameters, PyTorch 2.1 on "AMD Instinct
    MI250", which is one of its two dies); the whole module would take half the time. No fit has seen a row of this chip."""
    measured_s, size = 0.315754, (("seq_len", 1024),)
    case = Case("", "hf-gpt2_large", Strategy("fp32", micro_batch=1), size, "mi250", 1, 1, measured_s, update=False)
    assert scored_s(step_of(case, tmp_path), "mi250") == pytest.approx(measured_s, rel=0.1)
