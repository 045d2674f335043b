"""A dry run of a job's loss, without arithmetic: which blocks run in which order, and which tensors flow between them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_iter
from torch.utils.flop_counter import flop_registry

from gpuwise.runtime.parallel.stages_absent import AbsentTensor, Arguments, Keywords, unrecorded, written
from gpuwise.runtime.parallel.stages_calls import intercept
from gpuwise.runtime.parallel.stages_flow import BlockCall, Flow, Operation, TensorShape, number_of, template_of


class _BufferWrittenError(Exception):
    """A buffer takes values that depend on parameters: it has to be absent, too."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


class DryModel:
    """A copy of a model without parameters, for dry runs at any shapes of a batch.

    Arguments:
        model: the whole model.
        blocks: its repeated blocks by path.
        edges: modules outside the blocks that have parameters, by path.
        device: that the model runs on.
        dtype: dtype of floating-point parameters in forward, if it is not their own.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        blocks: list[str],
        edges: list[str],
        device: torch.device,
        dtype: torch.dtype | None = None,
    ):
        self._blocks, self._edges = blocks, edges
        memo: dict[int, object] = {}
        for parameter in model.parameters():
            memo[id(parameter)] = _absent(parameter, device, dtype)
        inside = tuple(f"{path}." for path in blocks)
        for name, buffer in model.named_buffers():
            memo[id(buffer)] = _absent(buffer, device, dtype) if name.startswith(inside) else buffer.detach().clone()
        self.model = copy.deepcopy(model, memo)
        self._flow = Flow()
        for path in blocks:
            intercept(self.model.get_submodule(path), self._block_call(path))
        for path in edges:
            intercept(self.model.get_submodule(path), self._edge_call(path))
        self.model.register_forward_pre_hook(self._count)

    def run(self, function: Callable[[nn.Module], object]) -> Flow:
        """The flow of a function of the model: of a loss, or a call. Raises UnsupportedError for a model that cannot be cut."""
        while True:
            self._flow = Flow()
            try:
                with unrecorded(), _Watch(self.model, self._flow):
                    result = function(self.model)
            except _BufferWrittenError as error:
                self._make_absent(error.name)
                continue
            self._flow.output = result
            return self._flow

    def _make_absent(self, name: str) -> None:
        path, _, own = name.rpartition(".")
        module = self.model.get_submodule(path)
        buffer = module._buffers[own]
        assert buffer is not None
        module._buffers[own] = _absent(buffer, buffer.device, None)

    def _count(self, *_: object) -> None:
        self._flow.calls += 1

    def _block_call(self, path: str) -> Callable[..., object]:
        def call(module: nn.Module, original: Callable[..., object], args: Arguments, kwargs: Keywords) -> object:
            flow = self._flow
            leaves, _ = tree_flatten((args, kwargs))
            absent = [(number, leaf) for number, leaf in enumerate(leaves) if isinstance(leaf, AbsentTensor)]
            inputs = tuple(TensorShape.of(number, leaf) for number, leaf in absent)
            flow.blocks.append(BlockCall(path, inputs, tuple(number_of(leaf) for _, leaf in absent)))
            flow.inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                flow.inside = False
            flow.results[path].append(template_of(result, leaves))
            return result

        return call

    def _edge_call(self, path: str) -> Callable[..., object]:
        def call(module: nn.Module, original: Callable[..., object], args: Arguments, kwargs: Keywords) -> object:
            result = original(*args, **kwargs)
            self._flow.results[path].append(template_of(result, tree_flatten((args, kwargs))[0]))
            return result

        return call


class _Watch(TorchDispatchMode):
    """Writes operations on absent tensors into a flow."""

    sees_absent_tensors = True

    def __init__(self, model: nn.Module, flow: Flow):
        super().__init__()
        self._flow = flow
        self._names: dict[int, list[str]] = defaultdict(list)
        for table in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
            for name, tensor in table:
                self._names[id(tensor)].append(name)
        self._count = 0
        self._has_drawn = False  # whether any stage alone has drawn random numbers

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        flow, time = self._flow, len(self._flow.blocks)
        tensors = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, Tensor)]
        absent = [tensor for tensor in tensors if isinstance(tensor, AbsentTensor)]
        changed = written(func, args, kwargs)
        for tensor in changed:
            if absent and not isinstance(tensor, AbsentTensor) and id(tensor) in self._names:
                raise _BufferWrittenError(self._names[id(tensor)][0])
        result = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            if absent or flow.inside:
                self._has_drawn = True
            elif time or self._has_drawn:
                flow.shared_draws.append((time, str(func)))
            else:
                flow.draws_inputs = True
        results = [leaf for leaf in tree_iter(result) if isinstance(leaf, AbsentTensor)]
        if not results:
            return result
        for tensor in absent:
            for name in self._names.get(id(tensor), ()):
                flow.uses[name].add(time)
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            flow.flops[time] += int(count(*args, **kwargs, out_val=result))
        reads = tuple(number_of(tensor) for tensor in absent if id(tensor) not in self._names)
        for tensor in results:
            if not hasattr(tensor, "number"):
                self._count += 1
                tensor.number = self._count  # type: ignore[attr-defined]
        writes = tuple(
            number_of(tensor) for tensor in changed if isinstance(tensor, AbsentTensor) and id(tensor) not in self._names
        )
        flow.operations.append(Operation(time, reads, tuple(number_of(t) for t in results), writes, str(func)))
        return result


def _absent(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> AbsentTensor:
    return AbsentTensor(tensor, device, dtype if tensor.is_floating_point() else None)
