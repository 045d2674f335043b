"""Matrix products and attention: the cases that the sweep of `kernels` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch.nn import functional as F

from gpuwise.measure.probes.cases import Case, Noise, ProbeKernel, agree, backward_of, positions, work_of

# m, k, n, the most telling first. The first side grows on devices that need more: tokens of a transformer, columns of a weight
# for one row, or the depth.
_GEMMS = (
    ("m", 512, 768, 3072),  # tokens by the layers of GPT-2
    ("n", 1, 4096, 4096),  # one token by a layer of an 8 B model: its weight is read for one row
    ("m", 512, 4096, 4096),
    ("k", 256, 16384, 256),  # deep: the gradient of a weight over many tokens
    ("n", 8, 4096, 4096),
    ("n", 64, 4096, 4096),
    ("m", 128, 3072, 768),
    ("m", 1021, 769, 1531),  # odd: no side falls on a vector or a tile
    ("m", 2048, 768, 768),
    ("m", 128, 4096, 4096),
    ("k", 64, 65536, 64),
    ("m", 333, 777, 111),
    ("m", 2048, 4096, 4096),
)
# batch, m, k, n: the scores and the values of attention with heads of 64.
_BATCHED = ((48, 512, 64, 512), (48, 512, 512, 64), (192, 128, 64, 128))
# The second or the first factor transposed: a linear layer's forward pass, and the gradient of its weight.
_TURNED = {"product with a transposed weight": "b", "product with a transposed input": "a"}
_TOKENS, _HEADS = 2048, 4  # of a batch, over all its sequences
_ROWS = 64
_PICKED = 8


def gemms(dtypes: Sequence[str]) -> Iterator[Case]:
    """Cases of group "gemm", named as in gpuwise.measure.probes.peaks where they are plain products."""
    plain = [("product", "", grows, {"m": m, "k": k, "n": n}) for grows, m, k, n in _GEMMS]
    turned = [(name, side, "m", {"m": 512, "k": 768, "n": 3072}) for name, side in _TURNED.items()]
    batched = [("batched product", "", "batch", {"m": m, "k": k, "n": n, "batch": batch}) for batch, m, k, n in _BATCHED]
    vector = ("matrix-vector product", "", "m", {"m": 4096, "k": 4096, "n": 1})
    ordered = (*plain[:2], batched[0], *plain[2:4], *turned, vector, *plain[4:8], *batched[1:], *plain[8:])
    for name, side, grows, sizes in ordered:
        for dtype in dtypes:
            yield Case("gemm", name, dtype, sizes, grows, work_of("gemm", dtype), partial(_product, dtype, side))


def attentions(dtypes: Sequence[str]) -> Iterator[Case]:
    """Cases of group "attention": scaled_dot_product_attention, causal and not, forward and backward."""
    first = [(512, 64, 1, False), (512, 64, 1, True), (2048, 128, 0, False), (128, 64, 0, False)]
    others = [
        (tokens, size, causal, backward)
        for tokens in (512, 2048, 128)
        for size in (64, 128)
        for causal in (1, 0)
        for backward in (False, True)
    ]
    for tokens, size, causal, backward in dict.fromkeys((*first, *others)):
        sizes = {"batch": _TOKENS // tokens, "heads": _HEADS, "queries": tokens, "head_size": size, "causal": causal}
        name, kind = ("attention, backward", "attention_backward") if backward else ("attention", "attention")
        for dtype in dtypes:
            yield Case("attention", name, dtype, sizes, "batch", work_of(kind, dtype), partial(_attention, dtype, backward))


def _product(dtype: str, turned: str, noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
    """turned: the factor, a or b, that is stored transposed."""
    batch, m, k, n = sizes.get("batch", 1), sizes["m"], sizes["k"], sizes["n"]
    a = noise(batch, *((k, m) if turned == "a" else (m, k)), dtype=dtype)
    b = noise(batch, *((n, k) if turned == "b" else (k, n)), dtype=dtype)
    a, b = a.mT if turned == "a" else a, b.mT if turned == "b" else b
    out = torch.zeros(batch, m, n, dtype=a.dtype, device=a.device)

    def correct() -> bool:
        out.zero_()  # nothing right stands there by chance
        run()
        few, rows, columns = (positions(size, out.device, _PICKED) for size in (batch, m, n))
        exact = a[few][:, rows].double() @ b[few][:, :, columns].double()
        return agree(out[few][:, rows][:, :, columns], exact, dtype)

    if "batch" in sizes:
        run = partial(torch.bmm, a, b, out=out)
    elif n == 1:
        run = partial(torch.mv, a[0], b[0, :, 0], out=out[0, :, 0])
    else:
        run = partial(torch.mm, a[0], b[0], out=out[0])
    return ProbeKernel(run, correct)


def _attention(dtype: str, backward: bool, noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
    shape = sizes["batch"], sizes["heads"], sizes["queries"], sizes["head_size"]
    causal, (q, k, v) = bool(sizes["causal"]), (noise(*shape, dtype=dtype, grad=backward) for _ in range(3))
    forward = partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal)
    rows = positions(sizes["queries"], noise.device, _ROWS)

    def forward_correct() -> bool:
        exact = _attended([t[-1, -1].double() for t in (q, k, v)], rows, causal)
        return agree(forward()[-1, -1][rows], exact, dtype)

    if not backward:
        return ProbeKernel(forward, forward_correct)
    grad = noise(*shape, dtype=dtype)
    run = backward_of(forward(), (q, k, v), grad)

    def correct() -> bool:
        head = [t[-1, -1].detach().double().requires_grad_() for t in (q, k, v)]
        every = torch.arange(sizes["queries"], device=noise.device)
        exact = torch.autograd.grad(_attended(head, every, causal), head, grad[-1, -1].double())
        return all(agree(found[-1, -1], one, dtype) for found, one in zip(run(), exact, strict=True))

    return ProbeKernel(run, correct)


def _attended(head: Sequence[torch.Tensor], rows: torch.Tensor, causal: bool) -> torch.Tensor:
    """Attention of some queries of one head (its queries, keys and values), as the formula has it."""
    q, k, v = head
    scores = q[rows] @ k.mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.arange(len(k), device=k.device) > rows[:, None], -torch.inf)
    return torch.softmax(scores, dim=-1) @ v
