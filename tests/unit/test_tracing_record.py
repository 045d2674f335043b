"""What a recording says: phases, modules, micro-batches, categories; and that it leaves nothing behind."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from tests.quick import quick
from torch import Tensor, nn
from tracing_samples import WIDTH, attention_job, batch_of, class_loss, cnn_job, mlp_job, operators, rows

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.models.bert import Bert, BertConfig
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import OPTIMIZERS, PRECISIONS, RECOMPUTES, Strategy
from gpuwise.trace import BEFORE, CATEGORIES, PHASES, Trace, live_bytes
from gpuwise.tracing import record
from gpuwise.tracing.record import record_many


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
    result = Counter((phase, module) for name, phase, step, module in rows(trace) if name in ("mm", "addmm") and step == 0)
    assert {m: result["forward", m] for m in linear} == dict.fromkeys(linear, 1)
    assert {m: result["backward", m] for m in linear} == dict.fromkeys(linear, 2)
    again = {m for (phase, m) in result if phase == "recompute"}
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


PER_PARAMETER = {
    "fp32": (4, 4, 8),
    "tf32": (4, 4, 8),
    "amp-bf16": (4, 4, 8),
    "amp-fp16": (4, 4, 8),
    "bf16": (2, 2, 4),
    "fp16": (2, 2, 12),
    "fp8": (4, 4, 8),
}


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


VARIANTS = list(product(PRECISIONS, RECOMPUTES))
LIKE_OTHERS = [(p, r) for p, r in VARIANTS if (p, r) != ("fp8", "full") and (p in ("fp16", "amp-fp16", "fp8") or r == "full")]


@pytest.mark.parametrize(("precision", "recompute"), quick(VARIANTS, slow=LIKE_OTHERS))
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
    assert header.target == "accelerator"
    assert header.torch_version == torch.__version__.split("+")[0]
    assert record(mlp_job(), Strategy(), target="cpu").header.target == "cpu"


def globals_of_torch() -> tuple[object, ...]:
    return (
        nn.Module.__call__,
        torch.UntypedStorage.resize_,
        torch.get_float32_matmul_precision(),
        torch.autograd.is_multithreading_enabled(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch._C._len_torch_dispatch_stack(),
    )


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


def equal(a: Trace, b: Trace) -> bool:
    columns = [
        (part, name)
        for part, names in (
            ("operations", ("values", "kind")),
            ("sequence", ("operation", "module", "phase", "micro_step")),
            ("storages", ("size_bytes", "category", "module", "born", "died")),
        )
        for name in names
    ]
    return (a.header, a.modules, a.operations.name) == (b.header, b.modules, b.operations.name) and all(
        np.array_equal(getattr(getattr(a, part), name), getattr(getattr(b, part), name)) for part, name in columns
    )


def language_job(model: Callable[[], nn.Module]) -> Job:
    return Job(model, lambda n: next_token_batch(n, vocabulary=64, seq_len=16), token_loss)


SMALL = {"vocabulary": 64, "width": 32, "layers": 2, "heads": 2}
LANGUAGE = {
    "gpt": lambda: Gpt2(Gpt2Config(positions=16, **SMALL)),
    "bert": lambda: Bert(BertConfig(positions=16, hidden=48, **SMALL)),
    "llama": lambda: Llama(LlamaConfig(kv_heads=1, hidden=48, **SMALL)),
}


@pytest.mark.parametrize("precision", quick(["amp-fp16", "bf16"], slow=["bf16"]))
@pytest.mark.parametrize("job", [*map(language_job, LANGUAGE.values()), cnn_job()], ids=[*LANGUAGE, "cnn"])
def test_many_recordings_of_one_program_are_those_of_many_programs(job: Job, precision: str) -> None:
    strategy = Strategy(precision=precision, optimizer="adamw", optimizer_kernels="foreach")
    many = record_many(job, strategy, [2, 3, 7])
    assert all(equal(trace, record(job, strategy.but(micro_batch=n))) for trace, n in zip(many, [2, 3, 7], strict=True))


def test_a_cache_that_grows_with_the_batch_is_recorded_apart() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.cache = nn.Linear(WIDTH, 5), torch.zeros(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.cache) < len(x):
                self.cache = x.new_ones(len(x), 5)
            return self.linear(x) * self.cache[: len(x)]

    job = Job(Caching, batch_of(WIDTH), class_loss)
    for order in ([2, 7], [7, 2]):
        many = record_many(job, Strategy(), order)
        assert all(equal(trace, record(job, Strategy(micro_batch=n))) for trace, n in zip(many, order, strict=True))


def test_an_update_inside_backward_is_of_the_optimizer_and_ends_its_gradient() -> None:
    strategy = Strategy(micro_batch=2, optimizer="adamw", optimizer_in_backward=True)
    trace = record(attention_job(), strategy)
    where = [phase for _, phase, _, _ in rows(trace)]
    assert where.index("optimizer") < len(where) - 1 - where[::-1].index("backward")
    assert where.count("optimizer") == 2 * len(list(attention_job().model().parameters()))  # the counter and the update
    plain = record(attention_job(), strategy.but(optimizer_in_backward=False))
    assert bytes_of(trace, "gradient") == bytes_of(plain, "gradient") == 4 * trace.header.trainable_parameters
    assert live_bytes(trace).peak_bytes < live_bytes(plain).peak_bytes
    assert trace.header.strategy.variant == strategy.variant


def test_gradients_come_last_in_the_order_of_the_parameters_with_their_shapes_and_modules() -> None:
    job = attention_job()
    trace = record(job, Strategy(micro_batch=2))
    named = list(job.model().named_parameters())
    assert trace.header.gradient_shapes == tuple(tuple(p.shape) for _, p in named)
    owners = [trace.modules[m] for m in trace.storages.module[-len(named) :]]
    assert owners == [name.rpartition(".")[0] for name, _ in named]


def test_kept_gradients_live_through_the_step() -> None:
    trace = record(mlp_job(), Strategy(micro_batch=2, keep_gradients=True))
    gradients = trace.storages.category == CATEGORIES.index("gradient")
    assert (trace.storages.born[gradients] == BEFORE).all()
    assert (trace.storages.died[gradients] == len(trace.sequence)).all()


@pytest.mark.parametrize("kernels", ["fused", "foreach", "for-loop"])
def test_fp16_steps_with_every_kind_of_kernels(kernels: str) -> None:
    """The scaler asks whether a gradient is infinite; were the answer yes, nothing would be updated."""
    trace = record(mlp_job(), Strategy(precision="amp-fp16", optimizer="adamw", optimizer_kernels=kernels, micro_batch=2))
    assert bytes_of(trace, "optimizer_state") >= 8 * trace.header.parameters
    assert not trace.header.assumptions


@pytest.mark.parametrize(
    ("optimizer", "precision", "passes"),
    [("adamw", "amp-bf16", 7), ("adamw", "amp-fp16", 8), ("momentum", "fp32", 5), ("sgd", "fp32", 3)],
)
def test_fused_kernels_write_gradients_only_where_they_were_scaled(optimizer: str, precision: str, passes: int) -> None:
    """fused_adam_utils.cuh and FusedSgdKernel.cu of PyTorch: parameter, gradient and state are read once, and but for the
    gradient written once. A launch takes 36 tensors, whose state lies beside them."""
    job = Job(lambda: nn.Sequential(*[nn.Linear(8, 8) for _ in range(30)]), batch_of(8), class_loss)
    strategy = Strategy(precision=precision, optimizer=optimizer, optimizer_kernels="fused", micro_batch=2)
    trace = record(job, strategy)
    (fused,) = [i for i, name in enumerate(trace.operations.name) if "_fused_" in name]
    operations = trace.operations.take(np.array([fused]))
    moved = operations.column("bytes_read") + operations.column("bytes_written")
    assert moved[0] == pytest.approx(4 * passes * trace.header.parameters, rel=0.03)  # scalars: steps, scale, learning rate
    assert operations.column("kernels")[0] == 2


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao")
def test_low_bit_state_is_counted_by_what_it_holds_and_torchao_stays_usable() -> None:
    job = Job(lambda: nn.Linear(512, 512, bias=False), batch_of(512), class_loss)
    elements = 512 * 512
    for bits, blocks, table in ((8, 256, 256), (4, 128, 16)):
        trace = record(job, Strategy(optimizer=f"adamw-{bits}bit", micro_batch=2))
        assert bytes_of(trace, "optimizer_state") == 2 * (elements * bits // 8 + 4 * elements // blocks + 4 * table)
        assert operators(trace, "optimizer") == ["_fused_low_bit_adamw_"]
    state = importlib.import_module("torchao.optim.subclass_8bit")
    assert state.get_qmap_signed()[0] < 0 < state.get_qmap_signed()[-1] == 1.0
    assert importlib.import_module("torchao.optim.adam").single_param_adam.__module__ == "torchao.optim.adam"


class Partial(nn.Module):
    """Uses one of its two layers, and makes a table in its first forward pass."""

    def __init__(self, *, unused: bool, late: bool) -> None:
        super().__init__()
        self.used = nn.Linear(WIDTH, 4)
        self.unused = nn.Linear(WIDTH, 4) if unused else None
        self.late, self.table = late, None

    def forward(self, x: Tensor) -> Tensor:
        if self.late and self.table is None:
            self.table = torch.ones(WIDTH, device=x.device)
        return self.used(x if self.table is None else x * self.table)


@pytest.mark.parametrize(
    ("unused", "late"),
    [(False, False), (True, False), (False, True)],
    ids=["plain", "unused parameters", "made in the first pass"],
)
def test_a_spared_first_step_changes_nothing(unused: bool, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(lambda: Partial(unused=unused, late=late), batch_of(WIDTH), class_loss)
    strategy = Strategy(micro_batch=3)
    spared = record(job, strategy)
    monkeypatch.setattr(importlib.import_module("gpuwise.tracing.record"), "_needs_no_first_step", lambda strategy: False)
    real = record(job, strategy)
    assert rows(spared) == rows(real)
    for category in CATEGORIES:
        assert bytes_of(spared, category) == bytes_of(real, category)
    np.testing.assert_array_equal(spared.storages.born, real.storages.born)
    np.testing.assert_array_equal(spared.storages.died, real.storages.died)
