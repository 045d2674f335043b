"""Channels-last: one program that lies so and learns the same, traced as it runs, copied only where CUDA copies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.memory_on_cpu import Case, compare
from torch import nn
from tracing_samples import batch_of, class_loss, cnn_job

import gpuwise
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.job import Job
from gpuwise.job.models.mlp import class_loss as image_loss
from gpuwise.job.models.mlp import image_batch
from gpuwise.job.models.resnet import ResNet, ResNetConfig
from gpuwise.runtime.build.placement import in_channels_last
from gpuwise.runtime.build.program import Program, build
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import record

LAST = Strategy("amp-fp16", micro_batch=4, channels_last=True)


class Tied(nn.Module):
    """Two convolutions that share a filter, one of a single channel, and a plain tensor of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.b.weight = self.a.weight
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.register_buffer("window", torch.ones(1, 4, 3, 3))
        self.table = torch.ones(2, 2, 2, 2)


def program(job: Job, *, channels_last: bool) -> Program:
    torch.manual_seed(0)
    return build(job, Strategy(micro_batch=4, channels_last=channels_last), "cpu")


def losses(job: Job, *, channels_last: bool) -> list[float]:
    built = program(job, channels_last=channels_last)
    torch.manual_seed(1)
    batch = {"x": torch.randn(4, 3, 16, 16), "y": torch.arange(4)}
    return [float(built.step([batch])) for _ in range(3)]


def lies_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


def operators(trace: Trace) -> list[str]:
    """Names of the operators of the first micro-batch in the order they run, without namespace and overload."""
    run = trace.sequence.operation[trace.sequence.micro_step == 0]
    return [trace.operations.name[i].split(".")[1] for i in run]


def test_the_loss_is_that_of_the_contiguous_program() -> None:
    assert losses(cnn_job(), channels_last=True) == pytest.approx(losses(cnn_job(), channels_last=False), rel=1e-5)


def test_parameters_and_buffers_lie_as_module_to_leaves_them() -> None:
    ours = program(Job(Tied, batch_of(4, 8, 8), class_loss), channels_last=True).model
    theirs = Tied().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    strides = [{name: tensor.stride() for name, tensor in model.state_dict().items()} for model in (ours, theirs)]
    assert strides[0] == strides[1]
    assert ours.a.weight is ours.b.weight
    assert ours.table.is_contiguous()
    assert all(p.requires_grad for p in ours.parameters())


def test_images_of_the_batch_are_moved_and_nothing_else() -> None:
    images, tokens, gray = torch.randn(2, 3, 4, 4), torch.zeros(2, 5, dtype=torch.int64), torch.randn(2, 1, 4, 4)
    assert lies_last(in_channels_last(images))
    assert torch.equal(in_channels_last(images), images)
    assert in_channels_last(tokens) is tokens
    assert in_channels_last(gray) is gray  # one channel lies both ways


@pytest.mark.parametrize("size", [48, 64])
def test_the_predicted_peak_is_the_real_one(size: int) -> None:
    job = Job(
        lambda: ResNet(ResNetConfig(depths=(1, 1, 1, 1), classes=100)),
        partial(image_batch, image_size=size, classes=100),
        image_loss,
    )
    row = compare(Case("ResNet", job, Strategy(micro_batch=4, channels_last=True), convolutions=True))
    assert abs(row.error) <= 0.0005, row


def test_a_step_of_convolutions_and_batch_norms_copies_the_batch_alone() -> None:
    job = Job(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=8, bias=False),
            nn.Conv2d(8, 16, 1, bias=False),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 5),
        ),
        batch_of(3, 16, 16),
        class_loss,
    )
    plain, last = (operators(record(job, LAST.but(channels_last=layout))) for layout in (False, True))
    added = list(last)
    for name in plain:
        added.remove(name)
    # The batch into the layout; what flattening does to it, which takes channels first, and to its gradient, which the
    # pool's backward takes in the layout of its input.
    assert sorted(added) == ["clone", "clone", "clone"]
    assert last.index("clone") < last.index("convolution")


def test_group_norm_gives_contiguous_results_which_the_next_convolution_copies() -> None:
    job = Job(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        ),
        batch_of(3, 16, 16),
        class_loss,
    )
    trace = record(job, LAST)
    names = operators(trace)
    forward = names[: names.index("addmm")]
    assert forward.index("clone", forward.index("convolution")) < forward.index("native_group_norm")
    second = forward.index("convolution", forward.index("native_group_norm"))
    assert forward[second - 1] == "clone"
    row = trace.sequence.operation[trace.sequence.micro_step == 0][second]
    assert trace.operations.column("workspace_bytes")[row] == 2 * 4 * 8 * 16 * 16  # its input, copied


def test_a_recording_says_how_its_tensors_lie() -> None:
    assert record(cnn_job(), LAST).header.strategy.channels_last is True
    assert record(cnn_job(), LAST.but(channels_last=False)).header.strategy.channels_last is False


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float32, 2), (torch.float64, 1)])
def test_cudnn_leaves_fp64_contiguous_so_that_flattening_is_a_view(dtype: torch.dtype, copies: int) -> None:
    def batch(n: int) -> dict[str, torch.Tensor]:
        return {"x": torch.zeros(n, 3, 16, 16, dtype=dtype), "y": torch.zeros(n, dtype=torch.int64)}

    job = Job(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 5)).to(dtype), batch, class_loss)
    names = operators(record(job, LAST.but(precision="fp32")))
    assert names[: names.index("addmm")].count("clone") == copies


def test_every_verb_takes_it() -> None:
    job = replace(cnn_job(), name="cnn")
    requests: dict[str, Any] = {"micro_batch": 4, "channels_last": True}
    assert gpuwise.forecast(job, on="t4", precision="amp-fp16", **requests).strategy.channels_last
    assert gpuwise.fit(job, on="t4", precision="amp-fp16", **requests).rows[0].strategy.channels_last
    (row,) = gpuwise.compare(job, on="t4", precision="amp-fp16", **requests).rows
    assert row.forecast is not None
    assert row.forecast.strategy.channels_last
    assert gpuwise.train(job, steps=1, progress="silent", **requests).strategy.channels_last


def test_a_saved_step_answers_for_its_own_layout_alone(tmp_path: Path) -> None:
    path = tmp_path / "cnn.npz"
    gpuwise.record(replace(cnn_job(), name="cnn"), path, precision="amp-fp16", channels_last=True)
    on: dict[str, Any] = {"on": "t4", "precision": "amp-fp16", "micro_batch": 8}
    assert gpuwise.forecast(str(path), **on, channels_last=True).memory.peak_allocated_bytes > 0
    with pytest.raises(UnsupportedError, match="give --channels-last"):
        gpuwise.forecast(str(path), **on)


def test_a_preset_is_traced_as_its_recording_lies_otherwise() -> None:
    plain, last = (
        gpuwise.forecast("alexnet", on="t4", precision="amp-fp16", micro_batch=8, channels_last=layout)
        for layout in (False, True)
    )
    assert last.flops_per_step == plain.flops_per_step
    assert last.strategy == plain.strategy.but(channels_last=True)


def test_anything_but_yes_or_no_is_refused() -> None:
    with pytest.raises(InputError, match="unknown channels last 'yes'"):
        gpuwise.forecast(cnn_job(), on="t4", channels_last="yes")  # type: ignore[arg-type]
