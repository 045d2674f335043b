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
class Launches:
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

    def __add__(self, other: Launches) -> Launches:
        return Launches(*(getattr(self, name) + getattr(other, name) for name in Launches.__dataclass_fields__))

    def where(self, there: np.ndarray | bool) -> Launches:
        """These where they are, and nothing elsewhere."""
        return Launches(*(getattr(self, name) * there for name in Launches.__dataclass_fields__))


class Held(NamedTuple):
    """What a data-parallel rank trains.

    Attributes:
        blocks: number of its blocks, of which each is gathered and reduced by itself. The rest is once more such a unit.
        tensors: number of its parameters.
        precision: as in Strategy.
    """

    blocks: Count
    tensors: Count
    precision: str


class Calls(NamedTuple):
    """Collectives of a step, by the phase in which they are called."""

    forward: Count
    backward: Count


def of_replicas(held: Held, micro_batches: Count) -> Launches:
    """DDP: the model's result is cloned in each micro-batch; in the last, each gradient is copied into its bucket."""
    return Launches(micro_batches, held.tensors, kernels=micro_batches + held.tensors)


def of_shards(held: Held, *, gathers: Calls, reduces: Calls, micro_batches: Count, added_by_unit: Count) -> Launches:
    """fully_shard. Whole parameters are made anew once a step.

    Arguments:
        micro_batches: of a step.
        added_by_unit: whether what a unit has reduced is added up, and not the gradient of each parameter, as where replicas of
            shards reduce it once more.
    """
    by_unit = added_by_unit * (micro_batches - 1) * (held.tensors - held.blocks - 1)
    made = Launches(forward=held.tensors, backward=-by_unit, kernels=-by_unit)
    return _gathered(held, gathers) + _reduced(held, reduces) + _kept(held, reduces, micro_batches) + made


def of_whole_shards(held: Held, micro_batches: Count) -> Launches:
    """fully_shard over one rank, as of replicas that are parts of layers: nothing is gathered. Each parameter is cast and
    copied in each micro-batch, and what a unit reduces is copied."""
    cast, copied = held.tensors * held.precision.startswith("amp-") * micro_batches, held.tensors * micro_batches
    reduces, further = Calls(micro_batches, held.blocks * micro_batches), micro_batches - 1
    by_unit = further * (held.tensors - held.blocks - 1)
    return _reduced(held, reduces) + Launches(
        held.tensors + copied + reduces.forward,
        reduces.backward - by_unit,
        cast,
        cast + copied + reduces.forward + reduces.backward - by_unit,
    )


def _gathered(held: Held, gathers: Calls) -> Launches:
    """A buffer is made and the whole copied out of it. A part that has to be cast has a buffer of its own."""
    each, kernels = (4, 2) if held.precision.startswith("amp-") else (2, 1)
    return Launches(each * gathers.forward, each * gathers.backward, kernels=kernels * (gathers.forward + gathers.backward))


def _reduced(held: Held, reduces: Calls) -> Launches:
    """Two buffers are made and gradients copied into one of them. In bf16 the result is cast to the type of the parameters."""
    cast = held.precision == "bf16"
    both = reduces.forward + reduces.backward
    return Launches(3 * reduces.forward, (3 + cast) * reduces.backward, cast * reduces.forward, (1 + cast) * both)


def _kept(held: Held, reduces: Calls, micro_batches: Count) -> Launches:
    """Gradients that several micro-batches add up before they are reduced are cast once, to be added up in fp32."""
    kept = np.where(reduces.forward + reduces.backward < (held.blocks + 1) * micro_batches, held.tensors, 0.0)
    kept = kept * (held.precision in _NARROW)
    return Launches(backward=kept, kernels=kept)
