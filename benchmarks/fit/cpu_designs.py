"""Forms of the entries of CPU kernels (gpuwise.cost.kernels.cpu), and what a class without rows is taken to be like."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwise.cost.calibration import CalibrationEntry
from gpuwise.measure.fitting.design import CurveDesign, Design, TermDesign

PEAK = TermDesign((0.5, 1.0))  # of base clocks, which the catalog's peaks stand on: boost clocks are up to twice as fast
FLOOR_S = (1e-6, 1.5e-5)  # on one core
CACHED = CurveDesign("cached", (0.003, 0.03, 0.3, 3.0), (0.0, 0.4))
WEIGHTS = CurveDesign("weights", (0.003, 0.03, 0.3, 3.0), (0.0, 0.4))
REUSE = CurveDesign("reuse", (0.25, 1.0, 2.5, 9.0, 50.0), (-0.3, 0.3))
OUTPUTS = CurveDesign("outputs", (16.0, 256.0, 4096.0, 65536.0, 1048576.0), (-0.5, 0.0))


def product(*more: CurveDesign) -> Design:
    """Products of matrices and ordinary convolutions. Slopes over m sum to -0.9 or more on each term, over n likewise."""
    depth = CurveDesign("k", (16.0, 64.0, 256.0, 1024.0, 4096.0), (-0.4, 0.2))
    columns = CurveDesign("n", (8.0, 32.0, 128.0, 512.0, 2048.0), (-0.3, 0.2))
    return Design(
        {
            "compute": TermDesign((0.7, 8.0), (depth, columns, OUTPUTS, *more)),
            "compute_peak": PEAK,
            "weights": TermDesign((0.2, 20.0), (WEIGHTS, CurveDesign("m", (1.0, 16.0, 128.0, 1024.0), (0.0, 0.3)))),
            "memory": TermDesign((0.1, 8.0), (CACHED,)),
        },
        sharpness=(1.0, 4.0),
        floor_s=FLOOR_S,
    )


def narrow() -> Design:
    """Convolutions in groups and channel by channel: few multiplications for each number loaded."""
    shape = (CurveDesign("k", (9.0, 32.0, 128.0, 512.0), (-0.4, 0.2)), OUTPUTS)
    return Design(
        {"compute": TermDesign((0.7, 40.0), shape), "compute_peak": PEAK, "memory": TermDesign((0.1, 8.0), (CACHED,))},
        sharpness=(1.0, 4.0),
        floor_s=FLOOR_S,
    )


ATTENTION = Design(
    {
        "compute": TermDesign(
            (0.7, 12.0),
            (CurveDesign("queries", (8.0, 64.0, 512.0), (-0.4, 0.1)), CurveDesign("keys", (32.0, 256.0, 2048.0), (-0.3, 0.2))),
        ),
        "compute_peak": PEAK,
        "memory": TermDesign((0.1, 8.0)),
    },
    sharpness=(1.0, 4.0),
    floor_s=FLOOR_S,
)
STREAMING = Design({"memory": TermDesign((0.1, 10.0), (CACHED,))}, sharpness=(1.0, 4.0), floor_s=FLOOR_S)


def design_of(key: str) -> Design:
    kernel_class = key.partition(".")[0]
    if kernel_class.startswith("conv"):
        return narrow() if "grouped" in kernel_class or "depthwise" in kernel_class else product(REUSE)
    if kernel_class.startswith(("gemm_batched", "attention")):
        return ATTENTION if kernel_class.startswith("attention") else narrow()
    return product() if kernel_class.startswith(("gemm", "rnn")) else STREAMING


# Classes that a step of another job may hold, and that no row here decides.
CONTRACTIONS = (
    "gemm",
    "gemm_batched",
    "conv",
    "conv_grouped",
    "conv_depthwise",
    "conv_channels_last",
    "conv_grouped_channels_last",
    "conv_depthwise_channels_last",
    "attention",
    "rnn",
)
OTHERS = (
    "elementwise",
    "reduction",
    "norm_batch",
    "norm_layer",
    "norm_group",
    "softmax",
    "loss",
    "embedding",
    "scatter",
    "pool",
    "copy",
    "random",
    "optimizer",
    "sort",
    "collective",
    "other",
)
SORT_SLOWER = 10.0  # than reading and writing once: it passes over its numbers again and again


def prior_of(key: str, known: Mapping[str, CalibrationEntry]) -> CalibrationEntry | None:
    """What a class is likely to run like: an eager convolution like a compiled one, backward like forward."""
    kernel_class, _, numerics = key.partition(".")
    forward = kernel_class.removesuffix("_backward")
    alike = forward.removesuffix("_channels_last")
    for name in (kernel_class, forward, f"{forward}_channels_last", alike, alike.split("_")[0]):
        result = known.get(f"{name}.{numerics}" if numerics else name)
        if result is not None:
            return result
    return known.get("elementwise") if not numerics else None
