"""Lower bounds of a step's memory: they spare recordings of steps that cannot fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.strategy import Strategy
from gpuwise.trace.memory import kept_bytes, live_bytes
from gpuwise.trace.parallel.variant import in_experts, shard_ranks
from gpuwise.trace.tables import CATEGORIES
from gpuwise.trace.trace import Trace

# What is left of the activations of the plain step in one with adapters, at least: assumed.
LEAST_ACTIVATIONS = 0.8
QLORA_BYTES_A_PARAMETER = 0.5
_PARAMETER, _GRADIENT, _STATE = (CATEGORIES.index(name) for name in ("parameter", "gradient", "optimizer_state"))


def least_kept_bytes(plain: Trace, strategy: Strategy) -> float:
    """Bytes of parameters and optimizer state on a device, of samples of any length.

    Arguments:
        plain: of the same job without adapters, in any precision, on the same mesh or one with fewer shards.
    """
    traced, storages = plain.header.strategy, plain.storages
    if strategy.offload == "parameters":
        return 0.0
    parameter = storages.category == _PARAMETER
    of_experts = parameter & _packed(plain)[storages.module]
    expert_bytes, other_bytes = (float(storages.size_bytes[rows].sum()) for rows in (of_experts, parameter & ~of_experts))
    # bitsandbytes quantizes linear layers, of which experts in one module have none.
    other = QLORA_BYTES_A_PARAMETER if strategy.adapter == "qlora" else strategy.element_bytes
    state_bytes = kept_bytes(plain) - expert_bytes - other_bytes if _keeps_state(traced, strategy) else 0.0
    narrower = min(1.0, strategy.element_bytes / traced.element_bytes)
    state_bytes, expert_bytes = narrower * state_bytes, narrower * expert_bytes
    other_bytes *= min(1.0, other / traced.element_bytes)
    return (expert_bytes + other_bytes + state_bytes) * min(1.0, shard_ranks(traced) / shard_ranks(strategy))


def _keeps_state(traced: Strategy, strategy: Strategy) -> bool:
    """Whether the optimizer state of a strategy is the traced one, of elements as wide as the parameters'."""
    same = strategy.but(optimizer=strategy.optimizer or traced.optimizer)
    return all(getattr(same, name) == getattr(traced, name) for name in ("optimizer", "adapter", "offload"))


def least_step_bytes(plain: Trace, strategy: Strategy) -> float:
    """Bytes of a step with adapters or offloaded parameters.

    Arguments:
        plain: of the same strategy without them.
    """
    storages = plain.storages
    state = np.isin(storages.category, (_PARAMETER, _GRADIENT, _STATE))
    others = replace(plain, storages=replace(storages, size_bytes=np.where(state, 0, storages.size_bytes)))
    # Autocast caches 16-bit copies of trained weights, but not of frozen ones.
    copies = 2 * plain.header.parameters if strategy.precision.startswith("amp-") else 0
    activations = max(0, live_bytes(others).peak_bytes - copies)
    return least_kept_bytes(plain, strategy) + LEAST_ACTIVATIONS * activations


def _packed(trace: Trace) -> np.ndarray:
    """Which modules are experts in one module, or parts of them. Shape (modules,)."""
    return in_experts(trace) if trace.header.expert_modules else np.zeros(len(trace.modules), dtype=bool)
