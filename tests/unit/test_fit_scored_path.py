"""The path that docs/accuracy.md scores and the public functions give one time, in either layout: published steps have their
batch on the device already, the user's do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.fit.steps import Step, entries_of, table_of
from torch import Tensor, nn

import gpuwise
from gpuwise.cost.calibration import calibration
from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace.tables import CATEGORIES, KINDS
from gpuwise.trace.trace import Trace
from gpuwise.tracing import record

MICRO_BATCH = 2048


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv2d(3, 48, 3, stride=2), nn.BatchNorm2d(48), nn.Conv2d(48, 48, 3, padding=1, groups=2), nn.SiLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


def job() -> Job:
    return Job(
        Grouped,
        lambda n: {"x": torch.randn(n, 3, 64, 64)},
        lambda model, batch: model(batch["x"]).square().mean(),
        optimizer="sgd",
        name="grouped",
    )


def upload_s(trace: Trace) -> float:
    """Copies of the batch to the device, which published steps do not have."""
    born = np.unique(trace.storages.born[trace.storages.category == CATEGORIES.index("input")])
    born = born[born >= 0]
    operation = trace.sequence.operation[born]
    copies = trace.repeats[born] * (trace.operations.kind[operation] == KINDS.index("copy"))
    seconds = kernel_times(trace, Catalog().chip("rtx-3090"), parameters()).device_s[operation]
    return float((seconds * copies).sum())


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_scored_and_public_times_differ_by_the_batch_alone(mode: str, channels_last: bool) -> None:
    strategy = Strategy(micro_batch=MICRO_BATCH, precision="amp-fp16", mode=mode, channels_last=channels_last)
    trace, chip = record(job(), strategy), Catalog().chip("rtx-3090")
    table = table_of([Step(chip, trace, 1.0, "grouped")])
    (scored_s,) = table.step_s(entries_of(calibration(chip), table.parts))
    public = gpuwise.forecast(
        job(), on="rtx-3090", micro_batch=MICRO_BATCH, precision="amp-fp16", mode=mode, channels_last=channels_last
    )
    without_input_s = public.step_time_s.value * (1 - public.bound["input"])
    assert scored_s == pytest.approx(without_input_s - upload_s(trace), rel=1e-9)
