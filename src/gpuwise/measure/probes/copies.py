"""Copies between host and GPU, pinned and pageable, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from gpuwise.measure.timing import timed
from gpuwise.notes import Note
from gpuwise.notes import measuring as measuring_notes
from gpuwise.results.measurement import MeasuredRow
from gpuwise.runtime.devices import backend_of

SIZES_BYTES = (2**16, 2**20, 2**24, 2**28)


def rows(budget_s: float, device: torch.device, say: Callable[[Note], None]) -> Iterator[MeasuredRow]:
    """Rows of group "copy"; none on a CPU, which is its own host. sizes["bytes"]: of the copy."""
    backend = backend_of(device)
    if backend.is_host:
        return
    share_s = budget_s / (4 * len(SIZES_BYTES))
    for pinned in (True, False) if backend.pins else (False,):
        how = "pinned" if pinned else "pageable"
        for size in SIZES_BYTES:
            try:
                host, back = torch.empty(size // 4), torch.empty(size // 4)
                if pinned:
                    host, back = backend.pinned(host), backend.pinned(back)
                host.uniform_(generator=torch.Generator().manual_seed(0))
                there = torch.empty(size // 4, device=device)
            except RuntimeError as error:  # no memory, or none that may be locked
                problem = " ".join(str(error).split())[:160]
                say(measuring_notes.copies_left_out(size_bytes=size, memory=how, problem=problem))
                break
            yield _copied(f"host to device, {how}", host, there, share_s, device)
            yield _copied(f"device to host, {how}", there, back, share_s, device)


def _copied(name: str, source: torch.Tensor, target: torch.Tensor, budget_s: float, device: torch.device) -> MeasuredRow:
    target.fill_(-1.0)
    non_blocking = backend_of(device).non_blocking
    timing = timed([lambda: target.copy_(source, non_blocking=non_blocking)], budget_s=budget_s, device=device)
    right = torch.equal(target.cpu(), source.cpu())
    return MeasuredRow("copy", name, timing, "fp32", {"bytes": source.nbytes}, bytes=source.nbytes, verified=right)
