"""The job's loss as a module, so that whatever it calls of the model runs inside one forward pass of DDP or FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from gpuwise.job.job import Batch
from gpuwise.runtime.build.named_loss import separated

LossFunction = Callable[[nn.Module, Batch], "Tensor | Mapping[str, Tensor]"]


class ModelCall:
    """A call that runs the model by itself, passed to JobLoss in place of a batch: FSDP2 gathers parameters around it."""

    def __init__(self, call: Callable[[], object]):
        self.call = call


class JobLoss(nn.Module):
    """Calls the job's loss with its model. DDP and FSDP2 wrap this module instead of the model.

    A loss may call the model several times, call its submodules alone, or read its attributes. DDP around the model
    would not synchronise the gradients of submodules that are called without it, and has none of its attributes.

    Arguments:
        model: the job's model, or the part of it that this rank has.
        loss: (model, batch) -> the loss, or a dict with it as "loss".
    """

    def __init__(self, model: nn.Module, loss: LossFunction):
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Batch) -> object:
        """(loss, named parts) of a batch; of a ModelCall what that returns."""
        if isinstance(batch, ModelCall):
            return batch.call()
        return separated(self._loss(self.model, batch))
