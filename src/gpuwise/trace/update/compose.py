"""compose_update: the step of a strategy, from a recording without its techniques of the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gpuwise.errors import GpuwiseError, UnsupportedError
from gpuwise.strategy import StepFacts, Strategy, check_techniques
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.trace import Trace

Recorded = TypeVar("Recorded", bound=Trace | TraceFamily)

# Fields that change nothing but the update, and where its state lives.
_UPDATE = ("optimizer", "optimizer_kernels", "optimizer_in_backward", "keep_gradients", "offload")


def with_plain_update(strategy: Strategy) -> Strategy:
    """The strategy with the job's own optimizer and no technique of the update."""
    plain = Strategy()
    return strategy.but(**{name: getattr(plain, name) for name in _UPDATE})


def compose_update(record: Callable[[Strategy], Recorded], strategy: Strategy, *, on_cpu: bool = False) -> Recorded:
    """The step of a strategy, with the recorded update or one composed in its place (gpuwise.trace.update.optimizers).

    Arguments:
        record: returns the recording of a strategy. It is called with the strategy itself only if that cannot be composed.
        on_cpu: whether the step is forecast on a CPU.

    Raises what `record` and check_techniques raise.
    """
    check_techniques(strategy, StepFacts(on_cpu=on_cpu))
    plain = with_plain_update(strategy)
    if strategy.mode == "train" and strategy.precision == "fp16":
        return record(strategy)  # the update widens gradients, and rounds master weights
    if strategy.mesh.devices > 1 and (strategy.keep_gradients or strategy.precision == "amp-fp16"):
        return record(strategy)  # ranks keep buckets of gradients; they agree on whether a scaled step is skipped
    try:
        base = record(plain)
    except GpuwiseError:  # the job's own optimizer may be what cannot be recorded
        if strategy == plain:
            raise
        return record(strategy)
    if base.header.own_step:
        check_techniques(strategy, StepFacts(base.header.job, on_cpu=on_cpu, own_step=True))
        return base if strategy == plain else record(strategy)  # the job knows whether its optimizer can be another
    own = base.header.strategy.optimizer
    optimizer = strategy.optimizer or own
    if optimizer is None:
        return base if strategy == plain else record(strategy)
    updates_in_bf16 = strategy.mode == "train" and strategy.precision == "bf16"
    of_gpu = on_cpu and base.header.target != "cpu" and updates_in_bf16  # may have kernels that a CPU lacks
    if strategy.but(optimizer=optimizer) != plain.but(optimizer=own) or (of_gpu and optimizer in ("sgd", "momentum")):
        from gpuwise.trace.update.optimizers import with_optimizer

        try:
            base = with_optimizer(
                base,
                optimizer,
                strategy.optimizer_kernels,
                in_backward=strategy.optimizer_in_backward,
                offload=strategy.offload,
                keep_gradients=strategy.keep_gradients,
                on_cpu=on_cpu or None,
            )
        except UnsupportedError:
            return record(strategy)
    if strategy.optimizer is None:
        return base
    kept = tuple(note for note in base.header.assumption_notes if note.flag != "--optimizer")
    return replace(base, header=replace(base.header, assumption_notes=kept))
