"""What kernels read beside their arguments once: copies inside operators, operands across rows, second reads, windows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from tracing_samples import batch_of

from gpuwise.cost.kernels.classes import classes
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import NO_LAYOUT, Trace
from gpuwise.trace.tables import TURNED
from gpuwise.tracing import record

IMAGE = (4, 6, 8)  # channels, height, width
BATCH = 3


class Calls(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def recorded(call: Callable[[Tensor], Tensor], *, target: str = "accelerator", shape: tuple[int, ...] = IMAGE) -> Trace:
    """Inference that calls a function of a batch of images."""
    job = Job(lambda: Calls(call), batch_of(*shape), lambda model, batch: model(batch["x"]).sum(), name="calls")
    return record(job, Strategy(mode="infer", micro_batch=BATCH), target=target)


def row(trace: Trace, name: str) -> dict[str, int]:
    operations = trace.operations
    index = [text.split(".")[1] for text in operations.name].index(name)
    columns = ("bytes_read", "bytes_written", "kernels", "m", "n", "k")
    return {"layout": int(operations.channels_last[index])} | {c: int(operations.column(c)[index]) for c in columns}


def copies(trace: Trace) -> list[tuple[int, int]]:
    """Bytes written and layout of each copy that no operator of the model asks for."""
    operations = trace.operations
    rows = [index for index, name in enumerate(operations.name) if name == "aten.clone.default"]
    return [(int(operations.column("bytes_written")[i]), int(operations.channels_last[i])) for i in rows]


IMAGE_BYTES = 4 * BATCH * 4 * 6 * 8


@pytest.mark.parametrize(
    ("call", "copied"),
    [
        (lambda x: F.layer_norm(x, (8,)), []),
        (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (4,)), [(IMAGE_BYTES, TURNED)]),
        (lambda x: F.layer_norm(x[:, :2], (8,)), [(IMAGE_BYTES // 2, NO_LAYOUT)]),  # rows stay rows
        (lambda x: x.permute(0, 2, 3, 1).softmax(-1), [(IMAGE_BYTES, TURNED)]),
        (lambda x: x.softmax(1), []),
        (lambda x: F.unfold(x.permute(0, 1, 3, 2), 3), [(IMAGE_BYTES, TURNED)]),
        (lambda x: F.avg_pool2d(x.permute(0, 1, 3, 2), 2), [(IMAGE_BYTES, TURNED)]),
        (lambda x: F.avg_pool2d(x.to(memory_format=torch.channels_last), 2), []),
        (lambda x: x[:, 0] @ x[:, 1].transpose(1, 2), []),
        (lambda x: torch.bmm(x[:, 0, :, ::2], x[:, 1, :, ::2].transpose(1, 2)), [(4 * BATCH * 6 * 4, NO_LAYOUT)] * 2),
    ],
)
def test_copies_inside_operators_are_kernels(call, copied):
    """`contiguous` in CUDA's kernels, and prepare_batch_matrix_for_cublas: no unit stride, so cuBLAS cannot read it."""
    assert copies(recorded(call)) == list(dict.fromkeys(copied))


def test_a_cpu_has_other_kernels():
    assert copies(recorded(lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (4,)), target="cpu")) == []


class Elementwise(TorchDispatchMode):
    """Elementwise operations as they run: (result, operands)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, list[Tensor]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket.__name__ in ("add", "mul", "gelu"):
            self.calls.append((out, [t for t in args if isinstance(t, Tensor) and t.dim()]))
        return out


def crosses(result: Tensor, operand: Tensor) -> bool:
    """Whether most numbers that are neighbours in the memory of a result are apart in an operand's: address by address."""
    places = np.indices(result.shape).reshape(result.dim(), -1)
    of_result, of_operand = (np.array(t.stride()) @ places for t in (result, operand.expand(result.shape)))
    steps = np.diff(of_operand[np.argsort(of_result)])
    return bool(np.isin(steps, (0, 1)).mean() < 0.5)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("add", lambda x: x + x.sum(1, keepdim=True)),
        ("mul", lambda x: x.permute(0, 2, 3, 1) * 2),
        ("add", lambda x: x + x.contiguous(memory_format=torch.channels_last)),
        ("add", lambda x: x.contiguous(memory_format=torch.channels_last) + x),
        ("add", lambda x: x.permute(0, 2, 3, 1) + x.permute(0, 2, 3, 1)[:1]),
        ("add", lambda x: x.permute(0, 2, 3, 1) + x.permute(0, 2, 3, 1).contiguous()),
        ("mul", lambda x: x[:, :2] * x[:, 2:]),
        ("gelu", lambda x: F.gelu(x.transpose(1, 2))),
    ],
)
def test_operands_across_rows_are_those_of_plain_pytorch(name, call):
    with Elementwise() as seen:
        call(torch.randn(BATCH, *IMAGE))
    expected = any(crosses(result, operand) for result, operands in seen.calls for operand in operands)
    trace = recorded(call)
    assert (row(trace, name)["layout"] == TURNED) == expected
    assert (
        any(kernel_class.startswith("elementwise") and "_turned" in kernel_class for kernel_class, _ in classes(trace))
        == expected
    )


def test_im2col_is_launched_for_every_image_and_col2im_for_all():
    trace = recorded(lambda x: F.fold(F.unfold(x, 3, padding=1), (6, 8), 3, padding=1))
    assert row(trace, "im2col")["kernels"] == BATCH
    assert row(trace, "col2im")["kernels"] == 1


def test_group_norm_reads_its_input_twice_in_three_kernels():
    model = nn.GroupNorm(2, 4)
    job = Job(lambda: model, batch_of(*IMAGE), lambda m, batch: m(batch["x"]).sum(), name="norm", optimizer="sgd")
    trace = record(job, Strategy(micro_batch=BATCH))
    forward, backward = row(trace, "native_group_norm"), row(trace, "native_group_norm_backward")
    affine, statistics = 4 * 2 * 4, 4 * 2 * BATCH * 2
    assert forward["bytes_read"] == 2 * IMAGE_BYTES + affine
    assert forward["bytes_written"] == IMAGE_BYTES + statistics
    assert (forward["kernels"], forward["m"], forward["k"]) == (3, 2 * BATCH, 2 * 6 * 8)
    assert (backward["kernels"], backward["m"], backward["k"]) == (5, 2 * BATCH, 2 * 6 * 8)
    assert backward["bytes_read"] == 4 * IMAGE_BYTES + affine // 2 + statistics


@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 1, 1), (2, 2, 0)])
def test_pools_read_every_element_of_every_window(window, stride, padding):
    trace = recorded(lambda x: F.avg_pool2d(x, window, stride, padding))
    pool = row(trace, "avg_pool2d")
    windows = F.unfold(torch.ones(BATCH, *IMAGE), window, padding=padding, stride=stride)  # channels × elements, places
    assert pool["m"] * pool["k"] == windows.numel()


def test_a_thread_of_a_bilinear_resize_goes_through_images_and_channels():
    resized = row(recorded(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")), "upsample_bilinear2d")
    assert (resized["m"], resized["n"]) == (BATCH * 4, 12 * 16)
    last = recorded(lambda x: F.interpolate(x.to(memory_format=torch.channels_last), scale_factor=2, mode="bilinear"))
    assert row(last, "upsample_bilinear2d")["m"] == 0  # a thread for each number
