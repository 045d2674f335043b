"""Several copies of a job on one device: memory of all, and the time of one among them.

Model: one copy alone keeps the device busy for the share u of its step that arithmetic and memory bandwidth limit; the rest is
the host's launches, and input. Kernels of different processes take turns, so k copies take max(1, k u) times as long as one.
Each copy keeps one core of the host busy with launches.

Checked, not fitted: 45 pairs of training jobs on one RTX 3090 (S-Lab-System-Group/Lucid, ASPLOS 2023, simulation/data) run at
1.18 times the speed that their utilisation as nvidia-smi shows it gives here, 0.91 to 1.39 times with 90 % between; two
ResNet-50 of batch 59 on one P100 (stanford-futuredata/gavel, OSDI 2020) are 1.02 times as fast as one, the model says 1.01.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

SPEED_SPREAD = (0.91, 1.39)  # real over forecast speed of shared devices, 90 % between (Lucid's pairs)
CORES_PER_DEVICE = 8  # of a host whose cores are unknown; a guess
LEAST_GAIN = 1.05  # runs an hour that sharing has to bring, below which its risks are not worth it
MOST_COPIES = 48  # clients of one device under NVIDIA MPS (Volta and newer), as its documentation says


def busy_share(bound: Mapping[str, float]) -> float:
    """The share u of a step from Forecast.bound of a single device."""
    return min(1.0, bound.get("compute", 0.0) + bound.get("memory", 0.0))


def slowdown(copies: int, busy: float) -> float:
    """How much longer each of some copies takes than one alone."""
    return max(1.0, copies * busy)


def most_copies(*, busy: float, copy_bytes: float, capacity_bytes: float | None, cores: int | None, devices: int) -> int:
    """Copies that share one device: as many as fit, but no more than speed it up, and one alone where that gains little.

    Arguments:
        busy: share of its step that one alone keeps the device busy.
        copy_bytes: of one copy, with its own context.
        capacity_bytes: of the device less headroom; None for a CPU, which is not shared.
        cores: of the host; None where unknown.
        devices: of the host, which share its cores.
    """
    if capacity_bytes is None:
        return 1
    by_memory = math.floor(capacity_bytes / copy_bytes)
    by_cores = CORES_PER_DEVICE if cores is None else cores // devices
    useful = math.ceil(1 / busy) if busy > 1 / MOST_COPIES else MOST_COPIES
    copies = max(1, min(by_memory, by_cores, useful))
    return copies if copies / slowdown(copies, busy) >= LEAST_GAIN else 1
