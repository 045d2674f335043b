"""Quantizer: weights in the types of llama.cpp, by its own code where that can be called, else by that of the gguf package."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnsupportedError
from gpuwise.job.dependencies import require
from gpuwise.serving import ggml

WIDE: dict[str, type[np.generic]] = {"f32": np.float32, "f16": np.float16}
IN_PYTHON = ("q8_0", "q5_1", "q5_0", "q4_0")  # types that the gguf package writes without llama.cpp


class Quantizer:
    """Writes numbers in types of llama.cpp.

    `ggml_quantize_chunk` (ggml/include/ggml.h) is what llama.cpp's own quantizer calls. The library of xllamacpp exports it on
    Linux and macOS.

    Arguments:
        threads: that share the rows of a matrix; 1 by default.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._types = require("gguf", purpose="write a model for llama.cpp").GGMLQuantizationType
        self._chunk = _quantize_chunk()

    def check(self, types: Iterable[str], *, mix: str) -> None:
        """Raises UnsupportedError where a type of a mix cannot be written here, with the nearest mix that can."""
        if self._chunk is not None:
            return
        able = (*WIDE, *IN_PYTHON)
        missing = sorted(set(types) - set(able))
        if missing:
            base = ggml.TYPES[ggml.MIXES[mix]]
            nearest = min(IN_PYTHON, key=lambda kind: abs(ggml.TYPES[kind][1] / ggml.TYPES[kind][0] - base[1] / base[0]))
            raise UnsupportedError(
                f"this build of xllamacpp does not export what writes {', '.join(missing)}, which gguf-{mix} has.",
                [f"--weights gguf-{nearest}", "--weights gguf-f16"],
            )

    def stored_in(self, kind: str) -> type[np.generic]:
        """Elements of the array that `quantized` gives."""
        return WIDE.get(kind, np.uint8)

    def quantized(self, numbers: NDArray[np.float32], kind: str) -> NDArray[np.generic]:
        """The rows of a matrix in a type."""
        if kind in WIDE:
            return numbers.astype(WIDE[kind], copy=False)
        if self._chunk is None:
            gguf = require("gguf", purpose="write a model for llama.cpp")
            packed: NDArray[np.generic] = gguf.quantize(numbers, self._types[kind.upper()])
            return packed
        rows, columns = numbers.size // numbers.shape[-1], numbers.shape[-1]
        output = np.empty((rows, ggml.tensor_bytes(kind, columns)), np.uint8)
        chunk, code = self._chunk, self._types[kind.upper()].value
        each = -(-rows // self._threads)

        def written(first: int) -> int:
            some = min(each, rows - first)
            return chunk(code, numbers.ctypes.data, output.ctypes.data, first * columns, some, columns, None)

        with ThreadPoolExecutor(self._threads) as pool:  # ctypes lets go of the interpreter's lock
            assert sum(pool.map(written, range(0, rows, each))) == output.nbytes
        return output.reshape(*numbers.shape[:-1], -1)


def _quantize_chunk() -> Callable[..., int] | None:
    """llama.cpp's quantizer in the library of xllamacpp; None where that does not export it."""
    library = require("xllamacpp", purpose="serve with llama.cpp").xllamacpp.__file__
    chunk = getattr(ctypes.CDLL(library), "ggml_quantize_chunk", None)
    if chunk is None:
        return None
    # type, source, destination, first element, rows, columns, importance of columns
    chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    chunk.restype = ctypes.c_size_t
    return chunk
