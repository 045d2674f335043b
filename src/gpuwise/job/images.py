"""Whether a job has images: what --channels-last lays out in memory."""

from __future__ import annotations

from itertools import chain

from gpuwise.job.batches import checked_batch, named_tensors
from gpuwise.job.job import Job, meta_model

_DIMENSIONS = 4  # samples, channels, height, width: what torch.channels_last is for


def has_images(job: Job) -> bool:
    """Whether the model or its batch has a tensor of four dimensions; without one, channels-last changes nothing.

    Raises JobError with what the job's functions raised.
    """
    from torch.nn.parameter import is_lazy

    model = meta_model(job)
    tensors = chain(model.parameters(), model.buffers(), (tensor for _, tensor in named_tensors(checked_batch(job, 1))))
    return any(is_lazy(tensor) or tensor.dim() == _DIMENSIONS for tensor in tensors)
