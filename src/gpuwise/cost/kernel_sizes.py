"""The sizes that describe single kernels: dimensions of a product, a convolution or an attention, or the bytes moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpuwise.cost.kernels.shapes import ELEMENT_BYTES
from gpuwise.cost.rates import QUANTIZED
from gpuwise.errors import InputError, unknown_name

DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp4": "float4_e2m1fn_x2",
    "int8": "int8",
}
_RESULT_BYTES = 2.0  # products of quantized numbers are written in 16 bits
_MOST = 2**40


def _product(s: Mapping[str, int], element: float, *, backward: bool) -> dict[str, float]:
    batch, m, n, k = s["batch"], s["m"], s["n"], s["k"]
    return {
        "flops": 2 * batch * m * n * k,
        "bytes_read": element * batch * (m * k + k * n),
        "bytes_written": element * batch * m * n,
        "batch": batch,
        "m": m,
        "n": n,
        "k": k,
    }


def _convolution(s: Mapping[str, int], element: float, *, backward: bool) -> dict[str, float]:
    """A convolution as an implicit matrix product; backward computes the gradients of input and weight."""
    kernel, groups, passes = s["kernel_size"], s["groups"], 2 if backward else 1
    if s["in_channels"] % groups or s["out_channels"] % groups:
        raise InputError(f"{groups} groups do not divide {s['in_channels']} and {s['out_channels']} channels.")
    high, wide = (1 + (s[side] + 2 * s["padding"] - kernel) // s["stride"] for side in ("height", "width"))
    if high < 1 or wide < 1:
        raise InputError(f"a kernel of {kernel} does not fit {s['height']} x {s['width']} pixels padded by {s['padding']}.")
    m, n, k = s["batch"] * high * wide, s["out_channels"] // groups, s["in_channels"] // groups * kernel**2
    image, result = s["batch"] * s["in_channels"] * s["height"] * s["width"], m * s["out_channels"]
    weight = s["out_channels"] * k
    read, written = (image + weight, result) if not backward else (image + weight + result, image + weight)
    return {
        "flops": 2 * groups * m * n * k * passes,
        "bytes_read": element * read,
        "bytes_written": element * written,
        "kernels": passes,
        "batch": groups,
        "m": m,
        "n": n,
        "k": k,
    }


def _attention(s: Mapping[str, int], element: float, *, backward: bool) -> dict[str, float]:
    """Attention as two products, or five in backward; a causal query sees the keys up to its own."""
    queries, keys, causal = s["queries"], s["keys"], bool(s["causal"]) and s["queries"] > 1
    if s["heads"] % s["kv_heads"]:
        raise InputError(f"{s['kv_heads']} key and value heads do not divide {s['heads']} heads.")
    seen = keys - (min(queries, keys) - 1) / 2 if causal else keys
    batch, products = s["batch"] * s["heads"], 5 if backward else 2
    query = batch * queries * s["head_size"]
    key = s["batch"] * s["kv_heads"] * keys * s["head_size"]
    read, written = (3 * query + 2 * key, query + 2 * key) if backward else (query + 2 * key, query)
    return {
        "flops": 2 * products * batch * queries * seen * s["head_size"],
        "bytes_read": element * read,
        "bytes_written": element * written,
        "kernels": 3 if backward else 1,
        "batch": batch,
        "m": queries,
        "n": keys,
        "k": s["head_size"],
        "causal": causal,
    }


def _moved(s: Mapping[str, int], element: float, *, backward: bool) -> dict[str, float]:
    return dict(s)


# What each kind of kernel is described by: sizes it needs; others with their values (a text: that of another size; None: half
# of kernel_size, which keeps an image its size); and the columns of a trace that follow. Kinds that are not here: bytes.
_Shape = tuple[tuple[str, ...], dict[str, int | str | None], Callable[..., dict[str, float]]]
SIZES: dict[str, _Shape] = {
    "gemm": (("m", "n", "k"), {"batch": 1}, _product),
    "conv": (
        ("batch", "in_channels", "out_channels", "height", "width", "kernel_size"),
        {"stride": 1, "padding": None, "groups": 1},
        _convolution,
    ),
    "attention": (
        ("batch", "heads", "queries", "head_size"),
        {"kv_heads": "heads", "keys": "queries", "causal": 0},
        _attention,
    ),
}
_BYTES: _Shape = (("bytes_read", "bytes_written"), {"kernels": 1}, _moved)


def columns_of(kind: str, sizes: Mapping[str, int], dtype: str) -> dict[str, float]:
    """The columns of a trace (gpuwise.trace.tables.COLUMNS) of a kernel of checked sizes. dtype: as dtype_of gives it."""
    shape = SIZES.get(kind.split("_")[0], _BYTES)[2]
    columns = shape(sizes, ELEMENT_BYTES[dtype], backward=kind.endswith("_backward"))
    if dtype in QUANTIZED and kind.startswith("gemm"):
        columns["bytes_written"] = _RESULT_BYTES * sizes["batch"] * sizes["m"] * sizes["n"]
    return columns


def checked_sizes(kind: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """All sizes of a kind, with defaults. Raises InputError for missing, unknown or out-of-range sizes."""
    needed, defaults, _ = SIZES.get(kind.split("_")[0], _BYTES)
    wrong = [name for name in sizes if name not in needed and name not in defaults]
    missing = [name for name in needed if name not in sizes]
    if wrong or missing:
        what = f"no size {wrong[0]!r}" if wrong else f"a size {missing[0]!r} that is not given"
        raise InputError(f"a kernel {kind!r} has {what}.", [f"needed: {', '.join(needed)}", f"optional: {', '.join(defaults)}"])
    least = {"padding": 0, "causal": 0, "bytes_read": 0, "bytes_written": 0}
    checked = {}
    for name, value in sizes.items():
        if not isinstance(value, int | np.integer) or not least.get(name, 1) <= value <= _MOST:
            raise InputError(f"{name} of a kernel must be a whole number from {least.get(name, 1)} on, got {value!r}.")
        checked[name] = int(value)
    for name, default in defaults.items():
        if name not in checked:
            same = checked[default] if isinstance(default, str) else default
            checked[name] = checked["kernel_size"] // 2 if same is None else same
    return checked


def dtype_of(text: str) -> tuple[str, str]:
    """'bf16' or 'bfloat16' -> ('bf16', 'bfloat16'). Raises UnknownNameError."""
    if text in DTYPES:
        return text, DTYPES[text]
    short = {full: name for name, full in DTYPES.items() if name != "tf32"}
    if text not in short:
        raise unknown_name("dtype", str(text), [*DTYPES, *short], listing="gpuwise.cost.kernel_sizes.DTYPES")
    return short[text], text
