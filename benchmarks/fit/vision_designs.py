"""What whole steps of vision models determine, and within which bounds: the designs of piece `vision`."""

from __future__ import annotations

from gpuwise.measure.fitting.design import CurveDesign, Design, TermDesign


def _powers(low: int, high: int, step: int = 2) -> tuple[float, ...]:
    return tuple(2.0**i for i in range(low, high + 1, step))


FLOOR_S = (1e-6, 6e-6)
_REUSE = (0.25, 1.0, 2.25, 9.0, 25.0, 49.0)
_CACHED = CurveDesign("cached", (0.125, 0.5, 1.0, 2.0, 4.0, 8.0), (-0.1, 0.6))


def _moves(least: float = 1.0, most: float = 3.0, *, length: bool = False) -> Design:
    """Kernels that move bytes."""
    curves = (_CACHED, CurveDesign("unit_bytes", _powers(12, 22), (-0.4, 0.02)))
    if length:
        curves += (CurveDesign("length", _powers(5, 13), (-0.3, 0.3)),)
    return Design({"memory": TermDesign((least, most), curves)}, (4.0, 4.0), FLOOR_S)


# Between the layouts of PyTorch and of tensor cores lie copies, which come on top: sharpness from 1, which adds terms up.
CONV = Design(
    {
        "compute": TermDesign(
            (0.8, 6.0),
            (
                CurveDesign("k", _powers(3, 13), (-0.6, 0.4)),
                CurveDesign("n", _powers(2, 11, 3), (-0.6, 0.4)),
                CurveDesign("reuse", _REUSE, (-0.4, 0.4)),
                CurveDesign("waves", _powers(-4, 8, 3), (-0.4, 0.2)),
            ),
        ),
        "memory": TermDesign(
            (0.8, 6.0),
            (
                CurveDesign("reuse", _REUSE, (-0.4, 0.4)),
                CurveDesign("n", _powers(2, 11, 3), (-0.5, 0.5)),
                CurveDesign("k", _powers(3, 13), (-0.5, 0.5)),
            ),
        ),
    },
    (1.0, 8.0),
    FLOOR_S,
)
GROUPED = Design(
    {
        "compute": TermDesign(
            (0.8, 30.0),
            (
                CurveDesign("k", _powers(3, 13), (-0.6, 0.4)),
                CurveDesign("n", _powers(0, 10), (-0.8, 0.4)),
                CurveDesign("reuse", _REUSE, (-0.4, 0.4)),
            ),
        ),
        "memory": TermDesign((0.8, 8.0), (CurveDesign("n", _powers(0, 10), (-0.5, 0.5)),)),
    },
    (1.0, 8.0),
    FLOOR_S,
)
# Backward in channels-last: on the vector units unless the groups fill the tiles of tensor cores.
GROUPED_LAST_BACKWARD = Design(
    {
        "compute": TermDesign((0.8, 30.0)),
        "direct": TermDesign((0.2, 60.0), (CurveDesign("n", _powers(2, 8), (-1.5, 0.6)),)),
        "memory": TermDesign((0.8, 20.0)),
    },
    (1.0, 8.0),
    FLOOR_S,
)
_TAPS = (4.0, 9.0, 25.0, 49.0, 121.0, 961.0)
DEPTHWISE = Design(
    {
        "direct": TermDesign((0.2, 60.0), (CurveDesign("k", _TAPS, (-0.8, 0.5)), CurveDesign("reuse", _REUSE, (-0.4, 0.4)))),
        "memory": TermDesign((1.0, 4.0)),
        "library": TermDesign(
            (0.5, 20.0), (CurveDesign("k", (9.0, 25.0), (-0.2, 1.0)), CurveDesign("reuse", _REUSE, (-0.4, 0.4)), _CACHED)
        ),
    },
    (1.0, 8.0),
    FLOOR_S,
)
# Channels-last ones all run in cuDNN; so do backward ones by bytes and multiplications of either way.
# cuDNN's kernels for the filters of usual networks end at 7×7: those of 9×9 take many times as long.
_OTHER_TAPS = (4.0, 9.0, 25.0, 49.0, 81.0, 121.0, 961.0)
DEPTHWISE_OTHER = Design(
    {
        "compute": TermDesign((0.8, 100.0), (CurveDesign("k", _OTHER_TAPS, (-0.8, 4.0)),)),
        "memory": TermDesign(
            (1.0, 20.0), (CurveDesign("k", _OTHER_TAPS, (-0.4, 0.8)), CurveDesign("reuse", _REUSE, (-0.4, 0.4)))
        ),
    },
    (1.0, 8.0),
    FLOOR_S,
)
# Hardly a product of these steps is bounded by memory, so that its term takes what they miss elsewhere (2.2 on an RTX 3090),
# and products of one token are bounded by nothing else: within 15 % of what tables of kernels give for large operands.
PRODUCT_MEMORY = (0.96, 1.3)


def _product(memory: tuple[float, float]) -> Design:
    compute = CurveDesign("k", _powers(4, 12), (-0.6, 0.1)), CurveDesign("waves", _powers(-4, 8, 3), (-0.4, 0.2))
    return Design({"compute": TermDesign((0.8, 4.0), compute), "memory": TermDesign(memory)}, (1.0, 8.0), FLOOR_S)


PRODUCTS = {"gemm": _product(PRODUCT_MEMORY), "gemm_batched": _product((0.9, 5.0)), "gemm_unaligned": _product((0.9, 5.0))}
ATTENTION = Design(
    {
        "compute": TermDesign(
            (0.9, 8.0), (CurveDesign("keys", _powers(4, 13), (-0.7, 0.1)), CurveDesign("head", _powers(4, 8, 1), (-0.6, 0.4)))
        ),
        "memory_queries": TermDesign((0.9, 8.0)),
        "memory_keys": TermDesign((0.9, 8.0)),
    },
    (1.0, 8.0),
    FLOOR_S,
)
ATTENTION_BACKWARD = Design(
    {"compute": TermDesign((0.9, 12.0), (CurveDesign("keys", _powers(4, 13), (-0.7, 0.1)),)), "memory": TermDesign((0.9, 5.0))},
    (1.0, 8.0),
    FLOOR_S,
)

POOL = Design(
    {
        "memory": TermDesign((1.0, 8.0), (_CACHED, CurveDesign("unit_bytes", _powers(12, 22), (-0.4, 0.02)))),
        "windows": TermDesign((0.1, 4.0)),
    },
    (1.0, 8.0),
    FLOOR_S,
)
# A block of threads takes a row: of short rows most of it rests.
NORM_LAYER = Design(
    {
        "memory": TermDesign((1.0, 3.0), (_CACHED, CurveDesign("unit_bytes", _powers(12, 22), (-0.4, 0.02)))),
        "rows": TermDesign((0.01, 4.0)),
    },
    (1.0, 4.0),
    FLOOR_S,
)
TURNED = ("elementwise", "elementwise_binary", "elementwise_activation", "copy", "copy_cast")

MOVES = {
    "elementwise": _moves(most=2.0),
    "elementwise_binary": _moves(most=2.0),
    "elementwise_activation": _moves(most=2.0),
    "elementwise_norm": _moves(most=2.0),
    "elementwise_fused": _moves(most=4.0),
    "reduction_fused": _moves(most=6.0),
    "copy": _moves(most=6.0),
    "copy_cast": _moves(most=2.0),
    "copy_cat": _moves(most=3.0),
    **{f"{kind}_turned": _moves(most=6.0) for kind in TURNED},
    "reduction": _moves(most=4.0),
    "norm_batch": _moves(most=4.0),
    "norm_batch_backward": _moves(most=6.0),
    "norm_layer": NORM_LAYER,
    "norm_layer_backward": _moves(most=6.0),
    "norm_group": _moves(0.4, 4.0, length=True),
    "norm_group_backward": _moves(0.4, 6.0),
    "softmax": _moves(most=4.0),
    "softmax_backward": _moves(most=4.0),
    "pool": POOL,
    "pool_backward": POOL,
    "pool_bilinear": Design({"memory": TermDesign((1.0, 8.0)), "loop": TermDesign((0.3, 4.0))}, (1.0, 8.0), FLOOR_S),
    "embedding": _moves(most=8.0),
    "random": _moves(most=4.0),
}


def designs(keys: object, numerics: tuple[str, ...] = ("fp16", "bf16")) -> dict[str, Design]:
    """Of the classes among `keys` (`conv.fp16`, `elementwise`) that vision models determine."""
    results = dict(MOVES)
    for figure in numerics:
        for layout in ("", "_channels_last"):
            for back in ("", "_backward"):
                other = bool(layout or back)
                results[f"conv{layout}{back}.{figure}"] = CONV
                results[f"conv_grouped{layout}{back}.{figure}"] = GROUPED_LAST_BACKWARD if layout and back else GROUPED
                results[f"conv_depthwise{layout}{back}.{figure}"] = DEPTHWISE_OTHER if other else DEPTHWISE
        results |= {f"{kind}.{figure}": design for kind, design in PRODUCTS.items()}
        for kind in ("attention", "attention_efficient"):
            results |= {f"{kind}.{figure}": ATTENTION, f"{kind}_backward.{figure}": ATTENTION_BACKWARD}
    return {key: results[key] for key in keys if key in results}  # type: ignore[attr-defined]
