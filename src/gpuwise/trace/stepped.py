"""Memory inside a kernel that grows in steps: tiles, blocks of rows, other paths from a size on.

All other numbers of a trace are polynomials of its sizes, and a family holds them so. These few are computed from the shape
of the operation (columns batch, m, n, k) at each size; the recorder counts them with the same functions. The figures are
those of CUDA on Ampere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuwise.trace.tables import COLUMNS

_INDEX_BYTES = 8  # int64
_ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "bool": 1,
}
_SHAPE = [COLUMNS.index(name) for name in ("batch", "m", "n", "k")]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def flash_backward(dtype: str, batch_heads: int, queries: int, keys: int, head_size: int) -> int:
    """dq in fp32 and the row sums, queries padded to 128 (mha_bwd in
    aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp)."""
    rows = batch_heads * _up(queries, 128)
    return 4 * rows * (_up(head_size, 32 if head_size <= 128 else 64) + 1)


def efficient_backward(dtype: str, batch_heads: int, queries: int, keys: int, head_size: int) -> int:
    """Row sums and the tiles of dq, and of dk and dv where half precision does not keep them in registers.

    aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h (workspace_elements_gq, _gk, _gv) and
    kernels/cutlassB.h (the tile for each head size); splits of the keys by attention_backward.cu.
    """
    half = _ITEM_BYTES.get(dtype, 4) == 2
    rows, columns = (64, 64) if head_size <= 64 else (128, 128 if half and head_size <= 128 else 64)
    tiles = -(-queries // rows) * -(-head_size // columns)
    elements = tiles * (4 + rows * columns)  # a tile has 16 bytes of locks
    if half and head_size > 128:
        splits = -(-keys // columns)
        if batch_heads >= 256 and keys <= 2 * columns:
            splits = 1
        splits = max(1, min(splits, 200 // batch_heads))
        elements += 2 * splits * columns * _up(head_size, rows)
    row_sums, workspace = 4 * batch_heads * queries, 4 * batch_heads * _up(elements, 4)
    if half:
        return row_sums + workspace
    # fp32 sums the product of output and gradient first, with a transposed copy of the sums.
    return max(row_sums + workspace, 4 * batch_heads * queries * head_size + 2 * row_sums)


SMALL_EMBEDDING = 3072  # indices up to which no sort is needed (embedding_dense_backward_cuda in Embedding.cu)


def embedding_backward(dtype: str, batch: int, indices: int, rows: int, width: int) -> int:
    """Sorted indices, then partial sums of ten rows each, in fp32.

    aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu (max_partial_segment). While sorting, cub keeps
    one more copy of keys and values (an upper bound: one that alternates with the output).
    """
    if indices <= SMALL_EMBEDDING:
        return 0
    segments = min(indices, rows)
    partial = indices // 10 + segments
    sums = (2 * indices + 3 * segments + partial) * _INDEX_BYTES + partial * width * max(4, _ITEM_BYTES.get(dtype, 4))
    return max(5 * indices * _INDEX_BYTES, sums)


def layer_norm_backward(dtype: str, outputs: int, rows: int, columns: int, width: int) -> int:
    """Partial sums of the weight's gradient (and of the bias's) where rows are many and short.

    LaunchGammaBetaBackwardCUDAKernel in aten/src/ATen/native/cuda/layer_norm_kernel.cu; 54 is half of an A100's
    multiprocessors.
    """
    if rows <= 64 * 1024 or width // 32 >= 54:
        return 0
    blocks = min(32 * 1024 // -(-width // 32), -(-rows // 32))
    return outputs * blocks * width * _ITEM_BYTES.get(dtype, 4)


LONGEST_SORTED_INSIDE = 4096  # numbers of a row that one block sorts without memory (Sort.cpp)


def sort(dtype: str, rows: int, length: int, _: int, __: int) -> int:
    """Longer rows go through cub: indices with segments, twice, and copies of the values (SortStable.cu). Upper bound."""
    if length <= LONGEST_SORTED_INSIDE:
        return 0
    return rows * length * (3 * _INDEX_BYTES + 2 * _ITEM_BYTES.get(dtype, 8))


STEPPED: dict[str, Callable[[str, int, int, int, int], int]] = {
    "aten._scaled_dot_product_flash_attention_backward.default": flash_backward,
    "aten._scaled_dot_product_efficient_attention_backward.default": efficient_backward,
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten.native_layer_norm_backward.default": layer_norm_backward,
    "aten._fused_rms_norm_backward.default": layer_norm_backward,
    "aten.sort.default": sort,
    "aten.sort.stable": sort,
}


def stepped_bytes(names: Sequence[str], dtypes: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Bytes for each operation, zero for most. values: shape (operations, len(COLUMNS)). Shape (operations,)."""
    size_bytes = np.zeros(len(names), dtype=np.int64)
    for row, (name, dtype) in enumerate(zip(names, dtypes, strict=True)):
        if name in STEPPED:
            size_bytes[row] = STEPPED[name](dtype, *(int(value) for value in values[row, _SHAPE]))
    return size_bytes
