"""The class of kernels of an operation, which is the key of its figures in calibration files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuwise.cost.kernels import attention, attention_decode, contraction, conv, cpu, gemm, pool, rows, streaming, systolic
from gpuwise.cost.kernels.alignment import unaligned
from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes
from gpuwise.trace.tables import KINDS, NO_LAYOUT, TURNED
from gpuwise.trace.trace import Trace

_TURNED_KINDS = (KINDS.index("elementwise"), KINDS.index("copy"))
CONTRACTIONS = ("gemm", "conv", "attention", "rnn")
TERMS: dict[str, Callable[[Shapes, Hardware], KernelTerms]] = {
    "gemm": gemm.terms,
    "conv": conv.terms,
    "rnn": contraction.terms,
    "attention": attention.terms,
    "attention_decode": attention_decode.terms,
    "attention_backward": attention.backward_terms,
    "attention_cudnn_backward": attention.backward_terms,
    "attention_efficient_backward": attention.backward_terms,
    "norm": rows.norm_terms,
    "softmax": rows.softmax_terms,
    "loss": rows.loss_terms,
    "pool": pool.terms,
}

# Names of operations that tell kernels of a kind apart.
FINER: dict[str, dict[str, tuple[str, ...]]] = {
    "copy": {"_cast": ("_to_copy",), "_cat": ("cat",)},
    "elementwise": {
        "_fused": ("fused",),
        "_activation_gelu": ("gelu",),
        "_activation": ("silu", "sigmoid", "mish", "tanh", "exp", "elu", "softplus", "log"),
        "_binary": ("add", "mul", "sub", "div"),
    },
    "reduction": {"_fused": ("fused",)},
    "loss": {"_nll": ("nll_loss",)},
    "pool": {"_max": ("max_pool", "adaptive_max_pool"), "_bilinear": ("upsample_bilinear2d",)},
}


def terms_of(kernel_class: str, shapes: Shapes, hardware: Hardware, family: str = "gpu") -> KernelTerms:
    """The terms of a class on a family of chips (gpuwise.cost.rates.family); kinds that only move bytes share theirs."""
    if family != "gpu":
        return {"cpu": cpu.terms, "systolic": systolic.terms}[family](kernel_class, shapes, hardware)
    terms = TERMS.get(kernel_class) or TERMS.get(kernel_class.split("_")[0], streaming.terms)
    return terms(shapes, hardware)


def classes(trace: Trace) -> dict[tuple[str, str], np.ndarray]:
    """Rows of the trace's distinct operations by (class, dtype); dtype is "" where only bytes matter.

    Classes are kinds of operation, told further apart where kernels differ: conv_depthwise (one input channel a group),
    conv_grouped, conv_channels_last, gemm_batched, gemm_unaligned (alignment.unaligned; on GPUs), norm_batch, norm_layer,
    norm_group, attention_efficient, attention_cudnn, attention_decode (few queries, in inference), pool_max, loss_nll,
    pool_bilinear, elementwise_fused and reduction_fused (chains that torch.compile made one kernel of), elementwise_binary,
    elementwise_activation (transcendental) and elementwise_activation_gelu, elementwise_norm (batch norm in inference
    knows its statistics), copy_cast (to another type) and copy_cat, apart from copies that change the order; with _turned
    where an operand is read across its rows (tables.TURNED), with _backward where they are one.
    """
    operations, strategy = trace.operations, trace.header.strategy
    last = _channels_last(trace)
    names, name = _numbered(operations.name)
    dtypes, dtype = _numbered(operations.dtype)
    batched, alone = operations.column("batch") > 1, operations.column("n") == 1
    decode = attention_decode.is_decode(operations.column("m"), operations.column("n")) & (strategy.mode == "infer")
    decode &= operations.kind == KINDS.index("attention")
    code = (((operations.kind.astype(np.int64) * len(names) + name) * len(dtypes) + dtype) * 2 + batched) * 2 + alone
    code = code * 2 + last
    odd = unaligned(trace)
    turned = (operations.channels_last == TURNED) & np.isin(operations.kind, _TURNED_KINDS)
    code = ((code * 2 + decode) * 2 + odd) * 2 + turned
    _, first, member, sizes = np.unique(code, return_index=True, return_inverse=True, return_counts=True)
    rows_of = np.split(np.argsort(member, kind="stable"), np.cumsum(sizes)[:-1])
    grouped: dict[tuple[str, str], list[np.ndarray]] = {}
    for row, members in zip(first.tolist(), rows_of, strict=True):
        kind = KINDS[operations.kind[row]]
        key = class_of(
            kind,
            operations.name[row],
            batched=bool(batched[row]),
            depthwise=bool(alone[row]),
            infer=strategy.mode == "infer",
            channels_last=bool(last[row]),
            decode=bool(decode[row]),
            odd=bool(odd[row]) and trace.header.target != "cpu",
            turned=bool(turned[row]),
        )
        grouped.setdefault((key, operations.dtype[row] if kind in CONTRACTIONS else ""), []).append(members)
    return {key: np.sort(np.concatenate(parts)) for key, parts in grouped.items()}


@lru_cache(maxsize=4096)
def class_of(
    kind: str,
    name: str = "",
    *,
    batched: bool = False,
    depthwise: bool = False,
    infer: bool = False,
    channels_last: bool = False,
    decode: bool = False,
    odd: bool = False,
    turned: bool = False,
) -> str:
    """The class of an operation (classes()). batched: several products, or groups of a convolution; depthwise: of one output
    each; decode: attention of few queries; odd: a product of matrices with odd rows (alignment.unaligned); turned: see
    tables.TURNED."""
    key = kind
    if kind == "conv":
        key += "" if not batched else "_depthwise" if depthwise else "_grouped"
        key += "_channels_last" if channels_last else ""
    elif kind == "gemm":
        key += "_batched" if batched else "_unaligned" if odd else ""
    elif kind == "norm":
        key = _norm(name, infer=infer)
    elif kind == "attention":
        key += "_decode" if decode else "_efficient" if "efficient" in name else "_cudnn" if "cudnn" in name else ""
    if kind in FINER:
        key += next((suffix for suffix, names in FINER[kind].items() if _short(name).startswith(names)), "")
    key += "_turned" if turned else ""
    return key + "_backward" if "backward" in name and not key.startswith("elementwise") else key


def _short(name: str) -> str:
    """aten.gelu_backward.default -> gelu_backward."""
    return name.removeprefix("aten.")


def _channels_last(trace: Trace) -> np.ndarray:
    """Which convolutions compute in channels-last: those whose tensors lie so. torch.compile gives all of them such operands
    (GraphLowering.decide_layout_opt, all but rare shapes on GPUs). Shape (operations,)."""
    operations, strategy = trace.operations, trace.header.strategy
    if strategy.compile:
        return operations.kind == KINDS.index("conv")
    recorded = operations.channels_last
    assumed = (recorded == NO_LAYOUT) & (operations.kind == KINDS.index("conv"))
    if assumed.any():  # a recording of a release that did not see layouts
        assumed &= strategy.channels_last or _runs_channels_last(trace)
    return assumed | (recorded == 1)


def _runs_channels_last(trace: Trace) -> bool:
    """Whether most half-precision convolutions of images make no copies for tensor cores, because their operands are
    channels-last: models that permute to it for their products stay there."""
    operations = trace.operations
    images = trace.header.sizes.get("micro_batch", 1)
    dense = (operations.kind == KINDS.index("conv")) & (operations.column("batch") <= 1)
    dense &= operations.column("m") > 16 * images  # on one position nothing is to be copied
    dense &= np.isin(operations.dtype, ("float16", "bfloat16"))
    return bool(dense.any()) and bool(np.mean(operations.column("workspace_bytes")[dense] == 0) > 0.5)


def _numbered(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The distinct texts, and which of them each is."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return list(numbers), np.fromiter(map(numbers.__getitem__, texts), dtype=np.int64, count=len(texts))


@dataclass(frozen=True)
class Group:
    """The operations of a trace that one entry prices: what of them does not depend on the chip. rows: their indices."""

    kernel_class: str
    dtype: str
    rows: np.ndarray
    shapes: Shapes
    model_flops: np.ndarray


def groups(trace: Trace) -> tuple[Group, ...]:
    """The trace's classes with their shapes, made once a trace: a search prices it on many chips."""
    return trace.once("kernel groups", lambda: _groups(trace))


def _groups(trace: Trace) -> tuple[Group, ...]:
    model_flops = trace.operations.model_flops
    shapes = Shapes.of(trace.operations, images=trace.header.sizes.get("micro_batch", 1))
    return tuple(
        Group(kernel_class, dtype, rows, shapes.take(rows), model_flops[rows])
        for (kernel_class, dtype), rows in classes(trace).items()
    )


def _norm(name: str, *, infer: bool) -> str:
    if "batch_norm" in name:
        return "elementwise_norm" if infer else "norm_batch"
    return "norm_group" if "group_norm" in name else "norm_layer"
