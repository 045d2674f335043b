"""Traces and families on disk: one npz whose member `header` is JSON. Validated on load; no pickle anywhere."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.errors import FileFormatError
from gpuwise.trace.family import Axis, TraceFamily
from gpuwise.trace.trace import COLUMNS, Header, Operations, Sequence, Storages, Trace

FORMAT = "gpuwise-trace"
VERSION = 1
_SMALL = {"kind": np.int8, "operation": np.int32, "module": np.int32, "phase": np.int8, "micro_step": np.int8,
          "category": np.int8, "born": np.int32, "died": np.int32}  # fmt: skip


def save(trace: Trace | TraceFamily, path: str | os.PathLike[str]) -> None:
    """Writes aside and renames, so that the file is complete or absent."""
    header: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "columns": COLUMNS, **trace.header.to_dict(),
        "modules": trace.modules, "names": trace.operations.name, "dtypes": trace.operations.dtype,
        "axes": [asdict(axis) for axis in trace.axes] if isinstance(trace, TraceFamily) else None,
    }  # fmt: skip
    arrays = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), "values": trace.operations.values,
              "kind": trace.operations.kind}  # fmt: skip
    arrays |= {name: getattr(trace.sequence, name) for name in ("operation", "phase", "micro_step")}
    arrays |= {name: getattr(trace.storages, name) for name in ("size_bytes", "category", "born", "died")}
    arrays |= {"module": trace.sequence.module, "storage_module": trace.storages.module}
    arrays = {name: array.astype(_SMALL.get(name, array.dtype)) for name, array in arrays.items()}
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Trace | TraceFamily:
    """Raises FileFormatError for a file that is truncated, foreign, of a newer version or inconsistent."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop("header").tobytes())
    except FileNotFoundError:
        raise FileFormatError(f"there is no trace file {path}.") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} is not a gpuwise trace, or is damaged ({error}).",
                              ["record it again", "check that the copy is complete"]) from None  # fmt: skip
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FileFormatError(f"{path} is not a gpuwise trace.")
    if header.get("version") != VERSION:
        raise FileFormatError(f"{path} is a trace of version {header.get('version')}; this gpuwise reads {VERSION}.",
                              ["record it again", "upgrade gpuwise"])  # fmt: skip
    try:
        return _from_parts(header, arrays)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error.what}") from None
    except Exception as error:  # whatever a damaged header makes fail: a missing key, a wrong type, an unknown strategy
        raise FileFormatError(f"{path}: the trace is damaged ({type(error).__name__}: {error}).") from None


def _from_parts(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Trace | TraceFamily:
    head = {
        k: v
        for k, v in header.items()
        if k not in {"format", "version", "columns", "modules", "names", "dtypes", "axes"}
    }
    if tuple(header["columns"]) != COLUMNS:
        raise FileFormatError("its columns are not those of this version.")
    for name, array in arrays.items():
        if array.dtype.kind not in "iu":
            raise FileFormatError(f"the trace is damaged: column {name} holds no whole numbers.")
    operations = Operations(tuple(header["names"]), arrays["kind"], tuple(header["dtypes"]), arrays["values"])
    sequence = Sequence(arrays["operation"], arrays["module"], arrays["phase"], arrays["micro_step"])
    storages = Storages(
        arrays["size_bytes"], arrays["category"], arrays["storage_module"], arrays["born"], arrays["died"]
    )
    modules = tuple(header["modules"])
    trace = Trace(Header.from_dict(head), operations, sequence, storages, modules).check()
    if header["axes"] is None:
        return trace
    axes = tuple(Axis(**axis) for axis in header["axes"])
    terms = int(np.prod([axis.degree + 1 for axis in axes]))
    if operations.values.shape[2:] != (terms,) or storages.size_bytes.shape[1:] != (terms,):
        raise FileFormatError("the trace is damaged: its polynomials do not match its axes.")
    return TraceFamily(trace.header, axes, operations, sequence, storages, modules)
