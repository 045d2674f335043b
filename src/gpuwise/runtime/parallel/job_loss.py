"""The job's loss as a module, so that all its calls of the model run inside one forward pass of DDP or FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from gpuwise.job.job import Batch
from gpuwise.runtime.build.named_loss import LossParts, separated

LossFunction = Callable[[nn.Module, Batch], "Tensor | Mapping[str, Tensor]"]


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

    def forward(self, batch: Batch) -> tuple[Tensor, LossParts]:
        return separated(self._loss(self.model, batch))


class _ForwardDoneError(Exception):
    """Ends a loss once the model has returned."""


def output_of(model: nn.Module, loss: LossFunction, batch: Batch) -> object:
    """What the model returns when the loss calls it with a batch, without the rest of the loss; None if it is not called."""
    answer: list[object] = []

    def stop(module: nn.Module, args: object, output: object) -> None:
        answer.append(output)
        raise _ForwardDoneError

    hook = model.register_forward_hook(stop)
    try:
        loss(model, batch)
    except _ForwardDoneError:
        pass
    finally:
        hook.remove()
    return answer[0] if answer else None
