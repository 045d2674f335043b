"""DTensor's sharding propagation, which is no part of a step.

To learn the shape of an operator's result, DTensor runs it once on fake tensors of the global size: on a cache miss, so in
the first recording of a process and not in the next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gpuwise.tracing.patching import patched

_MODULE = "torch.distributed.tensor._sharding_prop"
_METHOD = "_propagate_tensor_meta_non_cached"


class Pausable(Protocol):
    """What can be told to record nothing."""

    paused: bool


@contextmanager
def unseen_propagation(recorder: Pausable) -> Iterator[None]:
    """While entered, the recorder records nothing of DTensor's propagation. DTensor has been imported where it is used."""
    module = sys.modules.get(_MODULE)
    if module is None:
        yield
        return
    propagate = getattr(module.ShardingPropagator, _METHOD)

    def unseen(propagator: object, *args: object) -> object:
        before, recorder.paused = recorder.paused, True
        try:
            return propagate(propagator, *args)
        finally:
            recorder.paused = before

    with patched(module.ShardingPropagator, _METHOD, unseen):
        yield
