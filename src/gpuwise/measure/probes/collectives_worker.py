"""One of the processes between which collectives are timed: `python -m` this module with a request in JSON.

The process of rank 0 writes JSON lines: a figure, or {"missing": why one is missing}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.distributed as dist

from gpuwise.measure.timing import LEAST_ROUND_S, summary
from gpuwise.results.measurement import Timing
from gpuwise.runtime.devices import backend_of

SIZES_BYTES = tuple(4096 << 2 * i for i in range(8))  # 4 KiB .. 64 MiB
QUICK_S = 8.0  # with less time than this every other size is measured
LEAST_S = 1.0  # what is measured even where starting took all the time
FEWEST_ROUNDS, MOST_ROUNDS = 3, 20
TIMEOUT_S = 30.0  # of a collective whose peer does not come


class CollectivesRequest(TypedDict):
    """rank: of the process among `world`. kind: the type of the devices, such as cpu or cuda. meeting: path of the file where
    processes meet."""

    rank: int
    world: int
    kind: str
    meeting: str
    budget_s: float


class CollectivesAnswer(TypedDict, total=False):
    """A figure (all keys but `missing`), or `missing`: why one is missing."""

    missing: str
    name: str
    bytes: int
    verified: bool
    timing: dict[str, Any]


@dataclass(frozen=True)
class _Collective:
    """run: once; correct: whether the last run left what it should; reset: puts the inputs back."""

    run: Callable[[], object]
    correct: Callable[[], bool]
    reset: Callable[[], object]


def collectives(size_bytes: int, rank: int, world: int, device: torch.device) -> dict[str, _Collective]:
    """By name. The whole tensor has size_bytes: what all-gather makes and reduce-scatter takes.

    Inputs are small whole numbers, different in each process and place, so that sums are exact in any order.
    """
    length = size_bytes // 4 // world
    numbers = torch.arange(length * world, device=device, dtype=torch.float32) % 251 + 1

    def contribution(by: int) -> torch.Tensor:
        return numbers * (by + 1)

    def part(of: torch.Tensor, by: int) -> torch.Tensor:
        return of[by * length : (by + 1) * length]

    whole, total = contribution(rank), numbers * (world * (world + 1) // 2)
    all_reduced, sent = whole.clone(), whole.clone()
    gathered, scattered, own = torch.empty_like(whole), torch.empty_like(part(whole, 0)), part(whole, rank).clone()
    # Renamed in PyTorch 2.13, where the old names warn.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    expected = torch.cat([part(contribution(by), by) for by in range(world)])
    return {
        # It sums its own results over again within a round, up to infinity: checked apart, from fresh inputs.
        "all_reduce": _Collective(
            lambda: dist.all_reduce(all_reduced), lambda: torch.equal(all_reduced, total), lambda: all_reduced.copy_(whole)
        ),
        "all_gather": _Collective(lambda: gather(gathered, own), lambda: torch.equal(gathered, expected), gathered.zero_),
        "reduce_scatter": _Collective(
            lambda: scatter(scattered, whole), lambda: torch.equal(scattered, part(total, rank)), scattered.zero_
        ),
        "broadcast": _Collective(
            lambda: dist.broadcast(sent, 0), lambda: torch.equal(sent, contribution(0)), lambda: sent.copy_(whole)
        ),
    }


def timed_together(collective: _Collective, budget_s: float, device: torch.device) -> Timing:
    """As many rounds in every process; a round takes what the slowest process takes. Process 0 decides how many."""
    once = _all_slowest([_seconds(collective, 1, device) for _ in range(2)], device)[-1]  # the first warms up
    repeats = max(1, round(LEAST_ROUND_S * 5 / max(once, 1e-7)))  # 1 ms: processes start a round some microseconds apart
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(budget_s / max(once * repeats, 1e-7))))
    seconds = []
    for _ in range(rounds):
        collective.reset()
        seconds.append(_seconds(collective, repeats, device) / repeats)
    return summary(_all_slowest(seconds, device))


def _seconds(collective: _Collective, repeats: int, device: torch.device) -> float:
    _settle(device)
    dist.barrier()
    _settle(device)
    began = time.perf_counter()
    for _ in range(repeats):
        collective.run()
    _settle(device)
    return time.perf_counter() - began


def _settle(device: torch.device) -> None:
    backend_of(device).synchronize()


def _all_slowest(seconds: list[float], device: torch.device) -> list[float]:
    """Of each place the most that any process has. All processes go on with the same figures, so with the same decisions."""
    dtype = torch.float32 if backend_of(device).why_no_float64() else torch.float64
    slowest = torch.tensor(seconds, dtype=dtype, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()


def _verified(collective: _Collective, device: torch.device) -> bool:
    """In all processes."""
    collective.reset()
    collective.run()
    _settle(device)
    right = torch.tensor([float(collective.correct())], device=device)
    dist.all_reduce(right, op=dist.ReduceOp.MIN)
    return bool(right.item())


def _measure(rank: int, world: int, device: torch.device, deadline_s: float, tell: Callable[..., None]) -> None:
    left_s = _all_slowest([max(LEAST_S, deadline_s - time.monotonic())], device)[0]
    sizes = SIZES_BYTES if left_s >= QUICK_S else SIZES_BYTES[::2]
    missing: set[str] = set()
    for size in sizes:
        for name, collective in collectives(size, rank, world, device).items():
            if name in missing:
                continue
            try:
                verified = _verified(collective, device)
                timing = timed_together(collective, left_s / len(sizes) / 4, device)
            except RuntimeError as error:  # of a collective that a backend lacks, a NotImplementedError
                text = " ".join(str(error).split())
                if "support" not in text.lower() and "implement" not in text.lower():
                    raise  # a peer died, for one: the next collective would wait for it until the deadline
                missing.add(name)
                tell(missing=f"{name} is not known to this backend: {text[:160]}")
                continue
            tell(name=name, bytes=size, verified=verified, timing=asdict(timing))


def _end_with_parent() -> None:
    """Ends this process when the pipe from the one that started it closes: also where that one was killed."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    request: CollectivesRequest = json.loads(sys.argv[1])
    deadline_s = time.monotonic() + request["budget_s"]
    _end_with_parent()
    rank, world = request["rank"], request["world"]
    device = torch.device(request["kind"]) if request["kind"] == "cpu" else torch.device(request["kind"], rank)
    backend = backend_of(device)
    backend.use()
    dist.init_process_group(
        backend.collectives,
        init_method=Path(request["meeting"]).as_uri(),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer

    def tell(**answer: object) -> None:
        if rank == 0:
            answers.write(json.dumps(answer) + "\n")

    _measure(rank, world, device, deadline_s, tell)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
