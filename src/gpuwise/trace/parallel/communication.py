"""Communication: the collectives of one rank's step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Communication:
    """Payloads of collectives in one optimizer step, zero for one device.

    Attributes:
        all_reduce_bytes: of the full tensors, summed over calls. So are the next two.
        all_gather_bytes: of the gathered tensors.
        reduce_scatter_bytes: of the tensors before they are scattered.
        calls: collectives of any kind.
    """

    all_reduce_bytes: int = 0
    all_gather_bytes: int = 0
    reduce_scatter_bytes: int = 0
    calls: int = 0
