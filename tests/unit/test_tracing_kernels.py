"""Which kernels stand for CUDA's: attention by architecture, type, size and mask; batch norm; recurrent layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from tracing_samples import WIDTH, attention_job, batch_of, class_loss, cnn_job, operators, rows

from gpuwise.errors import PrecisionError
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import record
from gpuwise.tracing.kernels.attention import Backend, Call, choose
from gpuwise.tracing.kernels.target import current, targeting

FLASH, EFFICIENT, MATH = Backend.FLASH_ATTENTION, Backend.EFFICIENT_ATTENTION, Backend.MATH
HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32


def call(
    dtype: torch.dtype = BF16,
    *,
    heads: int = 4,
    key_heads: int = 4,
    queries: int = 16,
    keys: int = 16,
    size: int = 64,
    value_size: int = 0,
    mask: Tensor | None = None,
    causal: bool = False,
    grouped: bool = False,
) -> Call:
    query = torch.empty(2, heads, queries, size, dtype=dtype, device="meta")
    key = torch.empty(2, key_heads, keys, size, dtype=dtype, device="meta")
    value = torch.empty(2, key_heads, keys, value_size or size, dtype=dtype, device="meta")
    return Call(query, key, value, mask, 0.0, causal, grouped)


MASK = torch.empty(16, 16, dtype=BF16, device="meta")


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("accelerator", {}, FLASH),
        ("accelerator", {"dtype": HALF}, FLASH),
        ("accelerator", {"dtype": FP32}, EFFICIENT),
        ("accelerator", {"dtype": torch.float64}, MATH),
        ("accelerator", {"mask": MASK}, EFFICIENT),
        ("accelerator", {"mask": MASK.t()}, MATH),  # a mask whose rows do not lie together
        ("accelerator", {"size": 256}, FLASH),
        ("accelerator", {"size": 264}, EFFICIENT),
        ("accelerator", {"size": 12}, FLASH),
        ("accelerator", {"size": 12, "mask": MASK}, MATH),  # not a multiple of 8 numbers
        ("accelerator", {"size": 12, "dtype": FP32}, EFFICIENT),  # of 4 it is
        ("accelerator", {"size": 10, "dtype": FP32}, MATH),
        ("accelerator", {"value_size": 32}, EFFICIENT),
        ("accelerator", {"causal": True}, FLASH),
        ("accelerator", {"causal": True, "queries": 8}, EFFICIENT),
        ("accelerator", {"key_heads": 2, "grouped": True}, FLASH),
        ("accelerator", {"key_heads": 2, "grouped": True, "mask": MASK}, MATH),
        ("accelerator", {"key_heads": 2, "grouped": True, "dtype": FP32}, MATH),
        ("accelerator", {"key_heads": 2}, MATH),
        ("accelerator", {"keys": 0}, MATH),
        ("pre-ampere", {}, MATH),  # no bfloat16
        ("pre-ampere", {"dtype": HALF}, EFFICIENT),
        ("pre-ampere", {"dtype": FP32}, EFFICIENT),
        ("pre-ampere", {"size": 10, "dtype": FP32}, EFFICIENT),  # no tensor cores, no alignment
        ("pre-ampere", {"size": 10, "dtype": HALF}, MATH),
    ],
)
def test_attention_is_routed_as_sdp_utils_does(target: str, options: dict[str, Any], expected: Any) -> None:
    with targeting(target):
        assert choose(call(**options)) == expected


def test_operands_in_the_middle_of_a_buffer_must_be_aligned() -> None:
    buffer = torch.empty(2 * 4 * 16 * 64 + 4, dtype=BF16, device="meta")
    moved = buffer[4:].view(2, 4, 16, 64)
    assert choose(Call(moved, moved, moved, MASK, 0.0, False, False)) == MATH


def test_a_backend_the_user_switched_off_is_not_taken() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert choose(call()) == MATH
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert choose(call()) == EFFICIENT
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        assert choose(call()) == Backend.CUDNN_ATTENTION
        assert choose(call(mask=MASK, key_heads=2, grouped=True)) == Backend.CUDNN_ATTENTION
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="no kernel"):
        choose(call(FP32))


def test_the_target_is_set_for_a_recording_only() -> None:
    before = current()
    with targeting("pre-ampere"):
        assert current().compute_capability == (7, 5)
        with targeting("cpu"):
            assert current().compute_capability is None
    assert current() == before


EFFICIENT_NAME = "_scaled_dot_product_efficient_attention"


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["amp-fp16", "fp32"])
def test_gpus_before_ampere_take_the_memory_efficient_kernel(precision: str, recompute: str) -> None:
    trace = record(attention_job(), Strategy(precision=precision, recompute=recompute, micro_batch=2), target="pre-ampere")
    assert trace.header.target == "pre-ampere"
    assert operators(trace, "forward").count(EFFICIENT_NAME) == 4
    assert operators(trace, "backward").count(f"{EFFICIENT_NAME}_backward") == 4


def sizes(trace: Trace, phase: int = 0) -> list[int]:
    """Bytes of the storages born in a phase of the first micro-batch."""
    born = trace.storages.born
    return [
        int(size)
        for size, at in zip(trace.storages.size_bytes, born, strict=True)
        if at >= 0 and trace.sequence.phase[at] == phase and trace.sequence.micro_step[at] == 0
    ]


def test_statistics_are_kept_only_for_backward() -> None:
    kept = 2 * 4 * 32 * 4  # (batch, heads, 16 queries rounded up to 32) in fp32
    assert sizes(record(attention_job(), Strategy(micro_batch=2))).count(kept) == 2
    assert kept not in sizes(record(attention_job(), Strategy(micro_batch=2, mode="infer")))


def test_a_boolean_mask_becomes_numbers_and_is_padded_to_aligned_rows() -> None:
    for length, padded in ((16, 16), (12, 16), (9, 16)):
        trace = record(attention_job(length, masked=True), Strategy(precision="bf16", micro_batch=2))
        result = sizes(trace)
        assert length * length * 2 in result
        assert operators(trace, "forward").count("constant_pad_nd") == (0 if padded == length else 4)
        assert padded == length or length * padded * 2 in result


def grouped_job() -> Job:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, 5)

        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x).unflatten(-1, (4, 16)).transpose(1, 2)
            kv = self.kv(x).unflatten(-1, (2, 16)).transpose(1, 2)
            return self.out(F.scaled_dot_product_attention(q, kv, kv, enable_gqa=True).transpose(1, 2).flatten(2).mean(1))

    return Job(Model, batch_of(16, WIDTH), class_loss)


def test_grouped_heads_are_read_as_they_are_by_flash_and_repeated_elsewhere() -> None:
    flash = record(grouped_job(), Strategy(precision="bf16", micro_batch=2))
    assert "_scaled_dot_product_flash_attention" in operators(flash, "forward")
    plain = record(grouped_job(), Strategy(precision="fp32", micro_batch=2))
    assert "bmm" in operators(plain, "forward")
    assert 2 * 4 * 16 * 16 * 4 in sizes(plain)  # the scores


def test_sdpa_kernel_inside_a_model_is_honoured_in_recomputation_too() -> None:
    class Math(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = attention_job().model()

        def forward(self, x: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.MATH):
                return self.inner(x)

    trace = record(Job(Math, batch_of(16, WIDTH), class_loss), Strategy(precision="bf16", micro_batch=2))
    assert not [name for name in operators(trace) if "attention" in name]


@pytest.mark.parametrize(
    ("precision", "mode", "kernel"),
    [
        ("fp32", "train", "cudnn_batch_norm"),
        ("amp-fp16", "train", "cudnn_batch_norm"),
        ("fp32", "infer", "cudnn_batch_norm"),
        ("amp-bf16", "train", "native_batch_norm"),
        ("bf16", "train", "native_batch_norm"),
    ],
)
def test_batch_norm_is_cudnns_but_for_bfloat16(precision: str, mode: str, kernel: str) -> None:
    trace = record(cnn_job(), Strategy(precision=precision, mode=mode, micro_batch=2))
    assert set(operators(trace, "forward")) & {"cudnn_batch_norm", "native_batch_norm"} == {kernel}
    if mode == "train":
        assert f"{kernel}_backward" in operators(trace, "backward")


def test_batch_norm_over_rows_is_pytorchs_own() -> None:
    job = Job(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), batch_of(WIDTH), class_loss)
    assert "native_batch_norm" in operators(record(job, Strategy(micro_batch=2)), "forward")


class Recurrent(nn.Module):
    def __init__(self, kind: str, **options: Any):
        super().__init__()
        self.layer = getattr(nn, kind)(WIDTH, 32, num_layers=2, **options)
        self.out = nn.Linear(self.width(options), 5)

    @staticmethod
    def width(options: dict[str, Any]) -> int:
        return int(options.get("proj_size", 32)) * (2 if options.get("bidirectional") else 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0].mean(1))


def recurrent_job(kind: str, **options: Any) -> Job:
    return Job(lambda: Recurrent(kind, batch_first=True, **options), batch_of(10, WIDTH), class_loss)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "dropout": 0.1}, {"bias": False}])
def test_a_recurrent_layer_is_one_operator_each_way(kind: str, options: dict[str, Any]) -> None:
    trace = record(recurrent_job(kind, **options), Strategy(optimizer="adamw", micro_batch=3))
    assert operators(trace, "forward").count("_cudnn_rnn") == 2  # one for each micro-batch
    assert operators(trace, "backward").count("_cudnn_rnn_backward") == 2
    model = Recurrent(kind, batch_first=True, **options)
    weights = 4 * sum(p.numel() for p in model.layer.parameters())
    assert weights in sizes(trace, phase=1)  # all gradients of the layer are one buffer
    assert "_fused_adamw_" in operators(trace) or "_foreach_add_" in operators(trace)


def test_an_lstm_keeps_its_gates_and_cells_of_every_step() -> None:
    kept = 3 * 10 * 32 * (5 * 2 + 1) * 4  # rows, units, gates and cells of two layers and the first one's output
    assert kept in sizes(record(recurrent_job("LSTM"), Strategy(micro_batch=3)))
    assert kept not in sizes(record(recurrent_job("LSTM"), Strategy(micro_batch=3, mode="infer")))


def test_an_lstm_with_projections_runs() -> None:
    trace = record(recurrent_job("LSTM", proj_size=16), Strategy(micro_batch=3))
    assert 3 * 10 * 16 * 4 in sizes(trace)


def placed(trace: Trace, name: str) -> list[str]:
    return [phase for operator, phase, _, _ in rows(trace) if operator == name]


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_a_recurrent_layer_is_the_same_operator_when_recomputed(precision: str) -> None:
    class Checkpointed(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            return self.out(checkpoint(lambda y: self.layer(y)[0], x, use_reentrant=False).mean(1))

    job = Job(lambda: Checkpointed("LSTM", batch_first=True), batch_of(10, WIDTH), class_loss)
    trace = record(job, Strategy(precision=precision, micro_batch=3))
    assert sorted(placed(trace, "_cudnn_rnn")) == ["forward", "forward", "recompute", "recompute"]
    assert placed(trace, "_cudnn_rnn_backward") == ["backward", "backward"]


@pytest.mark.parametrize("precision", ["amp-fp16", "amp-bf16"])
def test_under_autocast_a_recurrent_layer_runs_in_fp16_with_weights_cast_at_every_call(precision: str) -> None:
    trace = record(recurrent_job("LSTM"), Strategy(precision=precision, micro_batch=3))
    dtypes = {d for n, d in zip(trace.operations.name, trace.operations.dtype, strict=True) if "_cudnn_rnn" in n}
    assert dtypes == {"float16"}
    assert 2 * 4 * 32 * WIDTH in sizes(trace)  # the first layer's input weights in fp16


def test_bfloat16_recurrent_layers_are_pytorchs_own() -> None:
    trace = record(recurrent_job("LSTM"), Strategy(precision="bf16", micro_batch=3))
    assert "_cudnn_rnn" not in operators(trace)
    assert "_thnn_fused_lstm_cell" in operators(trace)


def test_a_cell_is_not_cudnns() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.LSTMCell(WIDTH, 32), nn.Linear(32, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.cell(x)[0])

    trace = record(Job(Cell, batch_of(WIDTH), class_loss), Strategy(micro_batch=3))
    assert "_thnn_fused_lstm_cell" in operators(trace, "forward")


def autocast_dtypes(loss: Any) -> dict[str, set[str]]:
    job = Job(lambda: nn.Linear(WIDTH, WIDTH), batch_of(WIDTH), loss)
    trace = record(job, Strategy(precision="amp-bf16", micro_batch=2))
    results: dict[str, set[str]] = {}
    for name, dtype in zip(trace.operations.name, trace.operations.dtype, strict=True):
        results.setdefault(name, set()).add(dtype)
    return results


def test_norms_are_taken_in_fp32_under_autocast() -> None:
    """norm.Scalar and norm.ScalarOpt_dim have no dtype: autocast goes to the overloads that do."""
    whole = autocast_dtypes(lambda model, batch: torch.ops.aten.norm.Scalar(model(batch["x"]), 2))
    assert "aten.norm.ScalarOpt_dtype" in whole
    rows = autocast_dtypes(lambda model, batch: torch.ops.aten.norm.ScalarOpt_dim(model(batch["x"]), 2, [1]).sum())
    assert "aten.norm.ScalarOpt_dim_dtype" in rows


def test_what_autocast_refuses_is_refused() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.binary_cross_entropy(model(batch["x"]).sigmoid(), batch["x"])

    job = Job(lambda: nn.Linear(WIDTH, WIDTH), batch_of(WIDTH), loss)
    with pytest.raises(PrecisionError, match="binary_cross_entropy"):
        record(job, Strategy(precision="amp-bf16", micro_batch=2))
    assert "binary_cross_entropy" in operators(record(job, Strategy(micro_batch=2)))
