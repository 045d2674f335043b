"""Which recording of one device a step of several is composed from."""

from __future__ import annotations

from gpuwise.errors import UnsupportedError
from gpuwise.strategy import Strategy
from gpuwise.trace.update.sharded import check_update


def recorded_as(strategy: Strategy) -> Strategy:
    """The variant to record for a strategy.

    - Sharded mixed precision computes on gathered bf16 parameters throughout (FSDP2's MixedPrecisionPolicy), which is the
      pure bf16 step; only its sharded state is kept in fp32.
    - Gradients that are kept are shards, too: full ones come and go as they do where gradients are freed.

    Raises UnsupportedError for techniques that are not composed with the mesh.
    """
    if strategy.mode == "infer" or strategy.mesh.data_parallel == 1:
        return strategy
    check_techniques(strategy)
    if strategy.mesh.dp_shard == 1:
        return strategy
    half = strategy.precision.startswith("amp-")
    return strategy.but(precision="bf16" if half else strategy.precision, keep_gradients=False)


def check_techniques(strategy: Strategy) -> None:
    """Raises UnsupportedError for techniques that are not composed with the mesh."""
    sharded = strategy.mesh.dp_shard > 1
    replicas = ["--mesh dp=N, which keeps a copy on each device"]
    alone = ["one device: --on CHIP:1"]
    refused = [
        (strategy.offload != "none", "offloading", "on one device", ["--offload none", *alone]),
        (
            strategy.optimizer_in_backward,
            "an optimizer in backward",
            "on one device: several exchange gradients before they are used",
            ["leave out --optimizer-in-backward", *alone],
        ),
        (
            sharded and strategy.compile,
            "a compiled step",
            "with whole parameters: sharding cuts its graph at every block",
            ["leave out --compile", *replicas],
        ),
        (sharded and strategy.adapter == "qlora", "QLoRA", "with whole parameters", ["--adapter lora", *replicas]),
        (sharded and strategy.precision == "fp8", "fp8", "with whole parameters", ["--precision amp-bf16", *replicas]),
    ]
    for requested, what, where, ways in refused:
        if requested:
            raise UnsupportedError(f"{what} is so far forecast only {where}.", ways)
    if sharded and strategy.optimizer is not None:
        check_update(strategy.optimizer, strategy.optimizer_kernels)
