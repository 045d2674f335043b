"""runtime.offload: the same training with state on the host. Here both device and host are the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from tracing_samples import WIDTH, attention_job, class_loss, mlp_job, rows

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.runtime.build import checks
from gpuwise.runtime.build.offload import HostCopies, HostOptimizer, StreamedBlocks
from gpuwise.runtime.build.optimizers import make_optimizer
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.build.recompute import apply_recompute
from gpuwise.runtime.checkpoint.program_state import load_program, program_state
from gpuwise.strategy import Strategy
from gpuwise.trace import CATEGORIES, PHASES, Trace, live_bytes
from gpuwise.tracing.record import record

BATCH = {"x": torch.arange(4 * 16 * WIDTH).reshape(4, 16, WIDTH).sin(), "y": torch.arange(4)}


def model() -> nn.Module:
    torch.manual_seed(0)
    return attention_job().model()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, *, accumulation: int = 1, steps: int = 3) -> list[float]:
    losses = []
    for _ in range(steps):
        for _ in range(accumulation):
            loss = class_loss(net, BATCH)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return make_optimizer("adamw", parameters, 1e-2)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_optimizer_on_the_host_trains_the_same_and_frees_gradients(accumulation: int) -> None:
    plain = model()
    expected = train(plain, adamw(list(plain.parameters())), accumulation=accumulation)
    net = model()
    optimizer = HostOptimizer(HostCopies(net.parameters()), adamw)
    class_loss(net, BATCH).backward()
    assert all(p.grad is None for p in net.parameters())
    optimizer.zero_grad()
    assert train(net, optimizer, accumulation=accumulation) == expected
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_visiting_blocks_train_the_same_and_hold_one_block_at_a_time(recompute: str) -> None:
    plain = model()
    expected = train(plain, adamw(list(plain.parameters())))
    net = model()
    apply_recompute(net, recompute)
    copies = HostCopies(net.parameters())
    visiting = StreamedBlocks(net, copies)
    held: list[int] = []

    blocks = [p for name, p in net.named_parameters() if name.startswith("layers.")]

    def look(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        held.append(len([p for p in blocks if p.untyped_storage().nbytes()]))

    for linear in (net.layers[0].out, net.layers[1].out):  # type: ignore[index, union-attr]
        linear.register_forward_hook(look)
    losses = train(net, HostOptimizer(copies, adamw, visiting))
    assert losses == expected
    assert set(held) == {len(list(net.layers[0].parameters()))}  # type: ignore[index, union-attr]
    left = [p.untyped_storage().nbytes() for p in blocks]
    assert not any(left)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in net.state_dict().items())


def test_visiting_blocks_serve_inference() -> None:
    expected = model()(BATCH["x"])
    net = model()
    StreamedBlocks(net, HostCopies(net.parameters()))
    with torch.no_grad():
        assert torch.equal(net(BATCH["x"]), expected)


@pytest.fixture
def on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs whose device is the host, too."""
    monkeypatch.setattr(checks, "check_techniques", lambda strategy, step: None)


@pytest.mark.usefixtures("on_this_host")
@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_a_restored_program_goes_on_with_the_same_bits(offload: str) -> None:
    def built(seed: int) -> Program:
        torch.manual_seed(seed)
        return build(attention_job(), Strategy(optimizer="adamw", offload=offload), "cpu")

    def bits(of: Program) -> list[Tensor]:
        return [value.clone() for value in of.model.state_dict().values()]

    first, second = built(1), built(2)
    first.step([BATCH])
    second.step([BATCH])  # a block may be there, with values of before
    state = copy.deepcopy(program_state(first))
    load_program(second, state)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(bits(first), bits(second), strict=True))
        assert torch.equal(first.step([BATCH]), second.step([BATCH]))
    gone = next(iter(state["model"]))
    del state["model"][gone]
    with pytest.raises(InputError, match=f"it lacks {gone}"):
        load_program(second, state)


@pytest.mark.usefixtures("on_this_host")
def test_gradients_have_arrived_before_anything_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: (seen.append(name), call(*arguments, **named))[1]

    monkeypatch.setattr(HostOptimizer, "arrive", noted("arrive", HostOptimizer.arrive))
    for name in ("clip_grad_norm_", "get_total_norm"):
        monkeypatch.setattr(torch.nn.utils, name, noted(name, getattr(torch.nn.utils, name)))
    built = build(replace(attention_job(), clip_norm=0.1), Strategy(offload="optimizer"), "cpu")
    built.forward_backward(BATCH)
    assert built.gradients_are_finite()
    assert seen == ["arrive", "get_total_norm"]
    built.update()
    assert seen[2:4] == ["arrive", "clip_grad_norm_"]


def test_offload_is_refused_where_there_is_no_other_memory_or_nothing_to_visit() -> None:
    with pytest.raises(InputError, match="a CPU is the host"):
        build(mlp_job(), Strategy(offload="optimizer"), "cpu")
    net = mlp_job().model()
    with pytest.raises(UnsupportedError, match="no repeated blocks"):
        StreamedBlocks(net, HostCopies(net.parameters()))
    with pytest.raises(InputError, match="adds nothing"):
        record(attention_job(), Strategy(offload="optimizer", optimizer_in_backward=True))


def bytes_of(trace: Trace, category: str) -> int:
    return int(trace.storages.size_bytes[trace.storages.category == CATEGORIES.index(category)].sum())


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "amp-fp16", "bf16"])
def test_a_recording_has_no_state_on_the_device_and_gradients_one_at_a_time(precision: str) -> None:
    plain = record(attention_job(), Strategy(optimizer="adamw", micro_batch=2, precision=precision))
    offloaded = record(attention_job(), Strategy(optimizer="adamw", micro_batch=2, precision=precision, offload="optimizer"))
    assert bytes_of(offloaded, "optimizer_state") == 0
    assert bytes_of(offloaded, "gradient") == 2 * bytes_of(plain, "gradient")  # each micro-batch makes its own
    gradients = offloaded.storages.category == CATEGORIES.index("gradient")
    assert (offloaded.storages.died[gradients] < len(offloaded.sequence) - 1).all()
    sent = [(name, phase) for name, phase, _, _ in rows(offloaded) if name == "copy_" and phase != "forward"]
    tensors = len(list(attention_job().model().parameters()))
    assert sent == [("copy_", "backward")] * tensors + [("copy_", "optimizer")] * tensors
    assert live_bytes(offloaded).peak_bytes < live_bytes(plain).peak_bytes


def test_a_recording_of_visiting_blocks_has_one_block_at_a_time() -> None:
    job = attention_job()
    trace = record(job, Strategy(optimizer="adamw", micro_batch=2, offload="parameters", recompute="full"))
    storages = trace.storages
    parameter = (storages.category == CATEGORIES.index("parameter")) & (storages.born >= 0)
    whole = sum(p.numel() * 4 for p in job.model().layers[0].parameters())  # type: ignore[index, union-attr]
    for position in range(len(trace.sequence)):
        there = parameter & (storages.born <= position) & (storages.died > position)
        assert storages.size_bytes[there].sum() <= whole, PHASES[trace.sequence.phase[position]]
    # Two micro-batches of four visits each, less one: the block that ends a backward begins the next forward.
    assert parameter.sum() == 7 * 6


def test_muon_on_the_host_finds_its_matrices() -> None:
    net = model()
    copies = HostCopies(net.parameters())
    hidden = [copies[p] for p in net.parameters() if p.dim() == 2]
    optimizer = HostOptimizer(copies, partial(make_optimizer, "muon", learning_rate=1e-3, hidden=hidden))
    assert train(net, optimizer)[2] < 2.0
