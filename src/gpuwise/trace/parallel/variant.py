"""The single-device recording that a step of several devices is composed from."""

from __future__ import annotations

from gpuwise.strategy import Strategy, check_techniques


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
    if strategy.mesh.dp_shard == 1:
        return strategy
    half = strategy.precision.startswith("amp-")
    return strategy.but(precision="bf16" if half else strategy.precision, keep_gradients=False)
