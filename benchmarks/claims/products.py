"""Claims of matrix products: operations, time, matrix against vector, tensor cores."""

from __future__ import annotations

from typing import Any

from benchmarks.claims.claim import Claim, Published, Row, digits, forecast, kernel, seconds, tera, times, unit
from benchmarks.claims.devices import SERVER, ratio, throughput

V100, A100, H100 = "v100-sxm2-16gb", "a100-80gb-sxm", "h100-80gb-sxm"
CHANNELS_LAST = {"channels_last": True}
VECTOR = {"m": 8192, "n": 1, "k": 8192}
MATRIX = {"m": 8192, "n": 8192, "k": 8192}


def time_s(answer: Any) -> float:
    return float(answer.time_s.value)


def rate(answer: Any) -> float:
    return float(answer.flops / answer.time_s.value)


def giga(value: float) -> str:
    return f"{digits(value / 1e9)} billion"


def _operations(m: int, n: int, k: int) -> Row:
    return Row(
        "flops",
        "operations: a multiplication and an addition for each of m × n × k",
        f"2 × {m} × {n} × {k}",
        lambda: 2.0 * m * n * k,
        giga,
    )


def _on_devices(m: int, n: int, k: int) -> tuple[Row, ...]:
    return tuple(
        Row(key, what, kernel("gemm", device, dtype=dtype, m=m, n=n, k=k), time_s, seconds)
        for key, what, device, dtype in (
            ("cpu", "96-core server CPU, fp32", SERVER, "fp32"),
            ("v100", "V100, fp32", V100, "fp32"),
            ("v100_half", "V100, fp16 tensor cores", V100, "fp16"),
            ("a100", "A100, fp32", A100, "fp32"),
            ("a100_half", "A100, bf16 tensor cores", A100, "bf16"),
            ("h100_half", "H100, bf16 tensor cores", H100, "bf16"),
        )
    )


CUBE_1000 = Claim(
    name="product-1000",
    said="A product of two 1000 × 1000 matrices is a billion operations and takes a CPU 10 seconds.",
    verdict="wrong",
    numbers="{flops} operations; {one_core} on a CPU of 96 GFLOP/s, {cpu} on 96 cores, {a100_half} on an A100",
    conditions="It is 1 billion multiply-adds, so {flops} operations. Seconds are what a loop in Python takes; a library "
    "takes {one_core} where a CPU reaches 96 GFLOP/s. A GPU leads by {lead}, if the matrices are there already: copying them "
    "over PCIe ({copy}) takes longer than the product.",
    rows=(
        _operations(1000, 1000, 1000),
        Row("one_core", "a CPU that reaches 96 GFLOP/s", "2 × 1000³ / 96e9", lambda: 2e9 / 96e9, seconds),
        *_on_devices(1000, 1000, 1000),
        Row("lead", "A100 in bf16 against the 96-core CPU in fp32", ("cpu", "a100_half"), ratio, times, (15, 100)),
        Row(
            "copy",
            "copying both in fp32 at 25 GB/s, what PCIe 4.0 x16 delivers of 31.5",
            "2 × 4 × 1000² / 25e9",
            lambda: 8e6 / 25e9,
            seconds,
        ),
    ),
    measured=("gemm_1000",),
)

CUBE_1024 = Claim(
    name="product-1024",
    said="A product of two 1024 × 1024 matrices is 1.07 billion operations.",
    verdict="wrong",
    numbers="{flops} operations; {v100} on a V100 in fp32 ({v100_rate} of {v100_sheet} on its sheet)",
    conditions="1.07 billion is its multiply-adds. Peak rates count both halves, so times computed from it are half of what "
    "they should be. So small a product also fills no large GPU: an H100 reaches {h100_share} of its peak on it.",
    rows=(
        _operations(1024, 1024, 1024),
        *_on_devices(1024, 1024, 1024),
        Row("v100_rate", "rate of the V100 in fp32", ("flops", "v100"), ratio, tera),
        Row("v100_sheet", "fp32 peak of the V100 SXM2, datasheet", "15.67e12", lambda: 15.67e12, tera),
        Row(
            "h100_share",
            "share of the H100's 989 TFLOP/s in bf16",
            ("flops", "h100_half"),
            lambda f, s: f / s / 989.4e12,
            lambda x: f"{x:.0%}",
            (0.15, 0.6),
        ),
    ),
    measured=("gemm_1024", "gemm_1024_bf16"),
)

OBLONG = Claim(
    name="product-256-1024-2048",
    said="A 256 × 1024 by 1024 × 2048 product (a layer at batch 256) is 1.07 billion operations.",
    verdict="right",
    numbers="{flops} operations; {cpu} on 96 cores, {v100} on a V100 in fp32, {a100_half} on an A100 in bf16",
    conditions="Multiplications and additions counted both, unlike in the 1.07 billion often said of 1024³, which is twice "
    "this. On an A100 it takes {a100_share} of the time of 1024³ for half the operations: small products pay for launch and "
    "for idle units.",
    rows=(
        _operations(256, 1024, 2048),
        *_on_devices(256, 2048, 1024),
        Row("cube", "1024³ on an A100, bf16", kernel("gemm", A100, dtype="bf16", m=1024, n=1024, k=1024), time_s, seconds),
        Row(
            "a100_share",
            "256×1024×2048 over 1024³, A100 in bf16",
            ("a100_half", "cube"),
            ratio,
            lambda x: f"{x:.0%}",
            (0.5, 1.0),
        ),
    ),
    measured=("gemm_256x1024x2048",),
)

VECTORS = Claim(
    name="matrix-vector",
    said="A GPU multiplies matrices fast, so it multiplies a matrix and a vector fast too.",
    verdict="wrong",
    numbers="A100, bf16, 8192²: {matrix} for a matrix, {vector} for a vector: {slower} fewer operations a second",
    conditions="A product with a vector reads every weight for two operations: 1 operation a byte in bf16, where an A100 "
    "needs about 150 to be busy. It runs at the speed of memory, on any device, and the GPU's lead is that of its memory "
    "({sheet} by the sheets, and bf16 halves the bytes): {lead_vector} over a server CPU instead of {lead_matrix}. This is "
    "why generating text for one user is slow.",
    rows=(
        Row("matrix", "8192² times a matrix of 8192 columns, A100", kernel("gemm", A100, dtype="bf16", **MATRIX), rate, tera),
        Row("vector", "8192² times a vector, A100", kernel("gemm", A100, dtype="bf16", **VECTOR), rate, tera),
        Row("slower", "matrix over vector, operations a second", ("matrix", "vector"), ratio, times, (80, 400)),
        Row(
            "matrix_cpu", "8192² times a matrix, 96-core CPU, fp32", kernel("gemm", SERVER, dtype="fp32", **MATRIX), rate, tera
        ),
        Row(
            "vector_cpu", "8192² times a vector, 96-core CPU, fp32", kernel("gemm", SERVER, dtype="fp32", **VECTOR), rate, tera
        ),
        Row("lead_matrix", "A100 (bf16) over the CPU (fp32), matrix", ("matrix", "matrix_cpu"), ratio, times, (25, 100)),
        Row("lead_vector", "A100 (bf16) over the CPU (fp32), vector", ("vector", "vector_cpu"), ratio, times, (5, 40)),
        Row("sheet", "memory bandwidth, A100 80 GB over EPYC 9654", "2039 / 460.8", lambda: 2039 / 460.8, times),
        Row(
            "balance",
            "operations a byte from which an A100 computes rather than waits: 312 TFLOP/s over 2.04 TB/s",
            "312e12 / 2039e9",
            lambda: 312e12 / 2039e9,
            unit("operations a byte"),
        ),
    ),
    measured=("matvec_4096", "matmul_4096_512"),
)

TENSOR_CORES = Claim(
    name="tensor-cores",
    said="Tensor cores make training 8 (or 16) times faster: use fp16 or bf16 instead of fp32.",
    verdict="right under conditions",
    numbers="products of 8192: {v100_product} on a V100, {a100_product} on an A100; a ResNet-50 step {v100_step} and "
    "{a100_step}, a BERT step on the A100 {a100_bert}",
    conditions="True of datasheets and of large products against fp32 without TF32. A whole step gains {a100_step} to "
    "{a100_bert}: norms, activations and the optimizer wait for memory, and PyTorch's convolutions run in TF32 unless told "
    "otherwise. Convolutions want the channels last, or they gain only {first_step}. A GTX 1080 has no tensor cores, a V100 "
    "none for bf16.",
    rows=(
        *(
            Row(f"{key}_{dtype}", f"8192³, {device}, {dtype}", kernel("gemm", device, dtype=dtype, **MATRIX), rate, tera)
            for key, device, dtypes in (
                ("v100", V100, ("fp32", "fp16")),
                ("a100", A100, ("fp32", "tf32", "bf16")),
                ("h100", H100, ("fp32", "bf16")),
            )
            for dtype in dtypes
        ),
        Row("v100_product", "V100, fp16 over fp32", ("v100_fp16", "v100_fp32"), ratio, times, (5, 9)),
        Row("a100_product", "A100, bf16 over fp32", ("a100_bf16", "a100_fp32"), ratio, times, (12, 22)),
        Row("a100_tf32_gain", "A100, TF32 over fp32", ("a100_tf32", "a100_fp32"), ratio, times, (5, 10)),
        Row("h100_product", "H100, bf16 over fp32", ("h100_bf16", "h100_fp32"), ratio, times, (12, 25)),
        *(
            Row(
                key,
                f"ResNet-50, {images} images, {device}, {precision}{', channels last' if layout else ''}",
                forecast("resnet50", device, slow=bool(layout), precision=precision, micro_batch=images, **layout),
                throughput,
                unit("images/s"),
            )
            for key, device, images, precision, layout in (
                ("v100_step_fp32", V100, 128, "fp32", {}),
                ("v100_step_amp", V100, 128, "amp-fp16", CHANNELS_LAST),
                ("step_fp32", A100, 256, "fp32", {}),
                ("step_first", A100, 256, "amp-fp16", {}),
                ("step_amp", A100, 256, "amp-fp16", CHANNELS_LAST),
            )
        ),
        *(
            Row(
                key,
                f"BERT base, 32 sequences of 128, A100, {precision}",
                forecast("bert-base", A100, precision=precision, micro_batch=32, seq_len=128),
                throughput,
                unit("tokens/s"),
            )
            for key, precision in (("bert_fp32", "fp32"), ("bert_amp", "amp-fp16"))
        ),
        Row(
            "v100_step",
            "ResNet-50 on a V100, mixed precision over fp32",
            ("v100_step_amp", "v100_step_fp32"),
            ratio,
            times,
            (2, 4),
        ),
        Row(
            "a100_step",
            "ResNet-50 on an A100, mixed precision over fp32 (TF32 convolutions)",
            ("step_amp", "step_fp32"),
            ratio,
            times,
            (1.5, 3),
        ),
        Row("first_step", "the same, channels first", ("step_first", "step_fp32"), ratio, times, (1, 1.9)),
        Row(
            "a100_bert",
            "BERT on an A100, mixed precision over fp32 (no TF32 products)",
            ("bert_amp", "bert_fp32"),
            ratio,
            times,
            (3, 8),
        ),
    ),
    published=(
        Published(
            "ResNet-50 on one V100, mixed precision over fp32",
            "3.26 times (1,200 and 367 images/s)",
            "NVIDIA DeepLearningExamples, ResNet-50 v1.5 for PyTorch, NGC 21.03",
            "2021",
        ),
        Published(
            "ResNet-50 on one A100, mixed precision over TF32",
            "2.63 times (2,470 and 938 images/s)",
            "NVIDIA DeepLearningExamples, ResNet-50 v1.5 for PyTorch, NGC 21.03",
            "2021",
        ),
    ),
    measured=("gemm_1024", "gemm_1024_bf16"),
)


CLAIMS = (CUBE_1000, CUBE_1024, OBLONG, VECTORS, TENSOR_CORES)
