"""What an operation costs that computes almost nothing: the host's share of every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from gpuwise.measure.timing import summary, timed, wall_seconds
from gpuwise.results.measurement import MeasuredRow, Timing

CHAIN = 100  # operations a run; far fewer than a GPU's queue holds (1,024 launches), so that issuing never waits
WIDTH = 8
ROUNDS = 100


def rows(budget_s: float, device: torch.device, say: Callable[[str], None]) -> Iterator[MeasuredRow]:
    """Rows of group "launch", seconds of one call each. sizes["operations"]: what the median is divided by already.

    On a GPU "add_ on one element, issued" is the host's time to hand an operation over, "..., on the device" what the device
    takes for one from a graph, where the host has no part in it.
    """
    runs = _runs(device)
    kinds = len(runs) + (2 if device.type == "cuda" else 0)
    for name, (run, operations, correct) in runs.items():
        timing = timed([run], budget_s=budget_s / kinds, device=device, rounds=ROUNDS)
        yield MeasuredRow("launch", name, _each(timing, operations), "fp32", {"operations": operations}, verified=correct())
    if device.type == "cuda":
        yield _issued(budget_s / kinds, device)
        try:
            yield _in_a_graph(budget_s / kinds, device)
        except RuntimeError as error:
            say(f"the shortest kernel was left out, as no graph could be captured: {' '.join(str(error).split())[:160]}")


def _runs(device: torch.device) -> dict[str, tuple[Callable[[], object], int, Callable[[], bool]]]:
    """By name: what to run, how many calls that is, and whether what it left is right."""
    generator = torch.Generator(device).manual_seed(0)
    number = torch.zeros(1, device=device)
    a, b = (torch.rand(WIDTH, WIDTH, generator=generator, device=device) for _ in range(2))
    out = torch.zeros_like(a)
    frozen, linear, trained = (nn.Linear(WIDTH, WIDTH).to(device) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    before = trained.weight.detach().clone()
    counted = 0

    def chain() -> None:
        nonlocal counted
        counted += CHAIN
        for _ in range(CHAIN):
            number.add_(1.0)

    def backward() -> None:
        linear.zero_grad(set_to_none=True)
        linear(a).sum().backward()

    backward()
    for parameter, learned in zip(trained.parameters(), linear.parameters(), strict=True):
        parameter.grad = learned.grad.detach().clone() if learned.grad is not None else None

    def graded() -> bool:
        assert linear.weight.grad is not None
        return torch.allclose(linear.weight.grad, a.sum(0).expand(WIDTH, WIDTH), rtol=1e-5)

    return {
        # Past 2^24 a float no longer counts by ones: then all that can be said is that it got there.
        "add_ on one element": (chain, CHAIN, lambda: number.item() == min(counted, 2**24)),
        f"matrix product {WIDTH} × {WIDTH}": (
            lambda: torch.mm(a, b, out=out),
            1,
            lambda: torch.allclose(out.double(), a.double() @ b.double(), rtol=1e-5),
        ),
        f"linear layer {WIDTH} → {WIDTH}, forward": (
            lambda: frozen(a),
            1,
            lambda: torch.allclose(frozen(a), a @ frozen.weight.t() + frozen.bias, rtol=1e-5, atol=1e-6),
        ),
        f"linear layer {WIDTH} → {WIDTH}, forward and backward": (backward, 1, graded),
        "AdamW step of two tensors": (optimizer.step, 1, lambda: not torch.equal(before, trained.weight.detach())),
    }


def _each(timing: Timing, operations: int) -> Timing:
    return Timing(
        timing.median_s / operations,
        timing.low_s / operations,
        timing.high_s / operations,
        timing.least_s / operations,
        timing.rounds,
    )


def _issued(budget_s: float, device: torch.device) -> MeasuredRow:
    """The host's clock alone, over a chain that the queue takes whole."""
    number = torch.zeros(1, device=device)

    def chain() -> None:
        for _ in range(CHAIN):
            number.add_(1.0)

    seconds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize(device)
        seconds.append(wall_seconds(chain) / CHAIN)
        if sum(seconds) * CHAIN > budget_s:
            break
    right = number.item() == len(seconds) * CHAIN
    return MeasuredRow("launch", "add_ on one element, issued", summary(seconds), "fp32", {"operations": CHAIN}, verified=right)


def _in_a_graph(budget_s: float, device: torch.device) -> MeasuredRow:
    number = torch.zeros(1, device=device)
    with torch.cuda.device(device):
        number.add_(1.0)  # what is loaded at the first call cannot be captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CHAIN):
                number.add_(1.0)
        timing = timed([graph.replay], budget_s=budget_s, device=device, rounds=ROUNDS)
        start = number.item()
        graph.replay()
        right = number.item() == min(start + CHAIN, 2**24)
    name = "add_ on one element, on the device"
    return MeasuredRow("launch", name, _each(timing, CHAIN), "fp32", {"operations": CHAIN}, verified=right)
