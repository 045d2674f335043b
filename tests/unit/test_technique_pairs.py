"""Techniques two by two: each pair is traced, or refused by the one table of exclusions, by every verb in the same words."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from technique_samples import MEMORY_TECHNIQUES
from torch import Tensor, nn

import gpuwise
from gpuwise.api.traced import JobSource
from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.build.failure import job_line
from gpuwise.step_settings import RunSettings, StepSettings, settings_of, strategy_of
from gpuwise.strategy import EXCLUSIONS, Strategy, check_techniques
from gpuwise.trace import recorded_as

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft, torchao and what they import

WIDTH = 64


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).float().square().mean()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


JOB = Job(Net, lambda n: torch.ones(n, WIDTH), loss, name="net", samples=1000)
CHOSEN = {"precision": "amp-bf16", "micro_batch": 16}
TECHNIQUES: dict[str, dict[str, Any]] = {
    **{name: {"precision": name} for name in ("amp-fp16", "bf16", "fp8")},
    "recompute": {"recompute": "full"},
    "muon": {"optimizer": "muon"},
    "adafactor": {"optimizer": "adafactor"},
    "8-bit Adam": {"optimizer": "adamw-8bit"},
    "fused SGD": {"optimizer": "sgd", "optimizer_kernels": "fused"},
    **MEMORY_TECHNIQUES,
    "accumulated": {"accumulate": 2},
    "inference": {"mode": "infer"},
    "replicated": {"mesh": "dp=2"},
    "sharded": {"mesh": "dp_shard=2"},
}
PAIRS = [
    (one, other)
    for one, other in itertools.combinations(TECHNIQUES, 2)
    if not TECHNIQUES[one].keys() & TECHNIQUES[other].keys()
]


def settings(one: str, other: str) -> dict[str, Any]:
    return {**CHOSEN, **TECHNIQUES[one], **TECHNIQUES[other]}


@cache
def refusal(one: str, other: str, *, priced: bool = True) -> GpuwiseError | None:
    try:
        strategy_of(settings(one, other), priced=priced)
    except GpuwiseError as error:
        return error
    return None


def verbs_of(pair: dict[str, Any], job: Job = JOB) -> dict[str, Callable[[], object]]:
    """The verbs that take these settings."""
    device = "h100-sxm:2" if "mesh" in pair else "h100-sxm"
    verbs: dict[str, Callable[[], object]] = {
        "forecast": partial(gpuwise.forecast, job, on=device, **pair),
        "fit": partial(gpuwise.fit, job, on=device, **pair),
    }
    if "mesh" not in pair:
        verbs["compare"] = partial(gpuwise.compare, job, on=device, **pair)
    if pair.keys() <= settings_of(StepSettings).keys():
        verbs["plan"] = partial(gpuwise.plan, job, on=device, **pair)
    if pair.keys() <= settings_of(RunSettings).keys():
        verbs["train"] = partial(gpuwise.train, job, steps=1, progress="silent", **pair)
    return verbs


@pytest.mark.parametrize("first", TECHNIQUES)
def test_a_pair_that_is_not_refused_is_traced(first: str) -> None:
    source = JobSource(JOB, "", {})
    for one, other in PAIRS:
        if one == first and refusal(one, other) is None:
            trace = source.step_traces().trace(recorded_as(strategy_of(settings(one, other))))
            assert len(trace.sequence) > 0, (one, other)


@pytest.mark.parametrize(("one", "other"), [pair for pair in PAIRS if refusal(*pair)])
def test_a_refused_pair_is_refused_by_every_verb_in_the_same_words(
    one: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwise.tracing.record", None)  # nothing is traced before
    assert refusal(one, other) is not None
    for verb, call in verbs_of(settings(one, other)).items():
        expected = refusal(one, other, priced=verb != "train")
        if expected is None:  # training runs what no forecast prices so far
            continue
        with pytest.raises(GpuwiseError) as caught:
            call()
        assert (verb, type(caught.value), str(caught.value)) == (verb, type(expected), str(expected))


@pytest.mark.parametrize(
    ("job", "techniques", "reason"),
    [
        (replace(JOB, clip_norm=1.0), {"optimizer_in_backward": True}, "cannot be clipped together"),
        (replace(JOB, step=lambda context, batch: None), {"keep_gradients": True}, "it clears gradients itself"),
    ],
)
def test_what_the_job_excludes_is_refused_by_every_verb_in_the_same_words(
    job: Job, techniques: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwise.tracing.record", None)  # nothing is traced before
    for call in verbs_of({**CHOSEN, **techniques}, job).values():
        with pytest.raises((InputError, UnsupportedError), match=reason) as caught:
            call()
        assert caught.value.ways_out


def test_a_refusal_points_at_no_line_as_if_it_were_the_users() -> None:
    def refused() -> None:
        check_techniques(Strategy(adapter="qlora", precision="fp8"))

    with pytest.raises(InputError) as caught:
        refused()
    frames = caught.value.__traceback__
    while frames is not None and "gpuwise" not in Path(frames.tb_frame.f_code.co_filename).parts:
        frames = frames.tb_next
    assert job_line(caught.value.with_traceback(frames), part=None) is None


def test_every_row_of_the_table_says_a_way_out() -> None:
    for row in EXCLUSIONS:
        assert 1 <= len(row.ways_out) <= 2, row.reason
        assert row.reason.endswith("."), row.reason


def test_a_plain_strategy_is_refused_by_no_row() -> None:
    for mode in ("train", "infer"):
        assert strategy_of({"mode": mode}) == Strategy(mode=mode)


def test_compare_shows_the_reason_of_the_device_that_excludes_a_technique() -> None:
    cpu, gpu = gpuwise.compare("gpt2", on="xeon-8380,t4", offload="optimizer").rows
    assert cpu.forecast is None
    assert "a CPU is the host" in cpu.reason
    assert gpu.forecast is not None
    with pytest.raises(InputError, match="a CPU is the host"):
        gpuwise.compare("gpt2", on="xeon-8380", offload="optimizer")
