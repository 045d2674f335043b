"""The single-device recording that a step of several devices is composed from."""

from __future__ import annotations

import re

import numpy as np

from gpuwise.strategy import Strategy, check_techniques
from gpuwise.trace.trace import Trace

EXPERT = re.compile(r"^(.*\bexperts)\.(\d+)(?:\..*)?$")  # the path of a module of one expert


def shard_ranks(strategy: Strategy) -> int:
    """Ranks that split parameters, gradients or state: those of dp_shard, and of cp, which hold the same parameters."""
    return strategy.mesh.dp_shard * strategy.mesh.cp


def in_experts(trace: Trace) -> np.ndarray:
    """Which modules are experts or parts of them: of one expert each, or of all of a mixture. Shape (modules,)."""
    packed = tuple(f"{path}." for path in trace.header.expert_modules)
    return np.array([EXPERT.match(path) is not None or f"{path}.".startswith(packed) for path in trace.modules])


def ranks_of_modules(trace: Trace, strategy: Strategy) -> np.ndarray:
    """Ranks that split the parameters of each module: those of experts lie on the ranks of one ep group. Shape (modules,)."""
    ranks = np.full(len(trace.modules), shard_ranks(strategy))
    if strategy.mesh.ep > 1:
        ranks[in_experts(trace)] //= strategy.mesh.ep
    return ranks


def is_sharded(strategy: Strategy) -> bool:
    """Whether fully_shard runs the step, as it also does for replicas of tensor-parallel ranks."""
    return shard_ranks(strategy) > 1 or (strategy.mesh.dp_replicate > 1 and strategy.mesh.tp > 1)


def is_split(strategy: Strategy) -> bool:
    """Whether parameters are distributed tensors, of which a rank holds a part."""
    return is_sharded(strategy) or strategy.mesh.tp > 1


def recorded_as(strategy: Strategy) -> Strategy:
    """The variant to record for a strategy.

    - Sharded mixed precision computes on gathered bf16 parameters throughout (FSDP2's MixedPrecisionPolicy), which is the
      pure bf16 step; only its sharded state is kept in fp32.
    - Gradients that are kept are shards, too: full ones come and go as they do where gradients are freed.

    Raises what check_techniques raises.
    """
    if strategy.mode == "infer":
        return strategy
    check_techniques(strategy)
    if not is_sharded(strategy):
        return strategy
    half = strategy.precision.startswith("amp-")
    return strategy.but(precision="bf16" if half else strategy.precision, keep_gradients=False)
