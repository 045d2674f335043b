"""Handles of collectives in a fake world: what a program waits for, and DistributedDataParallel's reductions.

PyTorch's fake process group returns handles without a result and without a moment. Here a handle remembers the collectives that
its call recorded: waiting for it orders the streams.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as ddp_module

from gpuwise.trace.parallel.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from gpuwise.tracing.patching import patched
from gpuwise.tracing.streams import Enqueued, Streams

_RETURN_WORK = ("all_reduce", "batch_isend_irecv")
_BETWEEN_TWO = ("isend", "irecv")  # a schedule keeps their handles, and these what is sent (SendWork in ProcessGroupGloo.hpp)
_SEARCHES = 5  # position of find_unused_parameters behind the parameters, in the Reducer's arguments


class RecordsCollectives(Protocol):
    """The part of the Recorder that handles need.

    Attributes:
        streams: the streams of the device.
        unwaited: collectives that run beside the current stream, and that nothing has waited for.
    """

    streams: Streams
    unwaited: list[Enqueued]


class RecordedWork:
    """A handle of recorded collectives, with the methods of torch.distributed.Work that programs call."""

    def __init__(self, recorder: RecordsCollectives, marks: Sequence[Enqueued], tensors: list[Tensor]):
        self._recorder, self._marks, self._tensors = recorder, marks, tensors

    def wait(self, timeout: object = None) -> bool:
        streams, unwaited = self._recorder.streams, self._recorder.unwaited
        for mark in self._marks:
            streams.wait(streams.current, mark)
            if mark in unwaited:
                unwaited.remove(mark)
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future


@contextmanager
def recorded_works(recorder: RecordsCollectives) -> Iterator[None]:
    """While entered, asynchronous collectives return handles that order the recorder's streams, and replicas are recorded.

    Those are C++ code that reads values in two places. The division of a gradient is then recorded as a plain copy of the
    same bytes, and away from a CPU the search for unused parameters, whose result is four bytes a parameter, is left out.
    """
    hooked: set[int] = set()
    register, prepare = DistributedDataParallel.register_comm_hook, DistributedDataParallel._pre_forward

    construct = DistributedDataParallel.__init__
    make_reducer: Callable[..., dist.Reducer] = dist.Reducer

    def construct_without_regrouping(replicas: DistributedDataParallel, *args: Any, **options: Any) -> None:
        construct(replicas, *args, **options)
        replicas.reducer = _Reducer(replicas.reducer)  # type: ignore[assignment]

    def reducer_without_search(parameters: list[Tensor], *options: Any) -> dist.Reducer:
        searches = parameters[0].device.type == "cpu" and options[_SEARCHES]
        return make_reducer(parameters, *options[:_SEARCHES], searches, *options[_SEARCHES + 1 :])

    def register_and_remember(replicas: DistributedDataParallel, state: object, hook: Callable[..., object]) -> None:
        hooked.add(id(replicas))
        register(replicas, state, hook)

    def prepare_with_hook(replicas: DistributedDataParallel, *inputs: object, **kwargs: object) -> object:
        if id(replicas) not in hooked:
            register_and_remember(replicas, replicas.process_group, lambda group, bucket: _reduce(group, bucket))
        return prepare(replicas, *inputs, **kwargs)

    with ExitStack() as stack:
        for name in _RETURN_WORK:
            stack.enter_context(patched(dist, name, _with_handle(getattr(dist, name), recorder)))
        for name in _BETWEEN_TWO:  # in both modules: a P2POp checks that it has one of the two functions
            call = _with_handle(getattr(dist, name), recorder)
            stack.enter_context(patched(dist, name, call))
            stack.enter_context(patched(dist.distributed_c10d, name, call))
        stack.enter_context(patched(DistributedDataParallel, "__init__", construct_without_regrouping))
        stack.enter_context(patched(dist, "Reducer", reducer_without_search))
        stack.enter_context(patched(dist, "_compute_bucket_assignment_by_size", _final_buckets))
        stack.enter_context(patched(DistributedDataParallel, "register_comm_hook", register_and_remember))
        stack.enter_context(patched(DistributedDataParallel, "_pre_forward", prepare_with_hook))
        # Compares shapes with those of other ranks, which are nowhere.
        stack.enter_context(patched(ddp_module, "_verify_param_shape_across_processes", lambda *_: None))
        yield


class _Reducer:
    """A reducer of replicas whose buckets stay: regrouping them in the order of backward compares numbers of ranks."""

    def __init__(self, reducer: object) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> object:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


_assign_buckets = dist._compute_bucket_assignment_by_size


def _final_buckets(tensors: list[Tensor], limits: list[int], sparse: list[bool]) -> tuple[list[list[int]], list[int]]:
    """The buckets of later steps: in the order of backward, the first one small. The first step has a single one."""
    if limits != [sys.maxsize]:
        return _assign_buckets(tensors, limits, sparse)
    last = len(tensors) - 1
    sizes = [FIRST_BUCKET_BYTES, BUCKET_BYTES]
    buckets, size_limits = _assign_buckets(tensors[::-1], sizes, sparse[::-1])
    # DistributedDataParallel takes them from the last to the first.
    return [[last - index for index in bucket] for bucket in reversed(buckets)], size_limits[::-1]


def _reduce(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[list[Tensor]] = work.get_future()
    return future.then(lambda done: done.value()[0])


def _with_handle(call: Callable[..., object], recorder: RecordsCollectives) -> Callable[..., object]:
    """The function, whose handle is one of what it records."""

    def called(*args: object, **kwargs: object) -> object:
        before = len(recorder.unwaited)
        work = call(*args, **kwargs)
        if work is None:
            return None
        tensors = [value for value in args[:1] if isinstance(value, Tensor)]
        handle = RecordedWork(recorder, recorder.unwaited[before:], tensors)
        return [handle] if isinstance(work, list) else handle

    return called
