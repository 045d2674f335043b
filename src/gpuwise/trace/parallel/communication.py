"""Communication: the collectives of one rank's step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Communication:
    """Payloads of collectives in one optimizer step, zero for one device.

    Attributes:
        all_reduce_bytes: bytes of the full tensors, summed over calls.
        all_gather_bytes: bytes of the gathered tensors, summed over calls.
        reduce_scatter_bytes: bytes of the tensors before the scatter, summed over calls.
        calls: number of collectives of any kind.
    """

    all_reduce_bytes: int = 0
    all_gather_bytes: int = 0
    reduce_scatter_bytes: int = 0
    calls: int = 0
