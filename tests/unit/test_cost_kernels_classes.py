"""What sets kernels of a GPU apart: kinds of copies and elementwise operations, layouts, and who computes a depthwise
convolution."""

import numpy as np
import pytest

from gpuwise.cost.calibration.levels import likely
from gpuwise.cost.kernels import conv
from gpuwise.cost.kernels.classes import class_of, classes
from gpuwise.cost.kernels.shapes import Hardware, Shapes
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header
from gpuwise.trace.tables import COLUMNS, KINDS, Operations, OperationSequence, Storages
from gpuwise.trace.trace import Trace

HARDWARE = Hardware(peak_flops_per_s=1e14, bandwidth_bytes_per_s=1e12, units=100.0, cache_bytes=4e7)


def step(workspace_bytes: int, dtype: str = "float16") -> Trace:
    """Three convolutions, one of them depthwise, on 8 images of 32 × 32."""
    rows = [
        ("conv", 1, 8192, 64, 576, workspace_bytes),
        ("conv", 1, 8192, 64, 64, workspace_bytes),
        ("conv", 64, 8192, 1, 49, 0),
    ]
    values = np.zeros((len(rows), len(COLUMNS)), dtype=np.int64)
    for row, (_, batch, m, n, k, workspace) in zip(values, rows, strict=True):
        row[[COLUMNS.index(name) for name in ("batch", "m", "n", "k", "workspace_bytes")]] = batch, m, n, k, workspace
    kinds = np.array([KINDS.index(kind) for kind, *_ in rows])
    operations = Operations(("aten.convolution.default",) * 3, kinds, (dtype,) * 3, values)
    empty, zeros = np.zeros(0, dtype=int), np.zeros(3, dtype=int)
    header = Header("conv", "", {"micro_batch": 8}, Strategy(precision="amp-fp16", mode="infer"), 0, 0)
    return Trace(header, operations, OperationSequence(np.arange(3), zeros, zeros, zeros), Storages(*[empty] * 5), ("",))


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("copy", "aten._to_copy.default", "copy_cast"),
        ("copy", "aten.cat.default", "copy_cat"),
        ("copy", "aten.clone.default", "copy"),
        ("elementwise", "aten.silu.default", "elementwise_activation"),
        ("elementwise", "aten.gelu_backward.default", "elementwise_activation_gelu"),
        ("loss", "aten.nll_loss_forward.default", "loss_nll"),
        ("pool", "aten.max_pool2d_with_indices_backward.default", "pool_max_backward"),
        ("elementwise", "aten.add_.Tensor", "elementwise_binary"),
        ("elementwise", "aten.relu_.default", "elementwise"),
        ("norm", "aten.native_layer_norm_backward.default", "norm_layer_backward"),
    ],
)
def test_operations_of_a_kind_with_kernels_of_their_own(kind, name, expected):
    assert class_of(kind, name) == expected
    assert likely(expected)[-1] == kind  # where a file knows no more


def test_batch_norm_in_inference_is_elementwise():
    assert class_of("norm", "aten.cudnn_batch_norm.default", infer=True) == "elementwise_norm"
    assert class_of("norm", "aten.cudnn_batch_norm.default") == "norm_batch"


def test_convolutions_without_copies_between_layouts_are_channels_last():
    assert set(classes(step(0))) == {("conv_channels_last", "float16"), ("conv_depthwise_channels_last", "float16")}
    assert set(classes(step(1 << 20))) == {("conv", "float16"), ("conv_depthwise", "float16")}
    assert ("conv", "float32") in classes(step(0, "float32"))  # in fp32 no copies are needed


@pytest.mark.parametrize(
    ("channels", "k", "stride", "library"), [(64, 9, 1, True), (16, 9, 1, False), (64, 49, 1, False), (64, 9, 2, False)]
)
def test_cudnn_computes_depthwise_convolutions_of_small_filters_and_many_channels(channels, k, stride, library):
    m = 8 * 32 * 32
    one = np.ones(1)
    shapes = Shapes(
        flops=2.0 * channels * m * k * one,
        bytes_read=2.0 * channels * (m * stride**2 + k) * one,
        bytes_written=2.0 * channels * m * one,
        kernels=one,
        batch=channels * one,
        m=m * one,
        n=one,
        k=k * one,
        causal=0 * one,
        element_bytes=2 * one,
    )
    seconds = conv.terms(shapes, HARDWARE).seconds
    assert (seconds["library"][0] > 0) == library
    assert (seconds["direct"][0] > 0) != library


@pytest.mark.parametrize(
    ("groups", "width", "on_vector_units"),
    [(32, 4, False), (64, 32, False), (20, 16, True), (32, 24, True), (2, 128, True), (1, 64, False)],
)
def test_groups_that_fill_no_tile_of_tensor_cores_may_run_on_vector_units(groups, width, on_vector_units):
    m, k, one = 8 * 32 * 32, 9 * width, np.ones(1)
    shapes = Shapes(
        flops=2.0 * groups * m * width * k * one,
        bytes_read=2.0 * groups * (m * width + width * k) * one,
        bytes_written=2.0 * groups * m * width * one,
        kernels=one,
        batch=groups * one,
        m=m * one,
        n=width * one,
        k=k * one,
        causal=0 * one,
        element_bytes=2 * one,
    )
    assert (conv.terms(shapes, HARDWARE).seconds["direct"][0] > 0) == on_vector_units
