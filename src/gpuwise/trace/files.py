"""Traces and families on disk, and as parts of other files. Validated on load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import prod
from typing import TypeVar

import numpy as np

from gpuwise.errors import FileFormatError
from gpuwise.plain_files import LARGEST_WHOLE
from gpuwise.trace.archive import ArchiveHeader, read_archive, write_archive
from gpuwise.trace.family import Axis, TraceFamily
from gpuwise.trace.header import Header
from gpuwise.trace.loading import Loading
from gpuwise.trace.tables import COLUMNS, NO_GROUP, NO_LAYOUT, Operations, OperationSequence, Storages, Waits
from gpuwise.trace.trace import Trace

Read = TypeVar("Read")
FORMAT = "gpuwise-trace"
# Since version 2 an assumption is a note, in version 1 it is its sentence. Since version 3 there are streams, waits and groups.
VERSION = 3
READABLE = (1, 2, 3)
_SMALL = {
    "kind": np.int8,
    "operation": np.int32,
    "module": np.int32,
    "phase": np.int8,
    "micro_step": np.int8,
    "category": np.int8,
    "born": np.int32,
    "died": np.int32,
}
# Columns that a file may leave out, and what they then are.
_OPTIONAL = {"group": NO_GROUP, "stream": 0, "storage_stream": 0, "channels_last": NO_LAYOUT}
_OF_WAITS = ("position", "stream", "on")
_OF_LOADING = ("size_bytes", "lifetime")


def save(trace: Trace | TraceFamily, path: str | os.PathLike[str]) -> None:
    """Writes a temporary file and renames it, so that the file is complete or absent. Raises FileFormatError on failure."""
    header, arrays = packed(trace)
    write_archive(path, {"format": FORMAT, "version": VERSION, **header}, arrays)


def load(path: str | os.PathLike[str]) -> Trace | TraceFamily:
    """Reads a trace or family. Raises FileFormatError if the file is truncated, foreign, newer or inconsistent."""
    header, arrays = read_archive(path, format=FORMAT, versions=READABLE, what="trace")
    return checked(path, lambda: unpacked(header, arrays))


def checked(path: str | os.PathLike[str], read: Callable[[], Read]) -> Read:
    """What `read` makes of a file's members. Raises FileFormatError, which names the file, where it raises anything."""
    try:
        return read()
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error.what}") from None
    except Exception as error:  # a damaged header: a missing key, a wrong type, an unknown strategy
        raise FileFormatError(f"{path}: the trace is damaged ({type(error).__name__}: {error}).") from None


def packed(trace: Trace | TraceFamily) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Header and arrays of a trace or family, from which `unpacked` makes it again."""
    header: dict[str, object] = {
        "columns": COLUMNS,
        **trace.header.to_dict(),
        "modules": trace.modules,
        "names": trace.operations.name,
        "dtypes": trace.operations.dtype,
        "axes": [asdict(axis) for axis in trace.axes] if isinstance(trace, TraceFamily) else None,
    }
    arrays = {"values": trace.operations.values, "kind": trace.operations.kind}
    arrays |= {name: getattr(trace.sequence, name) for name in ("operation", "phase", "micro_step")}
    arrays |= {name: getattr(trace.storages, name) for name in ("size_bytes", "category", "born", "died")}
    arrays |= {"module": trace.sequence.module, "storage_module": trace.storages.module}
    optional = {"group": trace.operations.group, "channels_last": trace.operations.channels_last}
    optional |= {"stream": trace.sequence.stream, "storage_stream": trace.storages.stream}
    arrays |= {name: column for name, column in optional.items() if (column != _OPTIONAL[name]).any()}
    if len(trace.waits):
        arrays |= {f"wait_{name}": getattr(trace.waits, name) for name in _OF_WAITS}
    if len(trace.loading):
        arrays |= {f"loading_{name}": getattr(trace.loading, name) for name in _OF_LOADING}
    return header, {name: array.astype(_SMALL.get(name, array.dtype)) for name, array in arrays.items()}


def unpacked(header: ArchiveHeader, arrays: Mapping[str, np.ndarray]) -> Trace | TraceFamily:
    """The trace or family of `packed`. Raises FileFormatError, or anything else, where it is inconsistent."""
    apart = {"format", "version", "columns", "modules", "names", "dtypes", "axes"}
    head = _checked_header(Header.from_dict({k: v for k, v in header.items() if k not in apart}))
    if tuple(header["columns"]) != COLUMNS:
        raise FileFormatError("its columns are not those of this version.")
    names, dtypes, modules = (_texts(header[key]) for key in ("names", "dtypes", "modules"))
    of_operations = {name: arrays[name] for name in ("group", "channels_last") if name in arrays}
    operations = Operations(names, arrays["kind"], dtypes, arrays["values"], **of_operations)
    sequence = OperationSequence(
        *(arrays[name] for name in ("operation", "module", "phase", "micro_step")), *_optional(arrays, "stream")
    )
    storages = Storages(
        *(arrays[name] for name in ("size_bytes", "category", "storage_module", "born", "died")),
        *_optional(arrays, "storage_stream"),
    )
    waits = Waits(*(arrays[f"wait_{name}"] for name in _OF_WAITS)) if "wait_position" in arrays else Waits()
    loads = any(f"loading_{name}" in arrays for name in _OF_LOADING)
    loading = Loading(*(arrays[f"loading_{name}"] for name in _OF_LOADING)) if loads else Loading()
    if any(array.ndim != 1 for name, array in arrays.items() if name not in ("values", "size_bytes")):
        raise FileFormatError("the trace is damaged: a column has more than one dimension.")
    trace = Trace(head, operations, sequence, storages, modules, waits, loading).check()
    if header["axes"] is None:
        if operations.values.ndim != 2 or storages.size_bytes.ndim != 1:
            raise FileFormatError("the trace is damaged: it has polynomials and no axes.")
        if (operations.values < 0).any() or (storages.size_bytes < 0).any():
            raise FileFormatError("the trace is damaged: a count is below zero.")
        return trace
    axes = tuple(_checked_axis(Axis(**axis), head) for axis in header["axes"])
    terms = prod(axis.degree + 1 for axis in axes)
    if operations.values.shape[2:] != (terms,) or storages.size_bytes.shape[1:] != (terms,):
        raise FileFormatError("the trace is damaged: its polynomials do not match its axes.")
    return TraceFamily(head, axes, operations, sequence, storages, modules, waits, loading)


def _optional(arrays: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
    return [arrays[name]] if name in arrays else []


def _checked_header(header: Header) -> Header:
    counts = [header.parameters, header.trainable_parameters, header.units_per_sample, *header.sizes.values()]
    counts += [header.rank, header.micro_batches, header.model_flops, header.experts, *header.stages]
    counts += [number for part in header.updated for number in (*part.shape, part.element_bytes, part.module)]
    counts += [number for group in header.groups for number in (group.ranks, group.stride)]
    texts = [header.job, header.fingerprint, header.sample_unit, header.target, header.torch_version, *header.sizes]
    texts += [group.axis for group in header.groups]
    if not all(map(_is_count, counts)) or "micro_batch" not in header.sizes:
        raise FileFormatError("the trace is damaged: a size or a count of its header is no whole number.")
    if not all(_is_count(number) for shape in header.gradient_shapes for number in shape):
        raise FileFormatError("the trace is damaged: a shape in its header is no list of whole numbers.")
    _texts([*texts, *header.blocks, *header.expert_modules])
    return header


def _checked_axis(axis: Axis, header: Header) -> Axis:
    whole = all(map(_is_count, (axis.start, axis.step, axis.degree, axis.exact_every)))
    if not whole or axis.step == 0 or axis.exact_every == 0 or axis.name not in header.sizes:
        raise FileFormatError("the trace is damaged: an axis makes no sense.")
    return axis


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_WHOLE


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FileFormatError("the trace is damaged: a name in its header is no text.")
    return tuple(values)
