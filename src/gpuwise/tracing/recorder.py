"""The recorder: sees every operator a step dispatches, every storage born and freed, and in which module and phase."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from gpuwise.job.batches import named_tensors
from gpuwise.trace import BEFORE, KINDS, PHASES
from gpuwise.tracing.answers import Answers
from gpuwise.tracing.describe import Numbers, describe, device_type, size_bytes, tensors_in
from gpuwise.tracing.kernels.convolution import copied
from gpuwise.tracing.refusals import asks_for_cuda, dynamic_shape, no_shape_rule

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = range(4)
assert PHASES == ("forward", "backward", "recompute", "optimizer")

_ASKS_DEVICE = torch.ops.prim.device.default
_COPIES = torch.ops.aten._to_copy.default

StorageRow = dict[str, Any]


class Recorder(TorchDispatchMode):
    """Rows of one step, in the order they run.

    Arguments:
        device_type: operations and storages of this device are recorded, others (a CPU scalar, say) are not.

    `name_modules` tells which modules to attribute rows to; `start` begins the step (what is alive then was there
    before); `micro_step` is set by the caller (0, 1; 2 once backward is done), and `updating` while an optimizer steps,
    which may be inside backward. `rows` hold
    (operation, module, phase, micro_step).
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under it, and the guard costs a tenth of a recording

    def __init__(self, device_type: str):
        super().__init__()
        self.device_type = device_type
        self.operations: dict[tuple[str, int, str, Numbers], int] = {}
        self.rows: list[tuple[int, int, int, int]] = []
        self.storages: list[StorageRow] = []
        self.live: dict[int, StorageRow] = {}
        self.modules: dict[str, int] = {"": 0}
        self.micro_step = 0
        self.updating = False
        self.paused = False
        self.place: tuple[int, int] | None = None  # phase and module, where the caller knows them better
        self.answers = Answers()
        self.owners: dict[int, tuple[int, str]] = {}  # of each parameter: its order in the model, and its module
        self._paths: dict[int, str] = {}
        self._stack = threading.local()
        self._module_of_node: dict[int, int] = {}
        self._undo: list[Callable[[], Any]] = []

    def name_modules(self, model: nn.Module) -> None:
        self._paths = {id(module): name for name, module in model.named_modules()}
        names = [(parameter, name.rpartition(".")[0]) for name, parameter in model.named_parameters()]
        self.owners = {id(parameter): (order, path) for order, (parameter, path) in enumerate(names)}

    def owns(self, path: str, tensor: torch.Tensor) -> None:
        """Says which module a storage that stays belongs to."""
        row = self.live.get(tensor.untyped_storage()._cdata)
        if row is not None:
            row["module"] = self.module_index(path)

    def receive(self, batch: Any) -> None:
        """Takes note of tensors that come from outside the step."""
        for _, tensor in named_tensors(batch):
            if device_type(tensor) == self.device_type:
                self._born(tensor.untyped_storage(), 0, FORWARD, from_host=True, position=len(self.rows))

    def start(self) -> None:
        """Forgets the rows so far; what is alive now was there before the step."""
        self.rows.clear()
        self.operations.clear()
        self.storages = list(self.live.values())
        for storage in self.storages:
            storage["born"] = BEFORE

    def __enter__(self) -> Recorder:
        original_resize, original_call = torch.UntypedStorage.resize_, nn.Module.__call__
        recorder = self

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original_resize(storage, size)
            recorder._resized(storage)
            return result

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Not a hook: a hook would hold inputs and outputs longer than the step itself does.
            path = recorder._paths.get(id(module))
            if path is None:
                return original_call(module, *args, **kwargs)
            stack = recorder._module_stack()
            stack.append(recorder.module_index(path))
            try:
                return original_call(module, *args, **kwargs)
            finally:
                stack.pop()

        setattr(torch.UntypedStorage, "resize_", resize_)  # noqa: B010 (typed as read-only)
        setattr(nn.Module, "__call__", call)  # noqa: B010
        self._undo = [
            lambda: setattr(torch.UntypedStorage, "resize_", original_resize),
            lambda: setattr(nn.Module, "__call__", original_call),
        ]
        return super().__enter__()

    def __exit__(self, *args: Any) -> Any:
        for undo in self._undo:
            undo()
        return super().__exit__(*args)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_traceable_wrapper_subclass_type(t) for t in types):
            return NotImplemented  # let a DTensor or a quantized tensor come back with the operations on what it holds
        if func is _ASKS_DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two of three dispatches are this question
        kwargs = kwargs or {}
        if self.paused:
            out = func(*args, **kwargs)
            _refuse_cuda(out)
            return out
        if self.answers.covers(func):
            return self.answers.answer(func, args, noted=not self.updating)
        try:
            out = func(*args, **kwargs)
        except DynamicOutputShapeException:
            raise dynamic_shape(func) from None
        except (DataDependentOutputException, UnsupportedOperatorException):
            raise no_shape_rule(str(func)) from None
        made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        outputs = [t for t in made if device_type(t) == self.device_type]
        if len(outputs) < len(made):
            _refuse_cuda(made)
            if func is _COPIES and device_type(args[0]) == self.device_type:
                self.answers.leaves_device()
        self.answers.remember(func, out, args)
        if outputs or any(device_type(t) == self.device_type for t in tensors_in(args)):
            self._record(func, args, kwargs, outputs)
        return out

    def _record(self, func: Any, args: Any, kwargs: Any, outputs: list[torch.Tensor]) -> None:
        fresh = [t for t in outputs if t.untyped_storage()._cdata not in self.live]
        if not fresh and (not func._schema.is_mutable or torch.Tag.inplace_view in func.tags):
            return  # a view
        if self.device_type != "cpu":
            for tensor in copied(func, args):
                self._copies(tensor)
        phase, module = self._where()
        kind, dtype, numbers = describe(func, args, kwargs, outputs, fresh)
        key = (str(func), KINDS.index(kind), dtype, numbers)
        index = self.operations.setdefault(key, len(self.operations))
        self.rows.append((index, module, phase, 2 if phase == OPTIMIZER else self.micro_step))
        from_host = any(device_type(t) != self.device_type and t.dim() for t in tensors_in(args))
        for tensor in fresh:
            self._born(tensor.untyped_storage(), module, phase, from_host=from_host)

    def _copies(self, tensor: torch.Tensor) -> None:
        """A copy to another layout, made and freed inside the operator that is being recorded."""
        size = size_bytes(tensor)
        numbers = (0, size, size, 0, 1, 0, 0, 0, 0, 0)
        self.record_kernel("aten.clone.default", "copy", str(tensor.dtype).removeprefix("torch."), numbers, list)

    def record_kernel(
        self, name: str, kind: str, dtype: str, numbers: Numbers, make: Callable[[], list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """One kernel that no operator stands for: it is a row, and what `make` returns are its results."""
        paused, self.paused = self.paused, True
        try:
            results = make()
        finally:
            self.paused = paused
        if not paused:
            phase, module = self._where()
            index = self.operations.setdefault((name, KINDS.index(kind), dtype, numbers), len(self.operations))
            self.rows.append((index, module, phase, 2 if phase == OPTIMIZER else self.micro_step))
            for tensor in results:
                self._born(tensor.untyped_storage(), module, phase, from_host=False)
        return results

    def _where(self) -> tuple[int, int]:
        """Phase and module of the operation being dispatched."""
        if self.place is not None:
            return self.place
        stack = self._module_stack()
        if self.updating:
            return OPTIMIZER, stack[-1] if stack else 0
        node = torch._C._current_autograd_node()
        if node is None:
            module = stack[-1] if stack else 0
            self._module_of_node[torch.autograd._get_sequence_nr() - 1] = module
            return (OPTIMIZER if self.micro_step == 2 else FORWARD), module
        module = stack[-1] if stack else self._module_of_node.get(node._sequence_nr(), 0)
        # Backward runs without gradients; only a recomputed forward turns them on.
        return (RECOMPUTE if torch.is_grad_enabled() else BACKWARD), module

    def _born(
        self, storage: torch.UntypedStorage, module: int, phase: int, *, from_host: bool, position: int | None = None
    ) -> None:
        """A storage that is new at this position (None: at the operation recorded last)."""
        if storage._cdata in self.live:
            return
        row: StorageRow = {
            "size_bytes": storage.nbytes(),
            "module": module,
            "phase": phase,
            "from_host": from_host,
            "born": max(len(self.rows) - 1, 0) if position is None else position,
            "died": None,
        }
        self.live[storage._cdata] = row
        self.storages.append(row)
        weakref.finalize(storage, self._died, storage._cdata)

    def _died(self, key: int) -> None:
        row = self.live.pop(key, None)
        if row is not None:
            row["died"] = max(len(self.rows) - 1, 0)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """A storage freed or filled in place (FSDP does so): one row ends, another may begin."""
        row = self.live.get(storage._cdata)
        if row is None:
            return
        row["died"] = max(len(self.rows) - 1, 0)
        phase, module = self._where()
        again = {
            **row,
            "size_bytes": storage.nbytes(),
            "born": len(self.rows) - 1,
            "died": None,
            "phase": phase,
            "module": module,
        }
        self.live[storage._cdata] = again
        self.storages.append(again)

    def _module_stack(self) -> list[int]:
        if not hasattr(self._stack, "modules"):
            self._stack.modules = []
        return self._stack.modules

    def module_index(self, path: str) -> int:
        return self.modules.setdefault(path, len(self.modules))


def _refuse_cuda(made: Any) -> None:
    """Raises JobError where the job made a tensor on a CUDA device, which fake tensors of a CUDA build allow."""
    if any(isinstance(t, torch.Tensor) and device_type(t) == "cuda" for t in tree_leaves(made)):
        raise asks_for_cuda()
