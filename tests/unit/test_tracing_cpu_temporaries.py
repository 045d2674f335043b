"""The table of what CPU kernels hold inside one call, against what the real operators allocate under the profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpuwise.tracing.kernels.cpu_rnn import workspace_bytes as rnn_workspace_bytes
from gpuwise.tracing.kernels.cpu_temporaries import workspace_bytes
from gpuwise.tracing.kernels.instruction_sets import has_tiles, multiplies_bf16, vector_floats
from gpuwise.tracing.operator_call import OperatorCall

aten = torch.ops.aten
AVX512 = vector_floats() == 16


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def allocated(call: Callable[[], Any]) -> tuple[Any, int, int]:
    """What the call returns, the most bytes it held, and those it still holds at its end."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        result = call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return result, int(live.max()), int(live[-1])


def predicted_and_real(func: Any, *args: Any) -> tuple[int, int]:
    """Bytes beyond the results: by the table, and in truth."""
    result, peak, kept = allocated(lambda: func(*args))
    outputs = [t for t in (result if isinstance(result, tuple) else (result,)) if t is not None]
    return workspace_bytes(OperatorCall(func, args, {}, outputs)), peak - kept


def close(predicted: int, real: int, *, of: int) -> bool:
    """Within 3 % of the tensors involved: scratchpads of single kernels are left out."""
    return abs(predicted - real) <= 0.03 * of


CONVOLUTIONS = {  # samples, channels, side, out, kernel, stride, padding, groups
    "first layer": (4, 3, 64, 64, 7, 2, 3, 1),
    "3x3": (4, 64, 16, 64, 3, 1, 1, 1),
    "3x3 strided": (4, 128, 16, 128, 3, 2, 1, 1),
    "point": (16, 64, 16, 256, 1, 1, 0, 1),
    "point by PyTorch": (4, 64, 16, 256, 1, 1, 0, 1),
    "point strided": (4, 256, 16, 512, 1, 2, 0, 1),
    "one small image by PyTorch": (1, 16, 16, 32, 3, 1, 1, 1),
    "few channels out": (2, 32, 16, 4, 3, 1, 1, 1),
    "patches": (2, 3, 64, 64, 16, 16, 0, 1),
    "small patches": (2, 3, 32, 96, 4, 4, 0, 1),
    "depthwise": (4, 32, 16, 32, 3, 1, 1, 32),
    "depthwise 7x7": (2, 96, 8, 96, 7, 1, 3, 96),
    "kernel above the image": (2, 256, 2, 256, 3, 1, 1, 1),
    "kernel above one row": (2, 64, 1, 64, 3, 1, 1, 1),
    "more padding than outputs": (2, 64, 2, 64, 7, 2, 3, 1),
    "grey image": (4, 1, 28, 32, 5, 1, 2, 1),
    "grey image by points": (16, 1, 32, 64, 1, 1, 0, 1),
    "twelve channels": (4, 12, 28, 64, 3, 1, 1, 1),
    "groups of four": (4, 64, 16, 64, 3, 1, 1, 16),
    "groups of eight": (4, 64, 16, 64, 3, 1, 1, 8),
    "points in groups": (4, 128, 16, 128, 1, 1, 0, 4),
}


def convolution_inputs(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, list[Any], int]:
    samples, channels, side, out, kernel, stride, padding, groups = CONVOLUTIONS[name]
    x = torch.zeros(samples, channels, side, side, dtype=dtype)
    weight = torch.zeros(out, channels // groups, kernel, kernel, dtype=dtype)
    return x, weight, [[stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups], out


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_forward(name):
    x, weight, options, _ = convolution_inputs(name, torch.float32)
    predicted, real = predicted_and_real(aten.convolution.default, x, weight, None, *options)
    assert close(predicted, real, of=x.nbytes + weight.nbytes), (predicted, real)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_backward(name):
    x, weight, options, out = convolution_inputs(name, torch.float32)
    first = options[-1] == 1 and x.shape[1] == 3  # images need no gradient
    grad = torch.zeros_like(aten.convolution(x, weight, None, *options))
    args = (grad, x, weight, [out], *options, [not first, True, True])
    predicted, real = predicted_and_real(aten.convolution_backward.default, *args)
    assert close(predicted, real, of=x.nbytes + weight.nbytes + grad.nbytes), (predicted, real)


@pytest.mark.skipif(not AVX512, reason="without AVX-512 oneDNN leaves half precision to PyTorch")
@pytest.mark.parametrize("name", ["first layer", "3x3", "point", "point strided", "patches"])
def test_convolution_in_half_precision(name):
    if has_tiles() and name == "patches":
        pytest.skip("AMX reads few channels through a buffer that no rule is known of: 0.7 MB here")
    x, weight, options, _ = convolution_inputs(name, torch.bfloat16)
    predicted, real = predicted_and_real(aten.convolution.default, x, weight, None, *options)
    if has_tiles():  # its scratchpads are larger
        assert 0 <= real - predicted <= 90_000, (predicted, real)
    else:
        assert close(predicted, real, of=x.nbytes + weight.nbytes), (predicted, real)


@pytest.mark.parametrize("both", [False, True])
def test_channels_last_convolution(both):
    x, weight, options, _ = convolution_inputs("3x3", torch.float32)
    x = x.to(memory_format=torch.channels_last)
    weight = weight.to(memory_format=torch.channels_last) if both else weight
    predicted, real = predicted_and_real(aten.convolution.default, x, weight, None, *options)
    if AVX512:
        assert close(predicted, real, of=x.nbytes + weight.nbytes), (predicted, real)
    else:  # its scratchpad is larger
        assert 0 <= real - predicted <= 30_000, (predicted, real)


def test_columns_of_a_large_image_are_an_upper_bound():
    """oneDNN unfolds an image in parts that fit into its caches."""
    x, weight = torch.zeros(2, 16, 32, 32), torch.zeros(32, 16, 9, 9)
    options = [[1, 1], [4, 4], [1, 1], False, [0, 0], 1]
    predicted, real = predicted_and_real(aten.convolution.default, x, weight, None, *options)
    assert close(predicted, real, of=x.nbytes + weight.nbytes) if AVX512 else predicted >= real, (predicted, real)


@pytest.mark.parametrize(
    ("shape", "weight_shape", "stride", "transposed"),
    [
        ((4, 64, 16, 16), (64, 32, 2, 2), 2, True),
        ((4, 64, 1, 100), (128, 64, 1, 3), 1, False),
        ((2, 16, 8, 8, 8), (32, 16, 3, 3, 3), 1, False),
    ],
    ids=["transposed", "1-D", "3-D"],
)
def test_other_convolutions(shape, weight_shape, stride, transposed):
    x, weight, ones = torch.zeros(shape), torch.zeros(weight_shape), [1] * (len(shape) - 2)
    options = [[stride] * len(ones), [0] * len(ones), ones, transposed, [0] * len(ones), 1]
    predicted, real = predicted_and_real(aten.convolution.default, x, weight, None, *options)
    assert close(predicted, real, of=x.nbytes + weight.nbytes), (predicted, real)


@pytest.mark.parametrize(("times", "samples", "inputs", "hidden"), [(32, 8, 128, 128), (33, 5, 100, 100), (32, 8, 128, 256)])
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_lstm(times, samples, inputs, hidden):
    x, h, c = torch.zeros(times, samples, inputs), torch.zeros(samples, hidden), torch.zeros(samples, hidden)
    w = [torch.zeros(4 * hidden, inputs), torch.zeros(4 * hidden, hidden), torch.zeros(4 * hidden), torch.zeros(4 * hidden)]
    args = (x, *w, h, c, False, [], 2, hidden, 1, True, False, False, True)
    out, hy, cy, kept = aten.mkldnn_rnn_layer(*args)
    assert kept.nbytes == rnn_workspace_bytes(times, samples, inputs, hidden, 4)
    size = x.nbytes + sum(t.nbytes for t in w) + kept.nbytes
    predicted, real = predicted_and_real(aten.mkldnn_rnn_layer.default, *args)
    assert close(predicted, real, of=size), (predicted, real)
    back = (x, *w, h, c, out, hy, cy, out, hy, cy, False, 2, hidden, 1, True, True, False, [], False, kept)
    predicted, real = predicted_and_real(aten.mkldnn_rnn_layer_backward.default, *back)
    assert close(predicted, real, of=size), (predicted, real)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys", "size"), [(64, 64, 64), (17, 17, 64), (256, 76, 16), (800, 300, 32)])
def test_attention(dtype, queries, keys, size):
    q, k = torch.zeros(1, 2, queries, size, dtype=dtype), torch.zeros(1, 2, keys, size, dtype=dtype)
    predicted, real = predicted_and_real(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, k)
    assert predicted == real
    if dtype == torch.float32:  # in half precision oneDNN's products hold a little more
        out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)
        q, k, out = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, out))  # as a model has them
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        predicted, real = predicted_and_real(backward, out, q, k, k, out, logsumexp, 0.0, False)
        assert predicted == real


@pytest.mark.skipif(multiplies_bf16(), reason="blocks by cache sizes where the processor multiplies bfloat16")
@pytest.mark.parametrize(("rows", "common", "columns"), [(64, 64, 64), (128, 256, 256), (256, 64, 4096), (64, 4096, 256)])
def test_products_in_half_precision(rows, common, columns):
    first, second = torch.zeros(rows, common, dtype=torch.bfloat16), torch.zeros(common, columns, dtype=torch.bfloat16)
    for matrix in (first, torch.zeros(common, rows, dtype=torch.bfloat16).t()):
        predicted, real = predicted_and_real(aten.mm.default, matrix, second)
        assert 0 <= real - predicted <= 128, (predicted, real)


def norm_inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(4, 64, 8, 8, dtype=dtype), torch.zeros(64), torch.ones(64)


def exact_cases() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    x, zeros, ones = norm_inputs()
    rows, row = torch.zeros(4, 16, 64), torch.ones(64)
    across, mean = torch.zeros(16, 4, 64).transpose(0, 1), torch.zeros(4, 16, 1)
    scores, image = torch.zeros(2, 3, 50, 40), torch.zeros(1, 64, 4, 4)
    half = torch.zeros(4, 16, 64, dtype=torch.bfloat16)
    last, half_image = (x.to(memory_format=torch.channels_last) for x in (image, torch.zeros(1, 64, 2, 2)))
    return {
        "batch norm": (aten.native_batch_norm.default, (x, ones, zeros, zeros, ones, True, 0.1, 1e-5)),
        "batch norm backward": (
            aten.native_batch_norm_backward.default,
            (x, x, ones, zeros, ones, zeros, ones, True, 1e-5, [True] * 3),
        ),
        "layer norm across": (aten.native_layer_norm.default, (across, [64], row, row, 1e-5)),
        "layer norm": (aten.native_layer_norm.default, (rows, [64], row, row, 1e-5)),
        "layer norm backward": (aten.native_layer_norm_backward.default, (rows, rows, [64], mean, mean, row, row, [True] * 3)),
        "layer norm backward across": (
            aten.native_layer_norm_backward.default,
            (across, rows, [64], mean, mean, row, row, [True] * 3),
        ),
        "group norm backward": (
            aten.native_group_norm_backward.default,
            (x, x, torch.zeros(4, 32), torch.ones(4, 32), ones, 4, 64, 64, 32, [True] * 3),
        ),
        "nearest": (aten.upsample_nearest2d.default, (image, [8, 8])),
        "pooling backward": (
            aten.max_pool2d_with_indices_backward.default,
            (half_image, last, [2, 2], [2, 2], [0, 0], [1, 1], False, torch.zeros(1, 64, 2, 2, dtype=torch.long)),
        ),
        "sum of two types": (aten.add.Tensor, (rows, half)),
        "product of one type": (aten.mul.Tensor, (rows, rows)),
        "in place of a smaller type": (aten.add_.Tensor, (half, rows)),
        "scaled softmax": (aten._safe_softmax.default, (scores, -1)),
        "squared error": (aten.mse_loss.default, (rows, rows)),
    }


@pytest.mark.parametrize("name", exact_cases())
def test_kernels_that_are_known_exactly(name):
    func, args = exact_cases()[name]
    predicted, real = predicted_and_real(func, *args)
    assert abs(predicted - real) <= 16, (predicted, real)  # a scalar or two


@pytest.mark.parametrize("name", ["softmax", "embedding", "gelu backward", "gelu"])
def test_kernels_that_hold_nothing(name):
    x = torch.zeros(32, 100)
    func, args = {
        "softmax": (aten._softmax_backward_data.default, (x, x, -1, torch.float32)),
        "embedding": (aten.embedding_dense_backward.default, (torch.zeros(4, 8, 32), torch.zeros(4, 8).long(), 50, -1, False)),
        "gelu backward": (aten.gelu_backward.default, (x, x)),
        "gelu": (aten.gelu.default, (x,)),
    }[name]
    assert predicted_and_real(func, *args) == (0, 0)
