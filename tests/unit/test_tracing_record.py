"""What a recording says: phases, modules, micro-batches, categories; and that it leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from tracing_samples import attention_job, batch_of, class_loss, cnn_job, mlp_job, operators, rows

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.strategy import OPTIMIZERS, PRECISIONS, RECOMPUTES, Strategy
from gpuwise.trace import BEFORE, CATEGORIES, PHASES, Trace, live_bytes
from gpuwise.tracing import record


def bytes_of(trace: Trace, category: str) -> int:
    return int(trace.storages.size_bytes[trace.storages.category == CATEGORIES.index(category)].sum())


def test_phases_follow_each_other() -> None:
    trace = record(attention_job(), Strategy(recompute="full", micro_batch=2))
    order = [
        key
        for key, previous in zip(rows(trace), [None, *rows(trace)], strict=False)
        if previous is None or key[1:3] != previous[1:3]
    ]
    turns = [(phase, step) for _, phase, step, _ in order]
    once = ["forward", "backward", "recompute", "backward", "recompute", "backward"]
    assert turns == [*((p, 0) for p in once), *((p, 1) for p in once), ("optimizer", 2)]


@pytest.mark.parametrize("recompute", RECOMPUTES)
def test_products_belong_to_the_modules_that_hold_their_weights(recompute: str) -> None:
    trace = record(attention_job(), Strategy(recompute=recompute, micro_batch=2))
    linear = {"layers.0.qkv", "layers.0.out", "layers.1.qkv", "layers.1.out", "head"}
    found = Counter((phase, module) for name, phase, step, module in rows(trace) if name in ("mm", "addmm") and step == 0)
    assert {m: found["forward", m] for m in linear} == dict.fromkeys(linear, 1)
    assert {m: found["backward", m] for m in linear} == dict.fromkeys(linear, 2)
    again = {m for (phase, m) in found if phase == "recompute"}
    assert again <= ({"layers.0.qkv", "layers.1.qkv", "layers.0.out", "layers.1.out"} if recompute == "full" else set())
    assert ("layers.0.qkv" in again) == (recompute == "full")
    assert trace.header.blocks == ("layers.0", "layers.1")


def test_norms_and_attention_belong_to_their_blocks_in_every_phase() -> None:
    trace = record(attention_job(), Strategy(recompute="full", micro_batch=2))
    for name, _, step, module in rows(trace):
        if name.startswith(("native_layer_norm", "_scaled_dot")) and step == 0:
            assert module.startswith(("layers.0", "layers.1")), (name, module)


def test_the_second_micro_batch_adds_to_the_gradients_of_the_first() -> None:
    trace = record(mlp_job(), Strategy(micro_batch=2))
    added = Counter((name, step) for name, _, step, _ in rows(trace))
    assert added["add_", 0] == 0
    assert added["add_", 1] == 4  # two weights, two biases
    assert added["addmm", 0] == added["addmm", 1] == 2
    assert trace.accumulation == 1


PER_PARAMETER = {"fp32": (4, 4, 8), "tf32": (4, 4, 8), "amp-bf16": (4, 4, 8), "amp-fp16": (4, 4, 8), "bf16": (2, 2, 4)}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("job", [mlp_job(), attention_job()], ids=["mlp", "attention"])
def test_adamw_holds_its_bytes_a_parameter(job: Job, precision: str) -> None:
    trace = record(job, Strategy(precision=precision, micro_batch=2, optimizer="adamw"))
    parameters, tensors = trace.header.parameters, len(list(job.model().parameters()))
    parameter, gradient, state = PER_PARAMETER[precision]
    assert bytes_of(trace, "parameter") == parameter * parameters
    assert bytes_of(trace, "gradient") == gradient * parameters
    assert bytes_of(trace, "optimizer_state") == state * parameters + 4 * tensors  # and a step counter each
    assert live_bytes(trace).persistent_bytes >= (parameter + state) * parameters


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("momentum", 4), ("adam", 8)])
def test_state_of_other_optimizers(optimizer: str, state: int) -> None:
    trace = record(mlp_job(), Strategy(optimizer=optimizer, micro_batch=2))
    assert bytes_of(trace, "optimizer_state") - state * trace.header.parameters == (16 if optimizer == "adam" else 0)
    assert trace.header.strategy.optimizer == optimizer


def test_adafactor_keeps_rows_and_columns_only() -> None:
    trace = record(
        Job(lambda: nn.Linear(512, 512, bias=False), batch_of(512), class_loss), Strategy(optimizer="adafactor", micro_batch=2)
    )
    assert bytes_of(trace, "optimizer_state") < 4 * trace.header.parameters / 50


def test_buffers_count_with_the_parameters_and_the_batch_as_input() -> None:
    job = cnn_job()
    trace = record(job, Strategy(micro_batch=4))
    buffers = sum(b.numel() * b.element_size() for b in job.model().buffers())
    assert bytes_of(trace, "parameter") == 4 * trace.header.parameters + buffers
    assert bytes_of(trace, "input") == 2 * (4 * 3 * 16 * 16 * 4 + 4 * 8)  # images and labels of two micro-batches


def test_frozen_parameters_have_neither_gradient_nor_state() -> None:
    def half_frozen() -> nn.Module:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
        return model.requires_grad_(False) and nn.Sequential(model, nn.Linear(5, 5))

    trace = record(Job(half_frozen, batch_of(64), class_loss), Strategy(micro_batch=2, optimizer="adamw"))
    assert trace.header.trainable_parameters == 30
    assert bytes_of(trace, "gradient") == 4 * 30
    assert bytes_of(trace, "optimizer_state") == 8 * 30 + 2 * 4


def test_activations_live_from_forward_into_backward() -> None:
    trace = record(attention_job(), Strategy(micro_batch=2))
    storages, phase = trace.storages, trace.sequence.phase
    kept = storages.category == CATEGORIES.index("activation")
    assert kept.any()
    for born, died in zip(storages.born[kept], storages.died[kept], strict=True):
        assert PHASES[phase[born]] in ("forward", "recompute")
        assert PHASES[phase[died]] in ("backward", "recompute")
    gradients = storages.category == CATEGORIES.index("gradient")
    assert all(PHASES[phase[b]] == "backward" for b in storages.born[gradients])
    assert all(b == BEFORE for b in storages.born[storages.category == CATEGORIES.index("parameter")])


def test_recompute_trades_activations_for_operations() -> None:
    none, selective, full = (record(attention_job(64), Strategy(recompute=r, micro_batch=8)) for r in RECOMPUTES)
    assert live_bytes(none).by_category["activation"] > live_bytes(full).by_category["activation"]
    assert none.flops() == selective.flops() < full.flops()
    assert none.model_flops == selective.model_flops == full.model_flops


@pytest.mark.parametrize(("precision", "recompute"), list(product(PRECISIONS, RECOMPUTES)))
def test_every_variant_records(precision: str, recompute: str) -> None:
    for optimizer in OPTIMIZERS:
        trace = record(attention_job(), Strategy(precision=precision, recompute=recompute, optimizer=optimizer, micro_batch=2))
        assert operators(trace, "optimizer")
        assert (len(operators(trace, "recompute")) > 0) == (recompute != "none")


def test_fp16_scales_its_gradients() -> None:
    scaled, plain = (record(mlp_job(), Strategy(precision=p, micro_batch=2)) for p in ("amp-fp16", "amp-bf16"))
    extra = set(operators(scaled)) - set(operators(plain))
    assert {"_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"} <= extra
    assert "float16" in scaled.operations.dtype
    assert operators(scaled, "optimizer").count("_fused_adamw_") == 1


def test_the_header_says_what_was_recorded() -> None:
    header = record(mlp_job(), Strategy(micro_batch=3, accumulation=9, precision="bf16")).header
    assert header.sizes == {"micro_batch": 3}
    assert (header.strategy.precision, header.strategy.optimizer, header.strategy.accumulation) == ("bf16", "adamw", 1)
    assert header.substrate == "accelerator"
    assert header.torch_version == torch.__version__.split("+")[0]
    assert record(mlp_job(), Strategy(), substrate="cpu").header.substrate == "cpu"


def globals_of_torch() -> tuple[object, ...]:
    return (nn.Module.__call__, torch.UntypedStorage.resize_, torch.get_float32_matmul_precision(),
            torch.autograd.is_multithreading_enabled(), torch.is_grad_enabled(), torch.get_default_dtype(),
            torch._C._len_torch_dispatch_stack())  # fmt: skip


def failing(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    class_loss(model, batch).backward()
    raise ValueError("no")


@pytest.mark.parametrize("loss", [class_loss, failing])
@pytest.mark.parametrize("precision", ["tf32", "amp-bf16"])
def test_a_recording_leaves_nothing_patched(loss: object, precision: str) -> None:
    record(mlp_job(), Strategy())  # what registers once a process is there before
    before = globals_of_torch()
    job = Job(mlp_job().model, mlp_job().batch, loss)  # type: ignore[arg-type]
    if loss is failing:
        with pytest.raises(JobError):
            record(job, Strategy(precision=precision))
    else:
        record(job, Strategy(precision=precision))
    assert globals_of_torch() == before
    assert nn.Linear(2, 2)(torch.ones(1, 2)).device.type == "cpu"


def test_recording_works_after_a_real_backward_in_the_same_process() -> None:
    """Autograd starts its threads at the first backward, for the devices it knows then."""
    layer = nn.Linear(3, 3)
    layer(torch.ones(2, 3)).sum().backward()
    trace = record(attention_job(), Strategy(recompute="full", micro_batch=2))
    assert operators(trace, "backward")
    layer(torch.ones(2, 3)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((3, 3), 4.0))  # type: ignore[arg-type]


def test_two_recordings_are_equal() -> None:
    a, b = (record(attention_job(), Strategy(precision="amp-bf16", recompute="full", micro_batch=2)) for _ in range(2))
    assert rows(a) == rows(b)
    assert a.storages.size_bytes.tolist() == b.storages.size_bytes.tolist()
    assert a.storages.died.tolist() == b.storages.died.tolist()
