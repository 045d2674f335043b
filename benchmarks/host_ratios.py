"""Measures on this CPU what the host does for the parts of a step, in operations of forward.

    python -m benchmarks.host_ratios

A block of GPT-2 with tensors so small that next to nothing is computed: what remains is Python, autograd and the dispatcher, as
on the host of a GPU, but for what a launch takes there. Prints backward's operations over forward's, and how many operations
of forward a micro-batch and a checkpointed block add; the latter beside those it runs again, reentrant, as Megatron-LM does it,
and with hooks on saved tensors, as gpuwise does. Needs PyTorch; takes seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpuwise.job.models.gpt2 import Gpt2Block, Gpt2Config

BLOCKS, CALLS, ROUNDS = 8, 30, 9
# Operations of a block as gpuwise counts them (views launch nothing): forward; backward with gradients that are added up.
FORWARD, BACKWARD = 12, 28


def cpu_s(run: Callable[[], object]) -> float:
    """CPU seconds of a block in a call: the least of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(CALLS):
            run()
        rounds.append((time.process_time() - start) / CALLS / BLOCKS)
    return min(rounds)


def micro_batch_s() -> float:
    """CPU seconds of a micro-batch beside its blocks: of one without any, by the line through those of few and of many."""
    inputs, targets = torch.randn(2, 1, 8, 16)
    counts, seconds = (1, 2, 4, 8), []
    for count in counts:
        model = nn.Sequential(*(Gpt2Block(Gpt2Config(width=16, heads=2)) for _ in range(count)))

        def step(model: nn.Module = model) -> None:
            (F.mse_loss(model(inputs.clone()), targets) / 4).backward()

        seconds.append(cpu_s(step) * BLOCKS)
    return float(np.polyfit(counts, seconds, 1)[1])


def main() -> None:
    torch.set_num_threads(1)
    blocks = [Gpt2Block(Gpt2Config(width=16, heads=2)) for _ in range(BLOCKS)]
    inputs = torch.zeros(1, 8, 16, requires_grad=True)

    def forward(reentrant: bool | None) -> Tensor:
        x = inputs
        for block in blocks:
            x = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
        return x

    forward_s = cpu_s(lambda: forward(None))
    step_s = cpu_s(lambda: forward(None).sum().backward())
    each_s = forward_s / FORWARD
    print(f"an operation of forward: {1e6 * each_s:.1f} µs; of backward: {(step_s - forward_s) / BACKWARD / each_s:.2f} of one")
    print(f"a micro-batch: {micro_batch_s() / each_s:.0f} operations, those of its loss among them")
    for name, reentrant in (("reentrant", True), ("with hooks", False)):
        checkpointed_s = cpu_s(lambda reentrant=reentrant: forward(reentrant).sum().backward())  # type: ignore[misc]
        print(f"a checkpoint, {name}: {(checkpointed_s - step_s - forward_s) / each_s:.0f} operations")


if __name__ == "__main__":
    main()
