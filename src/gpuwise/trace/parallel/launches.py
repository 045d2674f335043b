"""What the host does for the collectives of data-parallel ranks beside calling them: buffers made, copies into and out of them.

Counted in recordings of the program (PyTorch 2.13), such as `gpuwise record gpt2 --mesh dp_shard=8`. Counts are numbers, or
arrays of many steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Count = float | np.ndarray

_NARROW = ("bf16", "amp-bf16", "amp-fp16")  # whose gradients have fewer bits than they are reduced in


@dataclass(frozen=True)
class HostLaunches:
    """What the host launches in one step beside the operations of its trace.

    Attributes:
        forward, backward: operations, by the phase whose time they take; below zero where a trace has more than a step.
        casts: casts in forward that no Python calls.
        kernels: that all of these run on the device.
    """

    forward: Count = 0.0
    backward: Count = 0.0
    casts: Count = 0.0
    kernels: Count = 0.0

    def __add__(self, other: HostLaunches) -> HostLaunches:
        return HostLaunches(*(getattr(self, name) + getattr(other, name) for name in HostLaunches.__dataclass_fields__))

    def where(self, there: np.ndarray | bool) -> HostLaunches:
        """These where they are, and nothing elsewhere."""
        return HostLaunches(*(getattr(self, name) * there for name in HostLaunches.__dataclass_fields__))


class TrainedUnits(NamedTuple):
    """What a data-parallel rank trains.

    Attributes:
        blocks: number of its blocks, of which each is gathered and reduced by itself. The rest is once more such a unit.
        tensors: number of its parameters.
        precision: as in Strategy.
    """

    blocks: Count
    tensors: Count
    precision: str


class PhaseCalls(NamedTuple):
    """Collectives of a step, by the phase in which they are called."""

    forward: Count
    backward: Count


def of_replicas(trained: TrainedUnits, micro_batches: Count) -> HostLaunches:
    """DDP: the model's result is cloned in each micro-batch; in the last, each gradient is copied into its bucket."""
    return HostLaunches(micro_batches, trained.tensors, kernels=micro_batches + trained.tensors)


def of_shards(
    trained: TrainedUnits, *, gathers: PhaseCalls, reduces: PhaseCalls, micro_batches: Count, added_by_unit: Count
) -> HostLaunches:
    """fully_shard. Whole parameters are made anew once a step.

    Arguments:
        micro_batches: of a step.
        added_by_unit: whether what a unit has reduced is added up, and not the gradient of each parameter, as where replicas of
            shards reduce it once more.
    """
    by_unit = added_by_unit * (micro_batches - 1) * (trained.tensors - trained.blocks - 1)
    whole = HostLaunches(forward=trained.tensors, backward=-by_unit, kernels=-by_unit)
    return _gathered(trained, gathers) + _reduced(trained, reduces) + _kept(trained, reduces, micro_batches) + whole


def of_whole_shards(trained: TrainedUnits, micro_batches: Count) -> HostLaunches:
    """fully_shard over one rank, as of replicas that are parts of layers: nothing is gathered. Each parameter is cast and
    copied in each micro-batch, and what a unit reduces is copied."""
    cast, copied = trained.tensors * trained.precision.startswith("amp-") * micro_batches, trained.tensors * micro_batches
    reduces, further = PhaseCalls(micro_batches, trained.blocks * micro_batches), micro_batches - 1
    by_unit = further * (trained.tensors - trained.blocks - 1)
    return _reduced(trained, reduces) + HostLaunches(
        trained.tensors + copied + reduces.forward,
        reduces.backward - by_unit,
        cast,
        cast + copied + reduces.forward + reduces.backward - by_unit,
    )


def _gathered(trained: TrainedUnits, gathers: PhaseCalls) -> HostLaunches:
    """A buffer is made and the whole copied out of it. A part that has to be cast has a buffer of its own."""
    each, kernels = (4, 2) if trained.precision.startswith("amp-") else (2, 1)
    return HostLaunches(each * gathers.forward, each * gathers.backward, kernels=kernels * (gathers.forward + gathers.backward))


def _reduced(trained: TrainedUnits, reduces: PhaseCalls) -> HostLaunches:
    """Two buffers are made and gradients copied into one of them. In bf16 the result is cast to the type of the parameters."""
    cast = trained.precision == "bf16"
    both = reduces.forward + reduces.backward
    return HostLaunches(3 * reduces.forward, (3 + cast) * reduces.backward, cast * reduces.forward, (1 + cast) * both)


def _kept(trained: TrainedUnits, reduces: PhaseCalls, micro_batches: Count) -> HostLaunches:
    """Gradients that several micro-batches add up before they are reduced are cast once, to be added up in fp32."""
    kept = np.where(reduces.forward + reduces.backward < (trained.blocks + 1) * micro_batches, trained.tensors, 0.0)
    kept = kept * (trained.precision in _NARROW)
    return HostLaunches(backward=kept, kernels=kept)
