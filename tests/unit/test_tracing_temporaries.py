"""What CUDA's kernels take inside: rules against figures worked out by hand from the sources they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tracing_samples import attention_job, cnn_job, mlp_job

from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.strategy import Strategy
from gpuwise.trace import Axis, Trace, build_family, family_of_one
from gpuwise.trace.stepped import STEPPED, efficient_backward, embedding_backward, flash_backward, layer_norm_backward
from gpuwise.tracing import record
from gpuwise.tracing.kernels import rnn, temporaries
from gpuwise.tracing.kernels.schemas import CudnnRnnArguments
from gpuwise.tracing.operator_call import OperatorCall

aten = torch.ops.aten
BHSD = (2, 4, 16, 32)  # batch, heads, sequence, head size


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def heads_inside(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """(batch, heads, sequence, size) over (batch, sequence, heads, size): what a transposed projection is."""
    batch, heads, length, size = shape
    return empty(batch, length, heads, size, dtype=dtype).transpose(1, 2)


def inside(func: Any, args: Sequence[Any], outputs: Sequence[Tensor] = ()) -> int:
    return temporaries.workspace_bytes(OperatorCall(func, args, {}, outputs))


X = empty(8, 64)
TURNED = empty(64, 8).t()
IMAGE, FILTER, RESULT = empty(2, 3, 8, 8), empty(16, 3, 3, 3), empty(2, 16, 8, 8)
LAST = RESULT.to(memory_format=torch.channels_last)
CONVOLUTION = (None, [1, 1], [1, 1], [1, 1], False, [0, 0])
HALF_HEADS = heads_inside(*BHSD)
WIDE = heads_inside(2, 4, 16, 160)


@pytest.mark.parametrize(
    ("func", "args", "outputs", "expected"),
    [
        (aten.relu.default, (X,), (), 0),
        (aten._softmax.default, (X, -1, False), (), 0),
        (aten._softmax.default, (TURNED, -1, False), (), 8 * 64 * 4),
        (aten._softmax_backward_data.default, (X, X, -1, torch.float32), (), 8 * 64 * 4),
        (aten._softmax_backward_data.default, (X, TURNED, -1, torch.float32), (), 2 * 8 * 64 * 4),
        (aten._log_softmax_backward_data.default, (X, X, -1, torch.float32), (), 0),
        (aten.mm.default, (X, X.t()), (), 0),  # a transposed operand is read as it lies
        (aten.mm.default, (empty(8, 128)[:, ::2], X.t()), (), 8 * 64 * 4),
        (aten.addmm.default, (empty(8), X, empty(1, 1).expand(64, 8)), (), 64 * 8 * 4),
        (aten.bmm.default, (empty(1, 8, 64).expand(5, 8, 64), empty(5, 64, 8)), (), 0),  # one matrix for all is no copy
        (aten.bmm.default, (empty(5, 1, 64).expand(5, 8, 64), empty(5, 64, 8)), (), 5 * 8 * 64 * 4),
        (aten._scaled_dot_product_flash_attention_backward.default, (HALF_HEADS,) * 5, (), 0),
        (
            aten._scaled_dot_product_flash_attention_backward.default,
            (empty(*BHSD, dtype=torch.bfloat16), *(HALF_HEADS,) * 4),
            (),
            2 * 4 * 16 * 32 * 2,
        ),
        (
            aten._scaled_dot_product_flash_attention_backward.default,  # dk, dv of four heads where keys have two
            (HALF_HEADS, HALF_HEADS, *(heads_inside(2, 2, 16, 32),) * 2, HALF_HEADS),
            (),
            2 * (2 * 4 * 16 * 32 * 2),
        ),
        (aten._scaled_dot_product_efficient_attention.default, (HALF_HEADS,) * 3, (), 0),
        (aten._scaled_dot_product_efficient_attention.default, (WIDE,) * 3, (), 2 * 4 * 16 * 160 * 4),
        (aten._scaled_dot_product_efficient_attention.default, (WIDE.float(),) * 3, (), 0),
        (aten._scaled_dot_product_efficient_attention_backward.default, (empty(*BHSD),), (), 2 * 4 * 16 * 32 * 4),
        (aten._scaled_dot_product_cudnn_attention_backward.default, (HALF_HEADS,) * 3, (), 4 * 2 * 4 * 16 * (32 + 2)),
        (aten.native_layer_norm.default, (X, [64], None, None, 1e-5), (), 0),
        (aten.native_layer_norm_backward.default, (TURNED, X), (), 8 * 64 * 4),
        (aten._fused_rms_norm_backward.default, (X, TURNED), (), 8 * 64 * 4),
        (aten.native_group_norm.default, (IMAGE, empty(3), empty(3), 2, 3, 64, 1, 1e-5), (), 4 * 2 * 2 * 3),
        (aten.native_group_norm.default, (IMAGE.half(), empty(3), empty(3), 2, 3, 64, 1, 1e-5), (), 4 * (2 * 2 + 2 * 2 * 3)),
        (
            aten.native_group_norm_backward.default,
            (IMAGE, IMAGE, empty(2, 1), empty(2, 1), empty(3), 2, 3, 64, 1, [True] * 3),
            (),
            4 * 2 * (3 * 3 + 2 * 1),
        ),
        (aten.native_batch_norm_backward.default, (RESULT, RESULT), (), 4 * 2 * 2 * 16),
        (aten._foreach_norm.Scalar, ([empty(10), empty(3 * 65536)],), (), 4 * 2 * 3),
        (aten.index_put.default, (X, [torch.zeros(5, dtype=torch.int64)], empty(5, 64), True), (), 6 * 8 * 5),
        (aten.index_put.default, (X, [torch.zeros(5, dtype=torch.int64)], empty(5, 64), False), (), 0),
        (
            aten.index_put.default,
            (X, [torch.zeros(5, dtype=torch.int64)], empty(64).expand(5, 64), True),
            (),
            6 * 8 * 5 + 5 * 64 * 4,
        ),
        (aten._embedding_bag_dense_backward.default, (X, torch.zeros(100)), (), 100 * (40 + 11 * 64 * 4 // 10)),
        (aten.topk.default, (empty(9000), 100), (empty(100),), 0),
        (aten.topk.default, (empty(9000), 5000), (empty(5000),), 5000 * (24 + 8)),
        (aten.cumsum.default, (TURNED, 0), (), 8 * 64 * 4),
        (aten.multinomial.default, (X, 1), (), 3 * 8 * 64 * 4),
        (
            aten.convolution.default,
            (IMAGE, FILTER, *CONVOLUTION, 1),
            (RESULT,),  # 3 channels are padded to 4
            4 * (2 * 4 * 64 + 16 * 4 * 9 + 2 * 16 * 64),
        ),
        (
            aten.convolution.default,
            (IMAGE.half(), FILTER.half(), *CONVOLUTION, 1),
            (RESULT.half(),),  # to 8 in fp16
            2 * (2 * 8 * 64 + 16 * 8 * 9 + 2 * 16 * 64),
        ),
        (
            aten.convolution.default,
            (LAST, empty(4, 16, 3, 3).to(memory_format=torch.channels_last), *CONVOLUTION, 1),
            (empty(2, 4, 8, 8),),
            0,
        ),
        (aten.convolution.default, (LAST, empty(4, 16, 3, 3), *CONVOLUTION, 1), (empty(2, 4, 8, 8),), 4 * 4 * 16 * 9),
        (
            aten.convolution_backward.default,
            (empty(2, 4, 8, 8), LAST, empty(4, 16, 3, 3), None, *CONVOLUTION[1:], 1, [True, True, False]),
            (),
            4 * (2 * 4 * 64 + 4 * 16 * 9),
        ),
        (aten.cudnn_batch_norm_backward.default, (LAST, RESULT), (), 4 * 2 * 16 * 64),
        (aten.cudnn_batch_norm_backward.default, (LAST, LAST), (), 0),
        (aten.cudnn_batch_norm_backward.default, (RESULT, LAST), (), 4 * 2 * 16 * 64),
        (aten.convolution.default, (RESULT, empty(16, 1, 3, 3), *CONVOLUTION, 16), (RESULT,), 0),
        (
            aten.convolution_backward.default,
            (RESULT.half(), IMAGE.half(), FILTER.half(), None, *CONVOLUTION[1:], 1, [True, True, False]),
            (),
            2 * (2 * 8 * 64 + 16 * 8 * 9 + 2 * 16 * 64) + 2 * 16 * 3 * 9,
        ),
        (aten.convolution_backward.default, (RESULT, IMAGE, FILTER, None, *CONVOLUTION[1:], 1, [False, False, True]), (), 0),
    ],
)
def test_rules(func: Any, args: Sequence[Any], outputs: Sequence[Tensor], expected: int) -> None:
    assert inside(func, args, outputs) == expected


def test_every_rule_is_of_an_operator_that_exists() -> None:
    assert all(isinstance(packet, torch._ops.OpOverloadPacket) for packet in temporaries._RULES)
    assert all(hasattr(getattr(aten, name.split(".")[1]), name.split(".")[2]) for name in STEPPED)


def test_flash_backward_pads_queries_and_heads() -> None:
    assert flash_backward("bfloat16", 8, 100, 100, 40) == 4 * 8 * 128 * (64 + 1)
    assert flash_backward("bfloat16", 8, 128, 128, 160) == 4 * 8 * 128 * (192 + 1)


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        # One tile of 64 × 64 and 16 bytes a head; the row sums beside them.
        ("bfloat16", (8, 64, 64, 64), 8 * (4 * 64 + 16 + 4 * 64 * 64)),
        ("bfloat16", (8, 65, 64, 64), 8 * (4 * 65 + 2 * (16 + 4 * 64 * 64))),
        ("bfloat16", (8, 128, 128, 128), 8 * (4 * 128 + 16 + 4 * 128 * 128)),
        ("float32", (8, 129, 128, 128), 8 * (4 * 129 + 2 * 2 * (16 + 4 * 128 * 64))),
        # Heads over 128 wide keep dk and dv too, for each split of the keys: 200 // 8 of 512 / 64 blocks.
        ("float16", (8, 128, 512, 256), 8 * (4 * 128 + 4 * (16 + 4 * 128 * 64) + 4 * 2 * 8 * 64 * 256)),
        ("float16", (300, 128, 128, 256), 300 * (4 * 128 + 4 * (16 + 4 * 128 * 64) + 4 * 2 * 1 * 64 * 256)),
        # fp32 first holds output × gradient, where that is more than the tiles.
        ("float32", (8, 128, 128, 128), 8 * (4 * 128 * 128 + 2 * 4 * 128)),
    ],
)
def test_efficient_backward_by_tiles(dtype: str, shape: tuple[int, int, int, int], expected: int) -> None:
    assert efficient_backward(dtype, *shape) == expected


def test_long_rows_are_sorted_with_memory() -> None:
    assert STEPPED["aten.sort.stable"]("float32", 1, 4096, 0, 0) == 0
    assert STEPPED["aten.sort.default"]("float32", 2, 5000, 0, 0) == 2 * 5000 * (24 + 8)
    assert STEPPED["aten.sort.stable"]("int64", 1, 5000, 0, 0) == 5000 * (24 + 16)


def test_embedding_backward_sorts_from_a_size_on() -> None:
    assert embedding_backward("float32", 0, 3072, 50_000, 768) == 0
    partial = 409 + 4096  # a sum for each ten indices, and one more for each row that occurs
    assert embedding_backward("float32", 0, 4096, 50_000, 768) == 8 * (2 * 4096 + 3 * 4096 + partial) + partial * 768 * 4
    # A small table: sorting needs more than its sums.
    assert embedding_backward("float32", 0, 4096, 2, 8) == 5 * 8 * 4096
    assert embedding_backward("bfloat16", 0, 4096, 50_000, 768) == embedding_backward("float32", 0, 4096, 50_000, 768)


def test_layer_norm_backward_splits_many_short_rows() -> None:
    assert layer_norm_backward("float32", 2, 65_536, 0, 768) == 0
    assert layer_norm_backward("float32", 2, 65_568, 0, 768) == 2 * (32_768 // 24) * 768 * 4
    assert layer_norm_backward("float32", 2, 65_568, 0, 64) == 2 * 2049 * 64 * 4  # fewer blocks than the grid may have
    assert layer_norm_backward("float32", 2, 65_568, 0, 4096) == 0


def test_recurrent_layers_take_what_was_published() -> None:
    """pytorch/pytorch issue 2895: 4 layers of 320 on 123 features, 25,000 rows of a batch of 50, fp32."""
    x = empty(500, 50, 123)
    for name, gates, reserve, workspace in (("lstm", 4, 736_000_000, 17_730_560), ("gru", 3, 864_000_000, 13_169_920)):
        mode = rnn.MODES[name]
        weight = [empty(gates * 320, n) for n in (123, 320, 320, 320, 320, 320, 320, 320)] + [empty(gates * 320)] * 8
        hx = empty(4, 50, 320)
        call = CudnnRnnArguments(x, weight, 4, None, hx, None, mode, 320, 0, 4, False, 0.0, True, False, [], None)
        assert rnn.reserve_bytes(call) == reserve
        assert rnn.workspace_bytes(call) == workspace


def workspace_of(trace: Trace, operator: str) -> list[int]:
    column = trace.operations.column("workspace_bytes")
    return [int(column[i]) for i, name in enumerate(trace.operations.name) if name.split(".")[1] == operator]


def test_a_recording_counts_them() -> None:
    flash = record(attention_job(), Strategy(precision="bf16", micro_batch=2))
    assert min(workspace_of(flash, "_scaled_dot_product_flash_attention_backward")) > 0
    plain = record(mlp_job(), Strategy(micro_batch=2))
    assert plain.operations.column("workspace_bytes").sum() == 0
    assert plain.header.assumptions == ()


def test_a_recording_says_what_is_an_upper_bound() -> None:
    message = record(cnn_job(), Strategy(micro_batch=2)).header.assumptions
    assert [text for text in message if "convolution workspaces are an upper bound" in text]
    assert not [t for t in record(cnn_job(), Strategy(micro_batch=2), target="cpu").header.assumptions if "cuDNN" in t]


def language_job(length: int) -> Job:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5000, 64)
            self.norm = nn.LayerNorm(64)
            self.project = nn.Linear(64, 3 * 64)
            self.head = nn.Linear(64, 7)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.norm(self.table(tokens))
            q, k, v = (t.unflatten(-1, (2, 32)).transpose(1, 2) for t in self.project(x).chunk(3, dim=-1))
            return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def batch(n: int) -> dict[str, Tensor]:
        return {"x": torch.zeros(n, length, dtype=torch.int64), "y": torch.zeros(n, dtype=torch.int64)}

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["x"]).mean(1), batch["y"])

    return Job(Model, batch, loss, seq_len=length)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_family_has_the_steps_of_sizes_it_never_recorded(precision: str) -> None:
    axes = (Axis("micro_batch", start=2, step=1, degree=1), Axis("seq_len", start=64, step=32, degree=2))
    grid = {
        (b, s): record(language_job(s), Strategy(precision=precision, micro_batch=b))
        for b in axes[0].points
        for s in axes[1].points
    }
    family = build_family(grid, axes, {"micro_batch": 2, "seq_len": 64})
    assert family is not None
    for batch, length in ((2, 64), (2, 96), (9, 200), (40, 128)):  # the last sorts its 5,120 indices
        real = record(language_job(length), Strategy(precision=precision, micro_batch=batch))
        answer = family.at(micro_batch=batch, seq_len=length)
        rows = [t.operations.column("workspace_bytes")[t.sequence.operation] for t in (answer, real)]
        np.testing.assert_array_equal(*rows)
    assert max(workspace_of(answer, "embedding_dense_backward")) > 0
    one = family_of_one(real)
    np.testing.assert_array_equal(one.at().operations.values, real.operations.values)


def experts_job(length: int) -> Job:
    """A mixture of experts, which sorts what its tokens chose."""
    config = MixtralConfig(vocabulary=64, width=32, layers=1, heads=2, kv_heads=1, hidden=32)
    return Job(
        lambda: Mixtral(config), lambda n: next_token_batch(n, vocabulary=64, seq_len=length), token_loss, seq_len=length
    )


def test_a_family_of_experts_sorts_with_memory_from_a_size_on() -> None:
    axes = (Axis("micro_batch", start=2, step=1, degree=1), Axis("seq_len", start=64, step=32, degree=2))
    grid = {(b, s): record(experts_job(s), Strategy(micro_batch=b)) for b in axes[0].points for s in axes[1].points}
    family = build_family(grid, axes, {"micro_batch": 2, "seq_len": 64})
    assert family is not None
    for batch, length in ((2, 96), (9, 512)):
        real = record(experts_job(length), Strategy(micro_batch=batch))
        answer = family.at(micro_batch=batch, seq_len=length)
        np.testing.assert_array_equal(*(t.operations.values[t.sequence.operation] for t in (answer, real)))
    assert max(workspace_of(answer, "sort")) > 0


def test_a_family_of_the_cpu_has_no_steps() -> None:
    trace = record(language_job(64), Strategy(micro_batch=60), target="cpu")
    np.testing.assert_array_equal(family_of_one(trace).at().operations.values, trace.operations.values)
