"""Copies between host and device: snapshots, batches read ahead, losses read late, offload, random numbers, peak memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_session.models import classifier, language
from benchmarks.gpu_session.rows import NotHereError
from gpuwise.measure.trial_memory import one_step
from gpuwise.runtime.build.offload import HostOptimizer
from gpuwise.runtime.build.program import build
from gpuwise.runtime.checkpoint.program_state import random_state, set_random_state
from gpuwise.runtime.checkpoint.snapshot import Snapshot
from gpuwise.runtime.checkpoint.state import pack, unpack
from gpuwise.runtime.data.order import Chunk
from gpuwise.runtime.data.prefetch import StreamCopies, ahead
from gpuwise.runtime.run.device_losses import AHEAD, DeviceLosses, losses_of
from gpuwise.runtime.run.memory import PeakMemory
from gpuwise.strategy import Strategy

ROUNDS = 5


def needs_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise NotHereError("needs a CUDA device")


def snapshots(device: torch.device, *, width: int = 4096) -> dict[str, Any]:
    """Copies hold the values of the moment they were asked for, whatever the device does next; their room is used again."""
    square = torch.randn(width, width, device=device)
    state = {
        "a": square,
        "t": square.t(),
        "image": torch.randn(8, 3, 32, 32, device=device).to(memory_format=torch.channels_last),
        "half": torch.randn(1001, device=device).bfloat16(),
        "one": torch.tensor(3.5, device=device),
    }
    room, seconds = Snapshot(), []
    for _ in range(ROUNDS):
        expected = {name: tensor.clone() for name, tensor in state.items()}
        packed = pack({"model": state})
        assert room.has_room_for(packed)
        taken = room.take(packed)
        for tensor in state.values():
            tensor.mul_(1.5).add_(1)  # queued behind the copies
        seconds.append(room.wait())
        copies = unpack(taken.structure, taken.tensors)["model"]
        for name, tensor in copies.items():
            assert tensor.device.type == "cpu", name
            assert torch.equal(tensor, expected[name].cpu()), f"{name} is not what it was when its copy was asked for"
    return {
        "bytes": packed.nbytes,
        "seconds": seconds,
        "bytes_per_s": packed.nbytes / seconds[-1] if seconds[-1] else None,
        "pinned": room._room.is_pinned() if device.type == "cuda" else None,
    }


def snapshot_rooms(device: torch.device) -> dict[str, Any]:
    """Registered host memory is given back: rooms made and dropped many times do not run out, nor overlap."""
    needs_cuda(device)
    state = {"model": {"a": torch.randn(2**22, device=device)}}
    for _ in range(50):
        room = Snapshot()
        taken = room.take(pack(state))
        room.wait()
        assert torch.equal(unpack(taken.structure, taken.tensors)["model"]["a"], state["model"]["a"].cpu())
        del room, taken
    return {"rooms": 50}


def prefetched(device: torch.device) -> dict[str, Any]:
    """Batches copied on a stream of their own are whole when they are used, and not overwritten while they are."""
    needs_cuda(device)
    for pinned in (True, False):
        chunks = (
            Chunk({"x": torch.full((2048, 2048), float(number)), "n": [torch.tensor([number])]}, 0, number)
            for number in range(40)
        )
        weight = torch.ones(2048, 2048, device=device)
        sums: list[Tensor] = []
        for chunk in ahead(chunks, StreamCopies(device, pinned=pinned), micro_batches=3):
            busy = chunk.batch["x"]
            for _ in range(4):
                busy = busy @ weight / 2048  # keeps the device behind the host
            sums.append(busy.mean() + 0 * chunk.batch["n"][0])
        results = [value.item() for value in sums]
        assert results == [float(number) for number in range(40)], f"pinned {pinned}: {results}"
    return {"batches": 80}


def late_losses(device: torch.device) -> dict[str, Any]:
    """Losses and their parts come in their order with the values they had, in each dtype, at most AHEAD steps late."""
    needs_cuda(device)
    slow = torch.randn(4096, 4096, device=device)
    latest = 0
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        losses: DeviceLosses[int] = losses_of(device, 2)
        results: list[tuple[int, list[float]]] = []
        for step in range(60):
            results += losses.ready()
            _ = slow @ slow  # the loss is ready only after it
            losses.put(step, [torch.tensor(step + 0.5, device=device, dtype=dtype), torch.tensor(float(step), device=device)])
            latest = max(latest, step - len(results) + 1)
        results += losses.ready(wait=True)
        assert results == [(step, [step + 0.5, float(step)]) for step in range(60)], results
        assert latest <= AHEAD + 1, latest
    return {"steps_late": latest}


def offloaded(device: torch.device) -> dict[str, Any]:
    """A step whose optimizer, or parameters too, live on the host trains as one that does not, in less device memory."""
    needs_cuda(device)
    results: dict[str, Any] = {}
    for offload in ("none", "none", "optimizer", "parameters"):  # the first leaves cuBLAS's workspace
        torch.manual_seed(0)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        program = build(language(), Strategy(precision="fp32", micro_batch=4, offload=offload), device)
        losses = []
        for step in range(8):
            torch.manual_seed(step)
            losses.append(program.step([program.job.batch(4)]).item())
        assert isinstance(program.optimizer, HostOptimizer) == (offload != "none")
        results[offload] = {"losses": losses, "peak_bytes": torch.cuda.max_memory_allocated() - before}
        del program
    for offload in ("optimizer", "parameters"):
        close(results[offload]["losses"], results["none"]["losses"], f"offload {offload}")
        assert results[offload]["peak_bytes"] < results["none"]["peak_bytes"], results
    return results


def random_numbers(device: torch.device) -> dict[str, Any]:
    """Dropout draws the same again once the random state is put back."""
    saved = random_state(device)
    drop = torch.nn.Dropout(0.5)
    x = torch.ones(1000, device=device)
    first = drop(x)
    second = drop(x)
    set_random_state(saved, device)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)
    return {}


def peak_memory(device: torch.device) -> dict[str, Any]:
    """What a run reports as its peak is the allocator's, above what was there before."""
    needs_cuda(device)
    beside = torch.zeros(2**20, device=device)
    peak = PeakMemory(device)
    big = torch.zeros(2**24, device=device)
    assert peak.now_bytes() == big.nbytes
    del big
    assert peak.now_bytes() == 0
    assert peak.bytes() == 2**26, peak.bytes()
    return {"beside_bytes": beside.nbytes}


def steps_leave_no_memory(device: torch.device) -> dict[str, Any]:
    """From the second step on, what stays allocated is the same."""
    needs_cuda(device)
    held: dict[str, list[int]] = {}
    for name, job, strategy in (
        ("classifier", classifier(), Strategy(precision="amp-fp16", micro_batch=32)),
        ("language", language(), Strategy(precision="amp-bf16", micro_batch=4, recompute="full")),
    ):
        program = build(job, strategy, device)
        held[name] = []
        for _ in range(6):
            one_step(program)
            held[name].append(torch.cuda.memory_allocated())
        assert len(set(held[name][1:])) == 1, held
    return held


def close(ours: list[float], theirs: list[float], what: str, *, tolerance: float = 1e-4) -> None:
    """Raises AssertionError where a loss differs by more than that share."""
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        assert abs(a - b) <= tolerance * max(abs(b), 1e-3), f"{what}: step {step} is {a}, expected {b}"


CHECKS: dict[str, Callable[[torch.device], dict[str, Any]]] = {
    "snapshots": snapshots,
    "snapshot rooms": snapshot_rooms,
    "batches ahead": prefetched,
    "late losses": late_losses,
    "offload": offloaded,
    "random numbers": random_numbers,
    "peak memory": peak_memory,
    "steady memory": steps_leave_no_memory,
}
