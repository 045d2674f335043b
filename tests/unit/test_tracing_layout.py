"""The layout each operation computes in: by the strides of its tensors, as plain PyTorch has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gpuwise.cost.kernels.classes import classes
from gpuwise.errors import FileFormatError
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import NO_LAYOUT, Trace, load, save
from gpuwise.trace.digest import digest
from gpuwise.trace.tables import KINDS
from gpuwise.tracing import record


class Permuting(nn.Module):
    """A convolution of images, then blocks that permute to channels-last for their products, as those of ConvNeXt do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, stride=4)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, groups=8) for _ in range(2))
        self.product = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        for depthwise, product in zip(self.depthwise, self.product, strict=True):
            x = product(depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2) + x  # of two layouts the first is kept
        return self.pool(x)


def job() -> Job:
    return Job(
        Permuting,
        lambda n: {"x": torch.randn(n, 3, 32, 32)},
        lambda model, batch: model(batch["x"]).square().mean(),
        optimizer="sgd",
        name="permuting",
    )


class Seen(TorchDispatchMode):
    """Whether the images of convolutions, pools and batch norms are channels-last, in the order they run."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[bool] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        name = func._overloadpacket.__name__
        if "backward" not in name and any(kind in name for kind in ("convolution", "max_pool", "batch_norm")):
            images = [t for t in args[:2] if isinstance(t, Tensor) and t.dim() == 4]
            last = [t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in images]
            self.last.append(any(last))
        return func(*args, **(kwargs or {}))


def recorded(trace: Trace) -> list[bool]:
    """Layouts of the forward pass of the first micro-batch, in the order of the operations."""
    sequence = trace.sequence
    forward = sequence.operation[(sequence.phase == 0) & (sequence.micro_step == 0)]
    forward = forward[np.isin(trace.operations.kind[forward], [KINDS.index(kind) for kind in ("conv", "pool", "norm")])]
    layouts = trace.operations.channels_last[forward]
    return (layouts[layouts != NO_LAYOUT] == 1).tolist()


@pytest.mark.parametrize("channels_last", [False, True])
def test_layouts_are_those_of_plain_pytorch(channels_last: bool) -> None:
    torch.manual_seed(0)
    model, x = Permuting(), torch.randn(2, 3, 32, 32)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    with Seen() as seen, torch.no_grad():
        model(x)
    trace = record(job(), Strategy(micro_batch=2, channels_last=channels_last, mode="infer"))
    assert recorded(trace) == seen.last
    assert any(seen.last)
    assert all(seen.last) == channels_last


def test_each_convolution_is_priced_in_its_own_layout() -> None:
    trace = record(job(), Strategy(micro_batch=2, precision="amp-fp16"))
    names = {name for name, _ in classes(trace) if name.startswith("conv")}
    both = {"conv_depthwise", "conv_depthwise_channels_last"}  # behind the stem, and behind a product
    assert names == {"conv", "conv_backward", *both, *(f"{name}_backward" for name in both)}


def test_a_recording_without_layouts_has_that_of_the_strategy() -> None:
    trace = record(job(), Strategy(micro_batch=2))
    old = replace(trace, operations=replace(trace.operations, channels_last=np.zeros(0, dtype=np.int8)))
    assert not any("channels_last" in name for name, _ in classes(old))
    last = replace(old, header=replace(old.header, strategy=old.header.strategy.but(channels_last=True)))
    assert all("channels_last" in name for name, _ in classes(last) if name.startswith("conv"))


def test_layouts_are_kept_in_files_and_tell_steps_apart(tmp_path) -> None:
    trace = record(job(), Strategy(micro_batch=2))
    save(trace, tmp_path / "a.npz")
    kept = load(tmp_path / "a.npz")
    assert isinstance(kept, Trace)
    np.testing.assert_array_equal(kept.operations.channels_last, trace.operations.channels_last)
    layouts = np.where(trace.operations.kind == KINDS.index("conv"), 0, trace.operations.channels_last)
    other = replace(trace, operations=replace(trace.operations, channels_last=layouts))
    strategy = trace.header.strategy
    assert digest(kept, strategy) == digest(trace, strategy) != digest(other, strategy)
    damaged = replace(trace, operations=replace(trace.operations, channels_last=np.full_like(layouts, 2)))
    with pytest.raises(FileFormatError, match="damaged"):
        damaged.check()


class Volumes(nn.Module):
    """Convolutions of volumes, one of which grows them, with a batch norm and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8)
        self.pool, self.grow = nn.MaxPool3d(2), nn.ConvTranspose3d(8, 4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.grow(self.pool(self.norm(self.first(x))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
def test_volumes_are_computed_in_the_layout_of_their_tensors(memory_format: torch.memory_format) -> None:
    last = memory_format == torch.channels_last_3d
    volumes = Job(
        lambda: Volumes().to(memory_format=memory_format),
        lambda n: {"x": torch.randn(n, 3, 8, 8, 8).contiguous(memory_format=memory_format)},
        lambda model, batch: model(batch["x"]).square().mean(),
        optimizer="sgd",
        name="volumes",
    )
    trace = record(volumes, Strategy(micro_batch=2))
    assert recorded(trace) == [last] * 4
    with torch.no_grad():
        real = Volumes().to(memory_format=memory_format)(torch.randn(2, 3, 8, 8, 8).contiguous(memory_format=memory_format))
    assert real.is_contiguous(memory_format=memory_format)
    assert {kind for kind, _ in classes(trace) if kind.startswith("conv")} == (
        {"conv_channels_last", "conv_channels_last_backward"} if last else {"conv", "conv_backward"}
    )


def test_sequences_are_computed_contiguously() -> None:
    sequences = Job(
        lambda: nn.Conv1d(4, 8, 3),
        lambda n: {"x": torch.randn(n, 4, 32)},
        lambda model, batch: model(batch["x"]).square().mean(),
        optimizer="sgd",
        name="sequences",
    )
    assert recorded(record(sequences, Strategy(micro_batch=2))) == [False]
