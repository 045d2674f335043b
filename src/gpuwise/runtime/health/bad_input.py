"""Finds non-finite input: the tensor of the batch and the sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpuwise.job.batches import named_tensors


def bad_input(micro_batches: Sequence[object]) -> str | None:
    """A clause that names the non-finite data of a step; None if all of it is finite.

    An example is "batch['x'] holds NaN at sample 5 of the micro-batch", with the number of the micro-batch if there are
    several. NaN is reported before inf. -inf is ignored because masks contain it.
    """
    for word, wrong in (("NaN", torch.isnan), ("inf", torch.isposinf)):
        for number, batch in enumerate(micro_batches):
            for name, tensor in named_tensors(batch):
                if not tensor.is_floating_point() or not tensor.dim():
                    continue
                sample = _first(wrong(tensor))
                if sample is not None:
                    which = "the micro-batch" if len(micro_batches) == 1 else f"micro-batch {number + 1} of the step"
                    return f"{name} holds {word} at sample {sample} of {which}"
    return None


def _first(wrong: Tensor) -> int | None:
    """The first index along the first dimension with a true element."""
    rows = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong
    return int(rows.int().argmax()) if bool(rows.any()) else None
