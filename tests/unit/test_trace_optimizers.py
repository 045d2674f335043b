"""trace.optimizers: a composed optimizer is, row for row, the one that PyTorch runs."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from tracing_samples import attention_job, batch_of, class_loss

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.job import Job
from gpuwise.strategy import KERNELS_OF, Strategy
from gpuwise.trace import BEFORE, CATEGORIES, Trace, live_bytes
from gpuwise.trace.update.compose import compose_update
from gpuwise.trace.update.optimizers import with_optimizer
from gpuwise.tracing.family import trace_family
from gpuwise.tracing.record import record

ALL = [
    (name, kernels)
    for name in KERNELS_OF
    for kernels in KERNELS_OF[name]
    if "bit" not in name or importlib.util.find_spec("torchao")
]
WAYS = [{}, {"optimizer_in_backward": True}, {"keep_gradients": True}, {"offload": "optimizer"}]
QUICK = [("fp32", {}), ("bf16", {"optimizer_in_backward": True})]
CASES = [("fp32", way) for way in WAYS] + [(p, way) for p in ("amp-bf16", "bf16") for way in WAYS[:2]]
LOSS_SHARE_BYTES = 512  # loss / accumulation, which a recording of one micro-batch does not compute


class Block(nn.Module):
    """Wide and tall matrices, each used twice, a stack of them, and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 64, bias=False)
        self.stack, self.norm = nn.Parameter(torch.zeros(2, 64, 64)), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(torch.bmm(torch.stack([x, x]), self.stack).sum(0))
        return x + self.down(self.up(self.down(self.up(y)).relu()))


def job() -> Job:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.Sequential(Block(), Block()), nn.Linear(64, 5))

    return Job(model, batch_of(64), class_loss)


def compose(base: Trace, strategy: Strategy) -> Trace:
    assert strategy.optimizer is not None
    return with_optimizer(
        base,
        strategy.optimizer,
        strategy.optimizer_kernels,
        in_backward=strategy.optimizer_in_backward,
        offload=strategy.offload,
        keep_gradients=strategy.keep_gradients,
    ).check()


def rows(trace: Trace) -> list[tuple[object, ...]]:
    sequence, operations = trace.sequence, trace.operations
    return [
        (operations.name[o], operations.kind[o], int(p), int(s), *operations.values[o].tolist())
        for o, p, s in zip(sequence.operation, sequence.phase, sequence.micro_step, strict=True)
    ]


def storages(trace: Trace, category: str) -> list[tuple[int, int, int]]:
    mine = trace.storages.category == CATEGORIES.index(category)
    table = [getattr(trace.storages, column)[mine].tolist() for column in ("size_bytes", "born", "died")]
    return sorted(zip(*table, strict=True))


@pytest.mark.parametrize(
    ("precision", "way"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
    ids=lambda case: case if isinstance(case, str) else next(iter(case), "plain"),
)
def test_every_optimizer_composed_is_the_one_recorded(precision: str, way: dict[str, object]) -> None:
    base = record(job(), Strategy(precision=precision, micro_batch=2, optimizer="sgd"))
    for optimizer, kernels in ALL:
        strategy = Strategy(precision=precision, micro_batch=2, optimizer=optimizer, optimizer_kernels=kernels).but(**way)
        recorded, composed = record(job(), strategy), compose(base, strategy)
        shapes = () if strategy.offload == "optimizer" else base.header.gradient_shapes
        assert composed.header == replace(recorded.header, gradient_shapes=shapes)
        peaks = [live_bytes(trace).peak_bytes for trace in (composed, recorded)]
        if strategy.optimizer_in_backward:
            assert 0 <= peaks[0] - peaks[1] <= LOSS_SHARE_BYTES, (optimizer, kernels)
            updates = [[row for row in rows(trace) if row[3] == 2] for trace in (composed, recorded)]
            assert updates[0] == updates[1], (optimizer, kernels)
        else:
            assert peaks[0] == peaks[1], (optimizer, kernels)
            assert rows(composed) == rows(recorded), (optimizer, kernels)
            assert storages(composed, "gradient") == storages(recorded, "gradient"), (optimizer, kernels)
        sizes = [[size for size, *_ in storages(trace, "optimizer_state")] for trace in (composed, recorded)]
        assert sizes[0] == sizes[1], (optimizer, kernels)


@pytest.mark.parametrize(("precision", "target"), [("amp-fp16", "accelerator"), ("bf16", "cpu"), ("amp-fp16", "cpu")])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_where_fused_sgd_is_wrong_none_is_recorded_and_none_composed(optimizer: str, precision: str, target: str) -> None:
    base = record(job(), Strategy(precision=precision, micro_batch=2, optimizer="adam"), target=target)
    strategy = Strategy(precision=precision, micro_batch=2, optimizer=optimizer)
    recorded, composed = record(job(), strategy, target=target), compose(base, strategy)
    # The loss scaler's own scalars aside, which composing leaves out.
    updates = [[row for row in rows(trace) if str(row[0]).startswith("aten._foreach_")] for trace in (recorded, composed)]
    assert updates[0] == updates[1]
    assert any("_foreach_add_" in str(row[0]) for row in updates[0])
    assert not any("_fused_sgd_" in str(row[0]) for row in [*rows(recorded), *rows(composed)])
    with pytest.raises(InputError, match="fused SGD"):
        compose(base, strategy.but(optimizer_kernels="fused"))
    with pytest.raises(InputError, match="fused SGD"):
        record(job(), strategy.but(optimizer_kernels="fused"), target=target)


def test_offloaded_16_bit_parameters_are_updated_by_the_host_which_has_no_fused_sgd() -> None:
    base = record(job(), Strategy(precision="bf16", micro_batch=2, optimizer="adam"))
    requested = Strategy(precision="bf16", micro_batch=2, optimizer="momentum", optimizer_kernels="fused")
    assert any("_fused_sgd_" in row[0] for row in rows(compose(base, requested)))
    with pytest.raises(InputError, match="on a CPU"):
        compose(base, requested.but(offload="optimizer"))


def test_a_recording_of_a_gpu_is_composed_anew_for_a_cpu_where_its_kernels_are_wrong_there() -> None:
    base = record(replace(job(), optimizer="momentum"), Strategy(precision="bf16", micro_batch=2))
    names = [
        {row[0] for row in rows(compose_update(lambda _: base, Strategy(precision="bf16", micro_batch=2), on_cpu=on_cpu))}
        for on_cpu in (False, True)
    ]
    assert ["aten._fused_sgd_.default" in result for result in names] == [True, False]


def test_a_recording_on_the_cpu_counts_its_step_counters() -> None:
    base = record(job(), Strategy(micro_batch=2, optimizer="sgd"), target="cpu")
    for optimizer, kernels in ALL:
        strategy = Strategy(micro_batch=2, optimizer=optimizer, optimizer_kernels=kernels)
        recorded, composed = record(job(), strategy, target="cpu"), compose(base, strategy)
        sizes = [[size for size, *_ in storages(trace, "optimizer_state")] for trace in (composed, recorded)]
        assert sizes[0] == sizes[1], (optimizer, kernels)
        peaks = [live_bytes(trace).peak_bytes for trace in (composed, recorded)]
        if optimizer != "muon":  # whose products take workspaces there that depend on the processor
            assert peaks[0] == pytest.approx(peaks[1], rel=1e-3), (optimizer, kernels)


def test_fp16_scales_its_gradients_first() -> None:
    base = record(attention_job(), Strategy(precision="amp-fp16", micro_batch=2, optimizer="sgd"))
    for kernels in KERNELS_OF["adamw"]:
        strategy = Strategy(precision="amp-fp16", micro_batch=2, optimizer="adamw", optimizer_kernels=kernels)
        recorded, composed = record(attention_job(), strategy), compose(base, strategy)
        peaks = [live_bytes(trace).peak_bytes for trace in (composed, recorded)]
        assert peaks[0] == pytest.approx(peaks[1], abs=8 * 512)  # a few numbers of the scaler
        unscaled = "aten._amp_foreach_non_finite_check_and_unscale_.default"
        assert [row[0] for row in rows(composed)].count(unscaled) == 1


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_clipping_stays_between_its_neighbours(precision: str) -> None:
    """Scaled gradients are clipped between two parts of the update."""
    clipping = replace(job(), clip_norm=1.0)
    base = record(clipping, Strategy(precision=precision, micro_batch=2, optimizer="sgd"))
    for optimizer, kernels in ALL:
        if precision == "amp-fp16" and (optimizer in ("sgd", "momentum") and kernels == "fused"):
            continue
        for way in WAYS[::2]:
            strategy = Strategy(precision=precision, micro_batch=2, optimizer=optimizer, optimizer_kernels=kernels).but(**way)
            recorded, composed = record(clipping, strategy), compose(base, strategy)
            as_they_are = list if optimizer != "muon" else sorted  # which clips its matrices before the other parameters
            assert as_they_are(rows(composed)) == as_they_are(rows(recorded)), (optimizer, kernels)
            assert live_bytes(composed).peak_bytes == live_bytes(recorded).peak_bytes, (optimizer, kernels)
            assert storages(composed, "gradient") == storages(recorded, "gradient"), (optimizer, kernels)


def test_the_optimizer_it_was_recorded_with_does_not_matter() -> None:
    wish = Strategy(micro_batch=2, optimizer="adam", optimizer_kernels="foreach")
    made = [compose(record(job(), Strategy(micro_batch=2, optimizer=name)), wish) for name in ("adamw", "muon", "adafactor")]
    assert rows(made[0]) == rows(made[1]) == rows(made[2])
    assert storages(made[0], "temporary") == storages(made[1], "temporary") == storages(made[2], "temporary")
    again = compose(made[0], Strategy(micro_batch=2, optimizer="adam", optimizer_kernels="foreach"))
    assert rows(again) == rows(made[0])


@pytest.mark.parametrize("way", WAYS, ids=lambda way: next(iter(way), "plain"))
def test_a_family_composed_answers_at_every_batch(way: dict[str, object]) -> None:
    family = trace_family(job(), Strategy(micro_batch=1, optimizer="adamw"))
    wish = Strategy(optimizer="adafactor", optimizer_kernels="foreach").but(**way)
    options = {"in_backward": wish.optimizer_in_backward, "offload": wish.offload, "keep_gradients": wish.keep_gradients}
    composed = with_optimizer(family, "adafactor", "foreach", **options)  # type: ignore[arg-type]
    for micro_batch in (2, 64):
        at = composed.at(micro_batch=micro_batch).check()
        alone = compose(family.at(micro_batch=micro_batch), wish)
        assert rows(at) == rows(alone)
        assert live_bytes(at).peak_bytes == live_bytes(alone).peak_bytes


@pytest.mark.parametrize("way", WAYS, ids=lambda way: next(iter(way), "plain"))
def test_a_gradient_laid_out_unlike_its_parameter_is_copied_where_it_is_kept(way: dict[str, object]) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.turned, self.last = nn.Linear(64, 64), nn.Parameter(torch.zeros(2, 64, 64)), nn.Linear(64, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.einsum("bd,gde->bge", self.first(x), self.turned).sum(1).relu())

    turned = Job(Turned, batch_of(64), class_loss)
    strategy = Strategy(micro_batch=2, optimizer="adam").but(**way)
    recorded, composed = record(turned, strategy), compose(record(turned, Strategy(micro_batch=2)), strategy)
    peaks = [live_bytes(trace).peak_bytes for trace in (composed, recorded)]
    assert abs(peaks[0] - peaks[1]) <= LOSS_SHARE_BYTES
    if strategy.optimizer_in_backward:
        assert [row for row in rows(composed) if row[3] == 2] == [row for row in rows(recorded) if row[3] == 2]


def test_gradients_in_backward_die_one_by_one() -> None:
    base = record(job(), Strategy(micro_batch=2, optimizer="sgd"))
    composed = with_optimizer(base, "adamw", in_backward=True)
    gradients = storages(composed, "gradient")
    ends = sorted(died for _, _, died in gradients)
    assert len(set(ends)) == len(ends)
    assert not (composed.sequence.micro_step == 1).any()
    with pytest.raises(InputError, match="accumulated"):
        composed.with_accumulation(2)


def test_kept_gradients_are_there_all_the_time() -> None:
    base = record(job(), Strategy(micro_batch=2, optimizer="sgd"))
    composed = with_optimizer(base, "adamw", keep_gradients=True)
    assert {(born, died) for _, born, died in storages(composed, "gradient")} == {(BEFORE, len(composed.sequence))}


def test_older_recordings_serve_what_needs_no_shapes() -> None:
    base = record(job(), Strategy(micro_batch=2, optimizer="sgd"))
    old = replace(base, header=replace(base.header, gradient_shapes=()))
    new = with_optimizer(base, "adamw", "for-loop")
    assert np.array_equal(with_optimizer(old, "adamw", "for-loop").operations.values, new.operations.values)
    with pytest.raises(UnsupportedError, match="shapes"):
        with_optimizer(old, "adafactor")


def test_what_cannot_be_composed_says_why() -> None:
    base = record(attention_job(), Strategy(micro_batch=2))
    with pytest.raises(UnsupportedError, match="must be recorded"):
        with_optimizer(base, "adamw", offload="parameters")
    with pytest.raises(InputError, match="gradients cannot be kept"):
        with_optimizer(base, "adamw", offload="optimizer", keep_gradients=True)
    with pytest.raises(InputError, match="muon has no fused kernels"):
        with_optimizer(base, "muon", "fused")
    with pytest.raises(InputError, match="plain training step"):
        with_optimizer(with_optimizer(base, "adamw", keep_gradients=True), "adamw")
    with pytest.raises(InputError, match="plain training step"):
        with_optimizer(record(attention_job(), Strategy(mode="infer")), "adamw")
