"""Offload to host memory: the optimizer's state and step, and the parameters of blocks.

The optimizer works on copies of the parameters in (pinned) host memory. Each gradient is copied there as soon as backward
has computed it, and freed on the device. After the step the new parameters are copied back. The scheme is that of
ZeRO-Offload (Ren et al., 2021) on one device. If parameters are offloaded, too, a repeated block holds device memory only
while its forward or backward runs. Layers outside the blocks (embeddings, head) stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from gpuwise.errors import UnsupportedError
from gpuwise.job import repeated_blocks
from gpuwise.runtime.build.optimizers import CombinedOptimizer
from gpuwise.runtime.devices import backend_of

HOST = torch.device("cpu")


def on_host(tensor: Tensor) -> Tensor:
    """A copy in host memory, pinned if the device can read it directly."""
    copy = backend_of(tensor.device).pinned(torch.empty_like(tensor, device=HOST, requires_grad=False))
    return copy.copy_(tensor.detach())


class HostCopies(dict[Parameter, Parameter]):
    """Maps each parameter of a model to its copy in host memory. The optimizer updates the copy."""

    def __init__(self, parameters: Iterable[Parameter]):
        super().__init__({p: Parameter(on_host(p), requires_grad=p.requires_grad) for p in parameters})


class StreamedBlocks:
    """Copies the parameters of a repeated block to the device for its forward and its backward, and frees them after.

    A parameter shared by several modules stays on the device. The parameters of an absent block have no memory: their
    values must not be read, and a state dict contains the host's copies instead.

    Raises UnsupportedError for a model without repeated blocks.
    """

    def __init__(self, model: nn.Module, copies: HostCopies):
        blocks = repeated_blocks(model)
        if not blocks:
            raise UnsupportedError(
                f"{type(model).__name__} has no repeated blocks whose parameters could visit the device.",
                ["--offload optimizer", "group the layers in a torch.nn.ModuleList"],
            )
        holders: dict[Parameter, int] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                holders[parameter] = holders.get(parameter, 0) + 1
        self.copies = copies
        self._of = {block: [p for p in block.parameters() if holders[p] == 1] for block in blocks}
        self._streamed = {p for parameters in self._of.values() for p in parameters}
        self._here: nn.Module | None = None
        for block in blocks:
            self._free(block)
            block.register_forward_pre_hook(lambda module, args: self.bring(module))
            block.register_forward_hook(self._after_forward)
        model.register_state_dict_post_hook(partial(self._give_copies))

    def stays(self, parameter: Parameter) -> bool:
        return parameter not in self._streamed

    def bring(self, block: nn.Module) -> None:
        """Fills the block's parameters from the host, and frees the previous block."""
        if self._here is block:
            return
        self.leave()
        for parameter in self._of[block]:
            # Autograd saved this same storage, so it is resized and filled again with the same values.
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(parameter):
                parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
                parameter.copy_(self.copies[parameter], non_blocking=backend_of(parameter.device).non_blocking)
        self._here = block

    def leave(self) -> None:
        """Frees the block on the device, if any."""
        if self._here is not None:
            self._free(self._here)
            self._here = None

    def _free(self, block: nn.Module) -> None:
        for parameter in self._of[block]:
            parameter.untyped_storage().resize_(0)

    def _after_forward(self, block: nn.Module, args: object, output: object) -> None:
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda gradient: self.bring(block))
        self.leave()

    def _give_copies(self, model: nn.Module, state: dict[str, object], prefix: str, metadata: object) -> None:
        """Puts the host's copies of absent parameters into a state dict."""
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if not self.stays(parameter) and prefix + name in state:
                state[prefix + name] = self.copies[parameter].detach()


class HostOptimizer(CombinedOptimizer):
    """An optimizer with its state and its step in host memory.

    Arguments:
        copies: the updated copies, by their parameters.
        make: makes the optimizer of a list of copies.
        streamed: blocks whose parameters are copied to the device on use; all others are copied back after the step.
    """

    def __init__(
        self, copies: HostCopies, make: Callable[[list[Parameter]], Optimizer], streamed: StreamedBlocks | None = None
    ):
        self._all_copies = copies
        self.copies = {p: copy for p, copy in copies.items() if p.requires_grad}
        self._streamed = streamed
        super().__init__([make(list(self.copies.values()))])
        for parameter, copy in self.copies.items():
            parameter.register_post_accumulate_grad_hook(partial(self._send_gradient, copy, on_host(copy)))

    def arrive(self) -> None:
        """Waits for the gradients in flight; before that the host must not read or change them."""
        backend_of(next(iter(self.copies)).device).synchronize()

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.arrive()
        if self._streamed is not None:
            self._streamed.leave()  # it would be there with its old values
        super().step()
        for parameter, copy in self.copies.items():
            if self._streamed is None or self._streamed.stays(parameter):
                parameter.copy_(copy, non_blocking=backend_of(parameter.device).non_blocking)

    @torch.no_grad()
    def take_loaded(self) -> None:
        """Takes over loaded parameters. A state dict contains the copies of streamed parameters, so only others are copied."""
        if self._streamed is not None:
            self._streamed.leave()  # it would be there with its old values
        for parameter, copy in self._all_copies.items():
            if self._streamed is None or self._streamed.stays(parameter):
                copy.copy_(parameter)

    def _send_gradient(self, copy: Parameter, room: Tensor, parameter: Tensor) -> None:
        """Adds a gradient to the host's gradient and frees it. `room` is the memory of the host's gradient."""
        assert parameter.grad is not None
        if self.on_gradient is not None:
            self.on_gradient(parameter)
        if copy.grad is None:
            copy.grad = room
            # Freed memory is reused on this stream only, after the copy.
            room.copy_(parameter.grad, non_blocking=backend_of(parameter.device).non_blocking)
        else:
            copy.grad.add_(parameter.grad.to(HOST))
        parameter.grad = None
