"""Spot machines: the optimal checkpoint interval, and the expected time under interruptions.

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps" (2006), after Young (1974).
"""

from __future__ import annotations

import math

RESTART_S = 600.0  # from an interruption until training goes on, without reading the checkpoint; a guess
DEFAULT_INTERRUPTIONS_PER_DAY = 1.0  # of one spot machine; a guess, see hardware/data/providers.toml
# Of any rented device: 419 unexpected interruptions in 54 days on 16,384 H100 ("The Llama 3 herd of models", arXiv
# 2407.21783, section 3.3.4), a device in 5.8 years.
FAILURES_PER_DEVICE_DAY = 419 / 54 / 16_384
# fp32 parameters and two fp32 Adam moments; gradients are not saved.
CHECKPOINT_BYTES_PER_PARAMETER = 12
WRITE_BYTES_PER_S = 250e6  # to network storage, if the offer's network is unknown; a guess
MAX_WRITE_BYTES_PER_S = 1e9  # highest rate of one stream to object storage; a guess


def checkpoint_bytes(parameters: int, *, bytes_per_parameter: float = CHECKPOINT_BYTES_PER_PARAMETER) -> int:
    """Bytes of one checkpoint."""
    return round(parameters * bytes_per_parameter)


def write_rate_bytes_per_s(network_bytes_per_s: float | None) -> float:
    """The rate at which a checkpoint is saved: half the machine's network, at most 1 GB/s.

    Checkpoints go to the network because a spot machine loses its own disk.
    """
    return WRITE_BYTES_PER_S if not network_bytes_per_s else min(network_bytes_per_s / 2, MAX_WRITE_BYTES_PER_S)


def daly_interval_s(save_s: float, between_s: float) -> float:
    """The optimal work between two checkpoints, in seconds.

    A checkpoint takes save_s seconds; interruptions are between_s seconds apart.

    Source: Daly (2006), the higher-order optimum: sqrt(2 δ M) (1 + x/3 + x²/9) - δ with x = sqrt(δ / 2M), M from
    δ = 2 M on. The interval is never below a second or save_s.
    """
    if save_s >= 2 * between_s:
        return between_s
    x = math.sqrt(save_s / (2 * between_s))
    best = math.sqrt(2 * save_s * between_s) * (1 + x / 3 + x * x / 9) - save_s
    return max(best, min(save_s, between_s), 1.0)
