"""Optimizers that look at a parameter's shape: Adafactor and Muon.

Written down from torch/optim/_adafactor.py and torch/optim/_muon.py of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gpuwise.trace.update.rows import Parameter, Temporary, UpdateRows, launches_of_many

NEWTON_SCHULZ_STEPS = 5  # torch/optim/_muon.py: DEFAULT_NS_STEPS


def adafactor(update: UpdateRows, p: Parameter) -> None:
    size, one, dtype = p.size_bytes, p.element_bytes, p.dtype
    norm = "aten.linalg_vector_norm.default"
    if update.on_host:
        update.run("aten.add_.Tensor", "float32", 4, 4)
    update.drop(update.run(norm, dtype, size, one, kind="reduction", new=[one]))
    if len(p.shape) > 1:
        rows, columns = factors(p)
        for name, factor in (("row_mean", rows), ("column_mean", columns)):
            mean = update.run(norm, dtype, size, factor, kind="reduction", new=[factor])
            update.run("aten.pow_.Scalar", dtype, factor, factor)
            update.run("aten.div_.Tensor", dtype, factor, factor)
            update.hold(name, mean)
            update.run("aten.lerp_.Scalar", dtype, 2 * factor, factor)
        estimate = _outer(update, p)
        update.hold("estimate", estimate)
        smallest = rows // p.shape[-2]
        mean = update.run("aten.mean.dim", dtype, rows, smallest, kind="reduction", new=[smallest])
        update.run("aten.clamp_.default", dtype, smallest, smallest)
        update.run("aten.div_.Tensor", dtype, size + smallest, size)
        update.drop(mean)
    else:
        squared = update.run("aten.mul.Tensor", dtype, size, size, new=[size])
        update.hold("squared", squared)
        update.run("aten.lerp_.Scalar", dtype, 2 * size, size)
        estimate = update.run("aten.clone.default", dtype, size, size, kind="copy", new=[size])
        update.hold("estimate", estimate)
    update.run("aten.clamp_.default", dtype, size, size)
    update.run("aten.rsqrt_.default", dtype, size, size)
    update.hold("update", estimate)
    update.run("aten.mul_.Tensor", dtype, 2 * size, size)
    update.drop(update.run(norm, dtype, size, one, kind="reduction", new=[one]))
    update.run("aten.add_.Tensor", dtype, 2 * size, size)


def factors(p: Parameter) -> tuple[int, int]:
    """Bytes of the row and of the column factor."""
    batch, (rows, columns) = prod(p.shape[:-2]), p.shape[-2:]
    return batch * rows * p.element_bytes, batch * columns * p.element_bytes


def _outer(update: UpdateRows, p: Parameter) -> list[Temporary]:
    """The variance estimated from both factors, as large as the parameter."""
    name = "aten.mm.default" if len(p.shape) == 2 else "aten.bmm.default"
    return update.run(
        name, p.dtype, sum(factors(p)), p.size_bytes, dims=(prod(p.shape[:-2]), p.shape[-2], p.shape[-1], 1), new=[p.size_bytes]
    )


def adafactor_foreach(update: UpdateRows, parameters: Sequence[Parameter]) -> None:
    for group in ([p for p in parameters if len(p.shape) > 1], [p for p in parameters if len(p.shape) <= 1]):
        if group:
            _adafactor_group(update, group)


def _adafactor_group(update: UpdateRows, group: Sequence[Parameter]) -> None:
    dtype, norm = group[0].dtype, "aten.linalg_vector_norm.default"

    def all_of(name: str, sizes: Sequence[int], *, read: int = 1, more_read: int = 0) -> None:
        element = group[0].element_bytes
        update.run(
            name,
            dtype,
            read * sum(sizes) + more_read,
            sum(sizes),
            kind="optimizer",
            kernels=launches_of_many([size // element for size in sizes]),
        )

    def each(name: str, sizes: Sequence[int], read: Sequence[int], kind: str = "reduction") -> list[Temporary]:
        return [t for n, r in zip(sizes, read, strict=True) for t in update.run(name, dtype, r, n, kind=kind, new=[n])]

    sizes, ones = [p.size_bytes for p in group], [p.element_bytes for p in group]
    if update.on_host:
        update.run("aten._foreach_add_.Tensor", "float32", 4 * len(group), 4 * len(group), kind="optimizer")
    for p in group:
        update.drop(update.run(norm, dtype, p.size_bytes, p.element_bytes, kind="reduction", new=[p.element_bytes]))
    if len(group[0].shape) > 1:
        for factor in ([factors(p)[0] for p in group], [factors(p)[1] for p in group]):
            means = each(norm, factor, sizes)
            all_of("aten._foreach_mul_.List", factor)
            all_of("aten._foreach_div_.ScalarList", factor)
            all_of("aten._foreach_lerp_.ScalarList", factor, read=2)
            update.drop(means)
        estimates = [t for p in group for t in _outer(update, p)]
        update.hold("estimates", estimates)
        smallest = [factors(p)[0] // p.shape[-2] for p in group]
        means = each("aten.mean.dim", smallest, [factors(p)[0] for p in group])
        all_of("aten._foreach_clamp_min_.Scalar", smallest)
        all_of("aten._foreach_div_.List", sizes, more_read=sum(smallest))
        update.drop(means)
    else:
        squared = update.many("aten._foreach_mul.List", group, 1, new=True)
        all_of("aten._foreach_lerp_.ScalarList", sizes, read=2)
        update.drop(squared)
        estimates = each("aten.clone.default", sizes, sizes, "copy")
        update.hold("estimates", estimates)
    all_of("aten._foreach_clamp_min_.Scalar", sizes)
    all_of("aten._foreach_rsqrt_.default", sizes)
    all_of("aten._foreach_mul_.List", sizes, read=2)
    update.hold("updates", estimates)
    for p, one in zip(group, ones, strict=True):
        update.drop(update.run(norm, dtype, p.size_bytes, one, kind="reduction", new=[one]))
    all_of("aten._foreach_mul_.ScalarList", sizes)
    all_of("aten._foreach_add_.List", sizes, read=2)


def muon(update: UpdateRows, parameters: Sequence[Parameter]) -> None:
    """Orthogonalises the momentum of each matrix in bf16 by Newton-Schulz iterations."""
    half = 2
    for p in parameters:
        size, elements = p.size_bytes, p.elements
        short, long = sorted(p.shape)
        square, whole = short * short * half, elements * half
        update.run("aten.lerp_.Scalar", p.dtype, 2 * size, size)
        update.hold("update", momentum := update.run("aten.lerp.Scalar", p.dtype, 2 * size, size, new=[size]))
        matrix = momentum
        if p.element_bytes != half:
            matrix = update.run("aten._to_copy.default", p.dtype, size, whole, kind="copy", new=[whole])
        update.hold("matrix", matrix)
        norm = update.run("aten.linalg_vector_norm.default", "bfloat16", whole, half, kind="reduction", new=[half])
        bound = update.run("aten.clamp.default", "bfloat16", half, half, new=[half])
        update.drop(norm)
        update.run("aten.div_.Tensor", "bfloat16", whole + half, whole)
        update.drop(bound)
        for _ in range(NEWTON_SCHULZ_STEPS):
            gram = update.run("aten.mm.default", "bfloat16", whole, square, dims=(1, short, short, long), new=[square])
            update.hold("gram", gram)
            gram = update.run("aten.addmm.default", "bfloat16", square, square, dims=(1, short, short, short), new=[square])
            update.hold("gram_update", gram)
            matrix = update.run(
                "aten.addmm.default", "bfloat16", square + whole, whole, dims=(1, short, long, short), new=[whole]
            )
            update.hold("matrix", matrix)
        update.hold("update", matrix)
        for name in ("gram", "gram_update", "matrix"):  # locals of the function that iterates
            update.hold(name, [])
        update.run("aten.mul_.Tensor", p.dtype, size, size)
        update.run("aten.add_.Tensor", p.dtype, size + whole, size)
