"""Published speeds of the attention kernels that PyTorch runs, forward and backward: figures with their sources.

The kernel tables of the reference are of inference engines. PyTorch runs FlashAttention-2 (`flash`), cuDNN's (`cudnn`) or the
memory-efficient kernel of xFormers, and the two latter only where it must or is asked to.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from benchmarks.fit.attention_tables import COLUMNS

FA3 = "FlashAttention-3 paper, arXiv:2407.08608, figures 5 and 6"
CUDNN = "NVIDIA/cudnn-frontend, benchmark/attention_training/results/llama3.1, 2026-09-28"
CUDNN_B200 = "NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/artifacts, B200"
B200 = "Dao-AILab/flash-attention, issue 1589"
A5000 = "gpu-mode/ring-attention, issue 10"
A6000 = "pytorch/pytorch, pull request 137036"
H20 = "Dao-AILab/flash-attention, issue 1310"


@dataclass(frozen=True)
class Series:
    """TFLOP/s by sequence length, from `first` on in powers of two. tokens: batch × length, or None with a batch; operations
    are counted as 4 × batch × heads × length² × head, 2.5 times that backward, half of it causal."""

    source: str
    chip: str
    kernel: str
    backward: bool
    head: int
    causal: bool
    first: int
    tflops: tuple[float, ...]
    heads: int
    kv_heads: int
    tokens: int | None = 16384
    batch: int = 1


def _paper(
    kernel: str, head: int, causal: bool, backward: bool, *tflops: float, chip: str = "h100-80gb-sxm", source: str = FA3
) -> Series:
    """The benchmark of the FlashAttention papers: 16,384 tokens, width 2,048."""
    return Series(source, chip, kernel, backward, head, causal, 512, tflops, 2048 // head, 2048 // head)


def _llama(kernel: str, chip: str, causal: bool, backward: bool, *tflops: float) -> Series:
    return Series(CUDNN, chip, kernel, backward, 128, causal, 2048, tflops, 64, 8, None, 2)


def _b200(kernel: str, backward: bool, *tflops: float) -> Series:
    return Series(CUDNN_B200, "b200-180gb-sxm", kernel, backward, 128, True, 2048, tflops, 128, 8, None, 1)


SERIES = (
    _paper("flash", 64, False, False, 282, 306, 318, 321, 322, 324),
    _paper("flash", 128, False, False, 309, 350, 362, 368, 370, 370),
    _paper("flash", 128, True, False, 191, 260, 298, 319, 333, 335),
    _paper("flash", 256, False, False, 275, 313, 321, 323, 324, 326),
    _paper("flash", 256, True, False, 208, 251, 278, 293, 297, 298),
    _paper("flash", 64, False, True, 198, 238, 264, 279, 287, 291),
    _paper("flash", 128, False, True, 214, 260, 291, 310, 318, 322),
    _paper("cudnn", 64, False, False, 335, 373, 395, 408, 412, 413),
    _paper("cudnn", 128, False, False, 497, 574, 617, 609, 600, 595),
    _paper("cudnn", 128, True, False, 315, 410, 484, 518, 529, 539),
    _paper("cudnn", 256, False, False, 470, 546, 580, 581, 580, 581),
    _paper("cudnn", 256, True, False, 308, 391, 450, 483, 497, 509),
    _paper("cudnn", 64, False, True, 266, 348, 395, 417, 432, 433),
    _paper("cudnn", 128, False, True, 305, 408, 465, 499, 518, 516),
    _paper("flash", 64, False, False, 308.4, 359.3, 381, 306.9, 343.1, 379.4, chip="b200-180gb-sxm", source=B200),
    _paper("flash", 64, False, True, 243, 280.6, 301.6, 314.7, 329.1, 334, chip="b200-180gb-sxm", source=B200),
    _b200("flash", False, 242.4, 324.9, 373.4, 394.5, 403.7),
    _b200("flash", True, 186.3, 256.4, 298.9, 320, 330.8),
    _b200("cudnn", False, 478.9, 855.7, 1171.3, 1332.4, 1419),
    _b200("cudnn", True, 371.5, 701.3, 942.5, 1074.8, 1108.7),
    _paper("flash", 64, False, False, 84.1, 81, 81.3, 81.7, 81.9, chip="rtx-a5000", source=A5000),
    _paper("flash", 64, False, True, 52.9, 62.5, 70.1, 74.8, 77.4, chip="rtx-a5000", source=A5000),
    _llama("flash", "a100-80gb-pcie", True, False, 180, 204, 217, 203, 199),
    _llama("flash", "a100-80gb-pcie", False, False, 216, 225, 213, 204, 201),
    _llama("flash", "a100-80gb-pcie", True, True, 141, 168, 173, 175, 180),
    _llama("flash", "a100-80gb-pcie", False, True, 172, 181, 178, 179, 180),
    _llama("cudnn", "a100-80gb-pcie", True, False, 155, 174, 177, 173, 176),
    _llama("cudnn", "a100-80gb-pcie", False, False, 191, 198, 186, 182, 181),
    _llama("cudnn", "a100-80gb-pcie", True, True, 109, 128, 136, 139, 143),
    _llama("cudnn", "a100-80gb-pcie", False, True, 135, 144, 142, 144, 146),
    _llama("cudnn", "h200-141gb-sxm", True, False, 534, 616, 655, 633, 619),
    _llama("cudnn", "h200-141gb-sxm", False, False, 660, 687, 701, 640, 622),
    _llama("cudnn", "h200-141gb-sxm", True, True, 402, 495, 526, 539, 528),
    _llama("cudnn", "h200-141gb-sxm", False, True, 519, 576, 562, 549, 543),
    _llama("cudnn", "rtx-pro-6000-blackwell-server", True, False, 291, 363, 394, 390, 386),
    _llama("cudnn", "rtx-pro-6000-blackwell-server", False, False, 353, 399, 409, 389, 386),
    _llama("cudnn", "rtx-pro-6000-blackwell-server", True, True, 180, 221, 248, 260, 261),
    _llama("cudnn", "rtx-pro-6000-blackwell-server", False, True, 238, 269, 288, 293, 296),
    Series(A6000, "rtx-a6000", "flash", False, 64, True, 1024, (75.6,), 16, 16, None, 64),
    Series(A6000, "rtx-a6000", "flash", True, 64, True, 1024, (51.6,), 16, 16, None, 64),
    Series(H20, "h20-96gb", "flash", False, 64, False, 2048, (81.8,), 32, 32, None, 2),
    Series(H20, "h20-96gb", "flash", False, 64, True, 2048, (71,), 32, 32, None, 2),
    Series(H20, "h20-96gb", "flash", False, 128, False, 2048, (83.7,), 16, 16, None, 2),
    Series(H20, "h20-96gb", "flash", False, 128, True, 2048, (65.9,), 16, 16, None, 2),
    Series(H20, "h20-96gb", "cudnn", False, 64, False, 2048, (126.1,), 32, 32, None, 2),
    Series(H20, "h20-96gb", "cudnn", False, 128, True, 2048, (107.8,), 16, 16, None, 2),
)


def published(kernel: str, *, backward: bool) -> pd.DataFrame:
    """One row a measurement: COLUMNS of attention_tables, seconds, source, backward."""
    rows = []
    for s in SERIES:
        if s.kernel != kernel or s.backward != backward:
            continue
        for index, tflops in enumerate(s.tflops):
            length = s.first * 2**index
            batch = s.tokens // length if s.tokens else s.batch
            if not batch:
                continue
            flops = 4.0 * batch * s.heads * length**2 * s.head * (2.5 if backward else 1) / (2 if s.causal else 1)
            shape = (s.chip, batch, length, length, s.heads, s.kv_heads, s.head, s.causal, 0.0)
            rows.append((*shape, flops / tflops / 1e12, s.source))
    return pd.DataFrame(rows, columns=[*COLUMNS, "seconds", "source"]).assign(backward=backward)
