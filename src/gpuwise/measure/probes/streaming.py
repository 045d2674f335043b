"""Elementwise operations, reductions, norms and optimizer steps: the cases that the sweep of `kernels` takes. Memory bounds
all of them; operations are counted from their formulas, a function as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch.nn import functional as F

from gpuwise.measure.probes.cases import ALLOWED, Case, Make, Noise, ProbeKernel, agree, backward_of, positions
from gpuwise.measure.probes.peaks import DTYPES

_ELEMENTS = {"elements": 2**22}
_MATRIX = {"rows": 1024, "columns": 4096}
_WORDS = {"rows": 128, "columns": 32_000}  # the vocabulary of Llama 2
_HIDDEN = {"rows": 4096, "columns": 1024}
_IMAGES = {"batch": 16, "channels": 64, "height": 56, "width": 56}
_PARAMETERS, _TENSORS = 10_000_000, 40
_LR, _BETAS, _EPS, _DECAY = 1e-3, (0.9, 0.999), 1e-8, 1e-2
_EPS_NORM = 1e-5
_PICKED, _MANY = 8, 1024


_Operands = Callable[[Noise, torch.Tensor, str], list[torch.Tensor]]


@dataclass(frozen=True)
class _Function:
    """A function whose slices along dimension `along` are independent of each other.

    run: PyTorch's, of the input and `operands`, vectors as long as its dimension `over`; formula: the same written out.
    flops: of an element, forward and backward. narrow: whether there is one number of the result a row.
    """

    run: Callable[..., torch.Tensor]
    formula: Callable[..., torch.Tensor]
    sizes: Mapping[str, int]
    flops: tuple[int, int]
    operands: _Operands = lambda noise, x, dtype: []
    along: int = 0
    over: int = 1
    narrow: bool = False


def _weights(count: int) -> _Operands:
    """A weight, or a weight and a bias, of the columns or channels of x."""
    return lambda noise, x, dtype: [noise(x.shape[1], dtype=dtype, grad=x.requires_grad) for _ in range(count)]


def _labels(noise: Noise, x: torch.Tensor, dtype: str) -> list[torch.Tensor]:
    """A word of each row."""
    return [torch.arange(len(x), device=x.device) * 7919 % x.shape[1]]


def _normalised(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred / (centred.square().mean(dims, keepdim=True) + _EPS_NORM).sqrt()


_GELU = _Function(F.gelu, lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)), _ELEMENTS, (5, 10))
_SOFTMAX = _Function(partial(torch.softmax, dim=-1), lambda x: x.exp() / x.exp().sum(-1, keepdim=True), _MATRIX, (5, 4))
_CROSS_ENTROPY = _Function(  # a number a row, not their mean, so that each can be checked by itself
    partial(F.cross_entropy, reduction="none"),
    lambda x, label: x.exp().sum(-1).log() - x.gather(1, label[:, None])[:, 0],
    _WORDS,
    (4, 3),
    _labels,
    over=0,
    narrow=True,
)
_LAYER_NORM = _Function(
    lambda x, w, b: F.layer_norm(x, w.shape, w, b, eps=_EPS_NORM),
    lambda x, w, b: _normalised(x, (-1,)) * w + b,
    _HIDDEN,
    (7, 13),
    _weights(2),
)
_RMS_NORM = _Function(
    lambda x, w: F.rms_norm(x, w.shape, w, eps=_EPS_NORM),
    lambda x, w: x / (x.square().mean(-1, keepdim=True) + _EPS_NORM).sqrt() * w,
    _HIDDEN,
    (4, 10),
    _weights(1),
)
_BATCH_NORM = _Function(
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True, eps=_EPS_NORM),
    lambda x, w, b: _normalised(x, (0, 2, 3)) * w[:, None, None] + b[:, None, None],
    _IMAGES,
    (7, 13),
    _weights(2),
    along=1,
)


def elementwise(dtypes: Sequence[str]) -> Iterator[Case]:
    """Cases of group "elementwise"."""
    for dtype in dtypes:
        width = DTYPES[dtype].itemsize
        yield _case("elementwise", "sum of two tensors", dtype, _ELEMENTS, 1, 3 * width, partial(_sum_of_two, dtype))
    for dtype in dtypes:
        yield from _both("elementwise", "GELU", _GELU, dtype)
    for dtype in dtypes:
        other = next((name for name in dtypes if name != dtype), "bf16")
        width = DTYPES[dtype].itemsize + DTYPES[other].itemsize
        yield _case("elementwise", f"copy to {other}", dtype, _ELEMENTS, 0, width, partial(_copy, dtype, other))


def reductions(dtypes: Sequence[str]) -> Iterator[Case]:
    """Cases of group "reduction"."""
    for name, function in (("softmax", _SOFTMAX), ("cross entropy", _CROSS_ENTROPY)):
        for dtype in dtypes:
            yield from _both("reduction", name, function, dtype)
    for name, dim in (("sum of each row", 1), ("sum of each column", 0)):
        for dtype in dtypes:
            yield _case("reduction", name, dtype, _MATRIX, 1, DTYPES[dtype].itemsize, partial(_sum, dim, dtype))


def norms(dtypes: Sequence[str]) -> Iterator[Case]:
    """Cases of group "norm"."""
    for name, function in (("layer norm", _LAYER_NORM), ("batch norm", _BATCH_NORM), ("RMS norm", _RMS_NORM)):
        for dtype in dtypes:
            yield from _both("norm", name, function, dtype)


def optimizers() -> Iterator[Case]:
    """Cases of group "optimizer": a step reads parameter, gradient and both moments, and writes all but the gradient."""
    sizes = {"parameters": _PARAMETERS, "tensors": _TENSORS}
    for name, fused in (("AdamW, fused", True), ("AdamW, tensor by tensor", False)):
        yield Case(
            "optimizer",
            name,
            "fp32",
            sizes,
            "parameters",
            lambda s: (14 * s["parameters"], 28 * s["parameters"]),
            partial(_adamw, fused),
        )


def _case(group: str, name: str, dtype: str, sizes: Mapping[str, int], flops: int, moved: int, make: Make) -> Case:
    """flops, moved: operations and bytes of an element."""

    def work(sizes: Mapping[str, int]) -> tuple[int, int]:
        elements = prod(sizes.values())
        return flops * elements, moved * elements

    return Case(group, name, dtype, sizes, next(iter(sizes)), work, make)


def _both(group: str, name: str, function: _Function, dtype: str) -> Iterator[Case]:
    """Forward: input and result; backward: input, gradient of the result and that of the input. Vectors hardly count."""
    width, wide = DTYPES[dtype].itemsize, 0 if function.narrow else 1
    for backward, tensors in ((False, 1 + wide), (True, 2 + wide)):
        yield _case(
            group,
            f"{name}, backward" if backward else name,
            dtype,
            function.sizes,
            function.flops[backward],
            tensors * width,
            partial(_applied, function, backward, dtype),
        )


def _applied(function: _Function, backward: bool, dtype: str, noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
    x = noise(*sizes.values(), dtype=dtype, grad=backward)
    operands = function.operands(noise, x, dtype)
    picked = positions(x.shape[function.along], noise.device, _PICKED)
    forward = partial(function.run, x, *operands)

    def exact() -> tuple[torch.Tensor, torch.Tensor]:
        """The picked part of the input and of the result, in double precision."""
        part = x.detach().index_select(function.along, picked).double().requires_grad_(backward)
        vectors = [operand.detach()[picked] if function.along == function.over else operand.detach() for operand in operands]
        return part, function.formula(part, *(vector.double() if vector.is_floating_point() else vector for vector in vectors))

    if not backward:
        return ProbeKernel(forward, lambda: agree(forward().index_select(function.along, picked), exact()[1], dtype))
    out = forward()
    grad = noise(*out.shape, dtype=dtype)
    run = backward_of(out, [x, *(operand for operand in operands if operand.requires_grad)], grad)

    def correct() -> bool:
        part, result = exact()
        (found,) = torch.autograd.grad(result, part, grad.index_select(function.along, picked).double())
        return agree(run()[0].index_select(function.along, picked), found, dtype)

    return ProbeKernel(run, correct)


def _sum_of_two(dtype: str, noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
    a, b = (noise(sizes["elements"], dtype=dtype) for _ in range(2))
    out = torch.zeros_like(a)
    run = partial(torch.add, a, b, out=out)
    few = positions(len(a), noise.device, _MANY)
    return ProbeKernel(run, lambda: agree(run()[few], a[few].double() + b[few].double(), dtype))


def _copy(dtype: str, other: str, noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
    source = noise(sizes["elements"], dtype=dtype)
    target = torch.zeros(len(source), dtype=DTYPES[other], device=noise.device)
    few = positions(len(source), noise.device, _MANY)
    rough = max(dtype, other, key=lambda name: ALLOWED[name])
    return ProbeKernel(partial(target.copy_, source), lambda: agree(target.copy_(source)[few], source[few].double(), rough))


def _sum(dim: int, dtype: str, noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
    x = noise(sizes["rows"], sizes["columns"], dtype=dtype)
    out = torch.zeros(x.shape[1 - dim], dtype=x.dtype, device=x.device)
    few, run = positions(len(out), noise.device, _PICKED), partial(torch.sum, x, dim=dim, out=out)
    return ProbeKernel(run, lambda: agree(run()[few], x.index_select(1 - dim, few).double().sum(dim), dtype))


def _adamw(fused: bool, noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
    tensors = [noise(sizes["parameters"] // sizes["tensors"], grad=True) for _ in range(sizes["tensors"])]
    for tensor in tensors:
        tensor.grad = noise(len(tensor))
    optimizer = torch.optim.AdamW(tensors, lr=_LR, betas=_BETAS, eps=_EPS, weight_decay=_DECAY, foreach=False, fused=fused)
    few = positions(len(tensors[-1]), noise.device, _MANY)

    def looked_at() -> list[torch.Tensor]:
        """Some numbers of the last tensor: parameters and both moments, before a step or after it."""
        state = optimizer.state[tensors[-1]]
        return [t.detach()[few].double() for t in (tensors[-1], state["exp_avg"], state["exp_avg_sq"])]

    def correct() -> bool:
        if not optimizer.state:
            optimizer.step()  # makes the moments
        (p, m, v), t = looked_at(), int(optimizer.state[tensors[-1]]["step"]) + 1
        optimizer.step()
        g = optimizer.param_groups[0]["params"][-1].grad[few].double()
        exact_m, exact_v = _BETAS[0] * m + (1 - _BETAS[0]) * g, _BETAS[1] * v + (1 - _BETAS[1]) * g.square()
        step = exact_m / (1 - _BETAS[0] ** t) / ((exact_v / (1 - _BETAS[1] ** t)).sqrt() + _EPS)
        found_p, found_m, found_v = looked_at()
        # A parameter loses digits that its change would show: its rounding is 1e-4 of that.
        return (
            agree(found_m, exact_m, "fp32")
            and agree(found_v, exact_v, "fp32")
            and agree(found_p - p, -_LR * (_DECAY * p + step), "tf32")
        )

    return ProbeKernel(optimizer.step, correct)
