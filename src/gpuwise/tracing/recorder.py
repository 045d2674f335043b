"""The recorder: sees every operator a step dispatches, every storage born and freed, and in which module and phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from gpuwise.job.batches import named_tensors
from gpuwise.job.job import Batch
from gpuwise.strategy import Mesh
from gpuwise.trace import KINDS, PHASES, OperationRow, OperationValues
from gpuwise.trace.parallel.recorded_rows import CallShapes, Counted
from gpuwise.trace.tables import NO_LAYOUT, TURNED
from gpuwise.tracing.answers import Answering, Answers
from gpuwise.tracing.collectives import (
    GroupTable,
    buffers,
    describe_collective,
    is_collective,
    runs_beside,
    waited_tensor,
    written_tensors,
)
from gpuwise.tracing.counts import Counts
from gpuwise.tracing.describe import describe, device_type, dtype_name, size_bytes, updated_sizes
from gpuwise.tracing.fake_calls import called, stand_ins
from gpuwise.tracing.graph_passes import GraphPasses
from gpuwise.tracing.in_place import as_on_a_device
from gpuwise.tracing.kernels.layouts import copied_operands
from gpuwise.tracing.module_tracker import ModuleTracker
from gpuwise.tracing.operand_types import check_operand_types
from gpuwise.tracing.operator_call import OperatorCall, tensors_in
from gpuwise.tracing.patching import patched
from gpuwise.tracing.positions import Origin, PositionRow
from gpuwise.tracing.propagation import unseen_propagation
from gpuwise.tracing.refusals import refuse_cuda
from gpuwise.tracing.storage_table import StorageRow, StorageTable
from gpuwise.tracing.streams import NOTHING, Enqueued, Streams
from gpuwise.tracing.virtual_device import DEVICE, use
from gpuwise.tracing.works import recorded_works

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = range(4)
assert PHASES == ("forward", "backward", "recompute", "optimizer")

_ASKS_DEVICE = torch.ops.prim.device.default
_OVER_MANY = KINDS.index("optimizer")
_ASKS_PINNED = torch.ops.aten.is_pinned.default
_COPIES = torch.ops.aten._to_copy.default
# micro_step of what follows the last backward, and of every row of phase optimizer.
UPDATE_STEP = 2


class Recorder(TorchDispatchMode):
    """Records one step: its operations in the order they run, and its storages.

    Arguments:
        device_type: operations and storages of this device are recorded, others (a CPU scalar, say) are not.
        mesh: the mesh of the rank whose step it is; by default that of one device.

    Attributes:
        operations: each distinct operation, and its number.
        rows: the positions of the step.
        storages: the memory that tensors hold.
        modules: the modules to attribute rows to.
        answers, counts: what was assumed where the model asked for values, or for how many elements of a mask are true.
        unrecorded: the mode that takes its place where nothing is recorded (gpuwise.runtime.parallel.stages_absent).
        streams: the streams of the device, and what they wait for.
        groups: the groups of ranks of the collectives.
        of_many: of each position that is a kernel over many tensors, how many of them have how many elements.
        shapes: of each call that is recorded, the shapes of its tensors; none of a step on one device.
        unwaited: collectives beside the current stream that nothing has waited for. The update waits for all of them.
        micro_step: set by the caller to 0, 1, and 2 once backward is done.
        updating: whether an optimizer steps, which may be inside backward; set by the caller.
        paused: whether nothing is recorded; set by the caller.
        origin: set by a caller that knows the origin of operations better; else None.
        failure: the first exception of an operator in a backward that goes on with stand-ins, to be raised after it; else None.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under it, and the guard costs a tenth of a recording

    def __init__(self, device_type: str, mesh: Mesh | None = None):
        super().__init__()
        self.device_type = device_type
        self.operations: dict[OperationRow, int] = {}
        self.rows: list[PositionRow] = []
        self.storages = StorageTable()
        self.modules = ModuleTracker()
        self.answers = Answers()
        self.unrecorded = Answering(self.answers)
        self.counts = Counts(self.answers)
        self.streams = Streams()
        self.groups = GroupTable(mesh or Mesh())
        self.unwaited: list[Enqueued] = []
        self.of_many: dict[int, Counted] = {}
        self.shapes: list[CallShapes] = []
        self._of_ranks = self.groups.mesh.devices > 1
        self.micro_step, self.updating, self.paused = 0, False, False
        self.origin: Origin | None = None
        self.failure: Exception | None = None
        self._graph_passes = GraphPasses()
        self._patches = ExitStack()
        self._group_streams: dict[int, int] = {}  # by the index of a group: the stream of its collectives
        self._done: dict[int, Enqueued] = {}  # by the address of a storage: the collective that fills it

    def start(self) -> None:
        """Begins a step: forgets the rows so far."""
        for table in (self.rows, self.operations, self._done, self.of_many, self.shapes, self.unwaited):
            table.clear()
        self.storages.start()
        self.streams.start()

    def receive(self, batch: Batch) -> None:
        """Takes note of tensors that come from outside the step."""
        for _, tensor in named_tensors(batch):
            if device_type(tensor) == self.device_type:
                row = StorageRow(tensor.untyped_storage().nbytes(), 0, FORWARD, from_host=True, born=len(self.rows))
                self.storages.add(tensor.untyped_storage(), row)

    def __enter__(self) -> Recorder:
        resize = torch.UntypedStorage.resize_

        def resize_and_record(storage: torch.UntypedStorage, size: int) -> object:
            result = resize(storage, size)
            if storage._cdata in self.storages.live:
                phase, module = self._origin()
                self.storages.resize(storage, position=len(self.rows), phase=phase, module=module, stream=self.streams.current)
            return result

        self._patches = ExitStack()
        self._patches.enter_context(self.modules.tracking())
        self._patches.enter_context(self._graph_passes.noticing())
        self._patches.enter_context(patched(torch.UntypedStorage, "resize_", resize_and_record))
        self._patches.enter_context(unseen_propagation(self))
        if self._of_ranks:
            self._patches.enter_context(recorded_works(self))
        if self.device_type == DEVICE:
            use(self.streams)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._patches.close()
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        try:
            return self._dispatched(func, types, args, kwargs or {})
        except Exception as error:
            results = stand_ins(func, args) if self.device_type == DEVICE else None
            if results is None:
                raise
            self.failure = self.failure or error
            return results

    def _dispatched(self, func: OpOverload, types: Sequence[type], args: Sequence[Tensor], kwargs: dict[str, object]) -> object:
        if any(is_traceable_wrapper_subclass_type(t) for t in types):
            return NotImplemented  # let a DTensor or a quantized tensor come back with the operations on what it holds
        if func is _ASKS_DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two of three dispatches are this question
        if func is _ASKS_PINNED and self._of_ranks:
            return True  # the buffers of DistributedDataParallel in host memory must be
        if self.paused:
            out = self.answers.answer(func, args, noted=False) if self.answers.fills(func) else func(*args, **kwargs)
            refuse_cuda(out)
            return out
        waited = waited_tensor(func, args)
        if waited is not None:  # a fake tensor would come back in memory of its own
            self.streams.wait(self.streams.current, self._done.pop(waited.untyped_storage()._cdata, NOTHING))
            return waited
        if self.answers.covers(func):
            return self.answers.answer(func, args, noted=not self.updating)
        func = as_on_a_device(func, args)
        check_operand_types(func, args)
        out = self.counts.shaped(func, args)
        out = called(func, args, kwargs) if out is None else out
        results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        outputs = [t for t in results if device_type(t) == self.device_type]
        if len(outputs) < len(results):
            refuse_cuda(results)
            if func is _COPIES and device_type(args[0]) == self.device_type:
                self.answers.leaves_device()
        self.answers.remember(func, out, args)
        self.counts.remember(func, args, out)
        if outputs or any(device_type(t) == self.device_type for t in tensors_in(args)):
            self._record(OperatorCall(func, args, kwargs, outputs))
        return out

    def _record(self, call: OperatorCall) -> None:
        fresh = [t for t in call.outputs if not self.storages.holds(t)]
        of_ranks = is_collective(call.op)
        if not of_ranks and not fresh and (not call.op._schema.is_mutable or torch.Tag.inplace_view in call.op.tags):
            return  # a view
        if self._of_ranks:
            self.shapes.append(call.shapes())
        if of_ranks:
            self._record_collective(call, fresh)
            return
        if self.device_type != "cpu":
            for tensor, turned in copied_operands(call):
                self._record_copy(tensor, turned=turned)
        origin, row = self._origin(), describe(call, fresh)
        if origin.phase == OPTIMIZER and row.channels_last == TURNED and KINDS[row.kind] in ("elementwise", "copy"):
            row = row._replace(channels_last=NO_LAYOUT)  # as the templates that updates are composed from have it
        if row.kind == _OVER_MANY:
            self.of_many[len(self.rows)] = tuple((1, size) for size in updated_sizes(call))
        self._add_row(row, origin)
        from_host = any(device_type(t) != self.device_type and t.dim() for t in tensors_in(call.args))
        self._add_storages(fresh, origin, from_host=from_host)
        self._mark_buffers(call)

    def _record_collective(self, call: OperatorCall, fresh: list[Tensor]) -> None:
        """A collective, on the current stream or beside it."""
        group, origin = self.groups.index(call), self._origin()
        streams, before = self.streams, self.streams.current
        if runs_beside(call):
            beside = self._group_streams.get(group)
            if beside is None:
                beside = self._group_streams[group] = streams.new()
            streams.wait(beside, streams.mark(before))
            streams.current = beside
        self._add_row(describe_collective(call, group), origin)
        if streams.current != before:
            mark = streams.mark(streams.current)
            if call.op.namespace == "c10d":
                self.unwaited.append(mark)
            for tensor in written_tensors(call):
                self._done[tensor.untyped_storage()._cdata] = mark
        streams.current = before
        self._add_storages(fresh, origin, from_host=False)
        self._mark_buffers(call)

    def _mark_buffers(self, call: OperatorCall) -> None:
        for tensor in buffers(call):
            row = self.storages.row(tensor)
            if row is not None and row.category is None:
                row.category = "communication_buffer"

    def _record_copy(self, tensor: Tensor, *, turned: bool) -> None:
        """A copy to another layout, made and freed inside the operator that is being recorded. turned: as tables.TURNED."""
        size = size_bytes(tensor)
        values = OperationValues(bytes_read=size, bytes_written=size, kernels=1)
        name, kind, dtype = "aten.clone.default", KINDS.index("copy"), dtype_name(tensor.dtype)
        self.record_kernel(OperationRow(name, kind, dtype, values, channels_last=TURNED if turned else NO_LAYOUT), list)

    def record_kernel(self, row: OperationRow, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Records one kernel that is no operator. make: creates its results."""
        paused, self.paused = self.paused, True
        try:
            results = make()
        finally:
            self.paused = paused
        if not paused:
            origin = self._origin()
            self._add_row(row, origin)
            self._add_storages(results, origin, from_host=False)
        return results

    def _add_row(self, row: OperationRow, origin: Origin) -> None:
        if self.unwaited and origin.phase == OPTIMIZER:
            for mark in self.unwaited:
                self.streams.wait(self.streams.current, mark)
            self.unwaited.clear()
        operation = self.operations.setdefault(row, len(self.operations))
        micro_step = UPDATE_STEP if origin.phase == OPTIMIZER else self.micro_step
        self.storages.position = len(self.rows)
        self.rows.append(PositionRow(operation, origin.module, origin.phase, micro_step, self.streams.current))
        self.streams.launch(self.storages.position)

    def _add_storages(self, tensors: Sequence[Tensor], origin: Origin, *, from_host: bool) -> None:
        """The storages of results that the last row made."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            row = StorageRow(storage.nbytes(), origin.module, origin.phase, from_host, born=self.storages.position)
            row.stream = self.streams.current
            self.storages.add(storage, row)

    def _origin(self) -> Origin:
        """Phase and module of the operation being dispatched."""
        if self.origin is not None:
            return self.origin
        if self.updating:
            return Origin(OPTIMIZER, self.modules.running() or 0)
        node = torch._C._current_autograd_node()
        if node is None:
            module = self.modules.of_forward()
            return Origin(OPTIMIZER if self.micro_step == UPDATE_STEP else FORWARD, module)
        # Backward runs without gradients; a recomputed forward turns them on, and a backward that is differentiated again.
        again = torch.is_grad_enabled() and not self._graph_passes.running
        return Origin(RECOMPUTE if again else BACKWARD, self.modules.of_backward(node))
