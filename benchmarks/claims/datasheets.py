"""Claims of datasheets that are repeated wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.claims.claim import Call, Claim, Row, share, tera, times, unit

bandwidth = unit("GB/s", 1e9, figures=4)


def whole(value: float) -> str:
    return f"{value:,.0f}"


def _chip(chip: str) -> Call:
    return Call("api.chips", chip)


def _peak(precision: str, *, of: str) -> Callable[[Any], float]:
    return lambda chips: next(float(c.peak_flops_per_s[precision]) for c in chips if c.id == of)


def _memory(of: str) -> Callable[[Any], float]:
    return lambda chips: next(float(c.memory_bandwidth_bytes_per_s) for c in chips if c.id == of)


def _count(name: str, *, of: str) -> Callable[[Any], float]:
    return lambda chips: next(float(getattr(c, name)) for c in chips if c.id == of)


H100_PEAK = Claim(
    name="h100-peak",
    said="An H100 does 756 TFLOP/s in bf16 (or 1,979).",
    verdict="right under conditions",
    numbers="dense: {sxm} SXM, {pcie} PCIe, {nvl} NVL; 8192³ reaches {reached}",
    conditions="756 is the PCIe card. 1,979 is the SXM module with half of the weights zero in a fixed pattern, which "
    "training does not have; 989 is its dense rate, of which a large product reaches {part}.",
    rows=(
        *(
            Row(key, f"{chip}, bf16, dense", _chip(chip), _peak("bf16", of=chip), tera)
            for key, chip in (("sxm", "h100-80gb-sxm"), ("pcie", "h100-80gb-pcie"), ("nvl", "h100-94gb-nvl"))
        ),
        Row(
            "reached",
            "8192³ on the SXM module",
            Call("kernel", "gemm", (("on", "h100-80gb-sxm"), ("dtype", "bf16"), ("m", 8192), ("n", 8192), ("k", 8192))),
            lambda k: k.flops / k.time_s.value,
            tera,
        ),
        Row("part", "of the dense peak", ("reached", "sxm"), lambda a, b: a / b, share, (0.6, 0.95)),
    ),
)

A100_MEMORY = Claim(
    name="a100-bandwidth",
    said="An A100 has 2 TB/s of memory bandwidth.",
    verdict="right under conditions",
    numbers="{gb80} (80 GB SXM), {pcie} (80 GB PCIe), {gb40} (40 GB)",
    conditions="Only with 80 GB. The 40 GB card has HBM2 and {less} of it, and steps that wait for memory slow down as much.",
    rows=(
        *(
            Row(key, chip, _chip(chip), _memory(chip), bandwidth)
            for key, chip in (("gb80", "a100-80gb-sxm"), ("pcie", "a100-80gb-pcie"), ("gb40", "a100-40gb-sxm"))
        ),
        Row("less", "40 over 80 GB", ("gb40", "gb80"), lambda a, b: a / b, share, (0.75, 0.78)),
    ),
)

GEFORCE = Claim(
    name="rtx-4090-330",
    said="An RTX 4090 trains at 330 TFLOP/s.",
    verdict="wrong",
    numbers="{half} in fp16 or bf16 with fp32 accumulation; an A100 has {a100}",
    conditions="330 is fp16 accumulated in fp16, which GeForce cards do at twice the rate and training does not use (660 is "
    "that with sparsity). The A100 has {ahead} the rate and {memory} the bandwidth.",
    rows=(
        Row(
            "half",
            "RTX 4090, bf16, dense, fp32 accumulation",
            _chip("rtx-4090"),
            _peak("bf16", of="rtx-4090"),
            tera,
            (160e12, 170e12),
        ),
        Row("a100", "A100 80 GB SXM, bf16", _chip("a100-80gb-sxm"), _peak("bf16", of="a100-80gb-sxm"), tera),
        Row("ahead", "A100 over RTX 4090", ("a100", "half"), lambda a, b: a / b, times),
        Row("bytes_4090", "RTX 4090, memory", _chip("rtx-4090"), _memory("rtx-4090"), bandwidth),
        Row("bytes_a100", "A100 80 GB SXM, memory", _chip("a100-80gb-sxm"), _memory("a100-80gb-sxm"), bandwidth),
        Row("memory", "A100 over RTX 4090, memory", ("bytes_a100", "bytes_4090"), lambda a, b: a / b, times),
    ),
)

CORES = Claim(
    name="h100-cores",
    said="An H100 has 18,432 CUDA cores.",
    verdict="wrong",
    numbers="{cores} on the SXM module, {pcie} on the PCIe card",
    conditions="18,432 is the whole die of 144 multiprocessors; none is sold with all of them. The cores are beside the "
    "point for training, too: the {tensor} tensor cores do the products.",
    rows=(
        Row("die", "144 multiprocessors of 128", "144 × 128", lambda: 144.0 * 128, whole),
        *(
            Row(key, f"{chip}, CUDA cores", _chip(chip), _count("cuda_cores", of=chip), whole, holds)
            for key, chip, holds in (("cores", "h100-80gb-sxm", (16_896, 16_896)), ("pcie", "h100-80gb-pcie", (14_592, 14_592)))
        ),
        Row("tensor", "h100-80gb-sxm, tensor cores", _chip("h100-80gb-sxm"), _count("tensor_cores", of="h100-80gb-sxm"), whole),
    ),
)

NVLINK = Claim(
    name="nvlink-900",
    said="NVLink moves 900 GB/s from one H100 to another.",
    verdict="wrong",
    numbers="{link} each way; {pcie} each way over PCIe 5.0 x16",
    conditions="900 is both directions together, as makers add them; data go one way at a time, at {link}. Still {ahead} "
    "what PCIe does.",
    rows=(
        Row(
            "link",
            "h100-80gb-sxm, one direction",
            _chip("h100-80gb-sxm"),
            _count("link_bandwidth_bytes_per_s", of="h100-80gb-sxm"),
            unit("GB/s", 1e9),
            (449e9, 451e9),
        ),
        Row(
            "pcie",
            "PCIe 5.0 x16, one direction: 32 GT/s on 16 lanes, 128 of 130 bits",
            "32e9 × 16 × 128 / 130 / 8",
            lambda: 32e9 * 16 * 128 / 130 / 8,
            unit("GB/s", 1e9),
        ),
        Row("ahead", "NVLink over PCIe", ("link", "pcie"), lambda a, b: a / b, times),
    ),
)

CLAIMS = (H100_PEAK, CORES, NVLINK, A100_MEMORY, GEFORCE)
