"""Forms of the entries that a measurement of one machine fits: those of gpuwise.cost.kernels.cpu with wide bounds, as
operations that were watched one by one determine each class by itself."""

from __future__ import annotations

from gpuwise.measure.fitting.design import CurveDesign, Design, TermDesign

PEAK = TermDesign((0.5, 1.2))  # of the measured peak: a square product is not the quickest of all kernels
# On one core. Convolutions in groups put their operands into another order at each call, which takes them over 0.1 ms.
FLOOR_S, GROUPED_FLOOR_S = (2e-7, 1e-4), (2e-7, 4e-4)
SHARPNESS = (1.0, 6.0)
CACHED = CurveDesign("cached", (0.003, 0.03, 0.3, 3.0, 30.0), (0.0, 0.5))
WEIGHTS = CurveDesign("weights", (0.003, 0.03, 0.3, 3.0, 30.0), (0.0, 0.5))
REUSE = CurveDesign("reuse", (0.25, 1.0, 2.5, 9.0, 50.0), (-0.3, 0.3))
OUTPUTS = CurveDesign("outputs", (16.0, 256.0, 4096.0, 65536.0, 1048576.0), (-0.5, 0.0))
# Of one product among many: a small one hardly begins before it ends. With OUTPUTS slopes of each side sum to -0.9 or more.
PRODUCTS = tuple(CurveDesign(side, (8.0, 32.0, 64.0, 128.0, 512.0), (-0.4, 0.1)) for side in ("m", "n"))
DEPTH = CurveDesign("k", (16.0, 64.0, 256.0, 1024.0, 4096.0), (-0.4, 0.2))
COLUMNS = CurveDesign("n", (8.0, 32.0, 128.0, 512.0, 2048.0), (-0.3, 0.2))


def product(*more: CurveDesign) -> Design:
    """Products of matrices and ordinary convolutions."""
    return Design(
        {
            "compute": TermDesign((0.5, 20.0), (DEPTH, COLUMNS, OUTPUTS, *more)),
            "compute_peak": PEAK,
            "weights": TermDesign((0.05, 40.0), (WEIGHTS, CurveDesign("m", (1.0, 16.0, 128.0, 1024.0), (0.0, 0.3)))),
            "memory": TermDesign((0.05, 20.0), (CACHED,)),
        },
        sharpness=SHARPNESS,
        floor_s=FLOOR_S,
    )


def narrow(floor_s: tuple[float, float], *more: CurveDesign) -> Design:
    """Convolutions in groups and channel by channel, batches of small products: few multiplications for each number."""
    shape = (CurveDesign("k", (9.0, 32.0, 128.0, 512.0), (-0.4, 0.2)), OUTPUTS, *more)
    return Design(
        {"compute": TermDesign((0.5, 200.0), shape), "compute_peak": PEAK, "memory": TermDesign((0.05, 40.0), (CACHED,))},
        sharpness=SHARPNESS,
        floor_s=floor_s,
    )


def attention() -> Design:
    queries = CurveDesign("queries", (8.0, 64.0, 512.0, 4096.0), (-0.4, 0.1))
    keys = CurveDesign("keys", (32.0, 256.0, 2048.0), (-0.3, 0.2))
    return Design(
        {"compute": TermDesign((0.5, 30.0), (queries, keys)), "compute_peak": PEAK, "memory": TermDesign((0.05, 20.0))},
        sharpness=SHARPNESS,
        floor_s=FLOOR_S,
    )


POOL = Design(
    {"memory": TermDesign((0.02, 300.0), (CACHED, CurveDesign("window", (1.0, 4.0, 9.0, 49.0), (0.0, 1.0))))},
    sharpness=(1.0, 4.0),
    floor_s=FLOOR_S,
)
GATHERING = Design(
    {
        "memory": TermDesign((0.02, 20.0), (CACHED,)),
        "rows": TermDesign((0.3, 300.0), (CurveDesign("table", (0.003, 0.03, 0.3, 3.0, 30.0), (0.0, 0.6)),)),
    },
    sharpness=(1.0, 2.0),
    floor_s=FLOOR_S,
)
STREAMING = Design({"memory": TermDesign((0.02, 300.0), (CACHED,))}, sharpness=(1.0, 4.0), floor_s=FLOOR_S)


def design_of(key: str) -> Design:
    """The form of a class of kernels on a CPU. key: `conv_grouped.fp32`, `elementwise`."""
    kernel_class = key.partition(".")[0]
    if kernel_class.startswith("conv"):
        return narrow(GROUPED_FLOOR_S) if "grouped" in kernel_class or "depthwise" in kernel_class else product(REUSE)
    if kernel_class.startswith("gemm_batched"):
        return narrow(FLOOR_S, *PRODUCTS)
    if kernel_class.startswith("attention"):
        return attention()
    if kernel_class.startswith(("embedding", "scatter")):
        return GATHERING
    if kernel_class.startswith("pool"):
        return POOL
    return product() if kernel_class.startswith(("gemm", "rnn")) else STREAMING
