"""Claims of what runs faster on the same device: larger batches, fused attention."""

from __future__ import annotations

from typing import Any

from benchmarks.claims.claim import Call, Claim, Published, Row, forecast, kernel, seconds, share, times, unit
from benchmarks.claims.devices import interval, ratio
from benchmarks.claims.products import A100, time_s

HEADS = {"batch": 8, "heads": 16, "head_size": 64}
LENGTHS = (512, 2048, 8192)


def mfu(answer: Any) -> float:
    return float(answer.mfu)


BATCHES = Claim(
    name="larger-batches",
    said="Larger batches raise utilisation.",
    verdict="right under conditions",
    numbers="BERT on an A100: {mfu_1} of the peak at 1 sequence, {mfu_16} at 16, {mfu_64} at 64, {mfu_256} at 256",
    conditions="Right until the device is full: a step of few samples takes as long as its launches, so throughput grows "
    "with the batch for free; beyond that the gain ends ({last} from 64 to 256). Utilisation stays far below the peak where "
    "memory is the limit (ResNet-50: {resnet_256} at 256 images), and a batch too large may need more epochs.",
    rows=(
        *(
            Row(
                f"mfu_{n}",
                f"BERT base, {n} sequence{'s' * (n > 1)} of 128: operations of the model over the peak",
                forecast("bert-base", A100, precision="amp-fp16", micro_batch=n, seq_len=128),
                mfu,
                share,
            )
            for n in (1, 4, 16, 64, 256)
        ),
        Row("growth", "utilisation at 16 over 1", ("mfu_16", "mfu_1"), ratio, times, (6, 16)),
        Row("last", "utilisation at 256 over 64", ("mfu_256", "mfu_64"), ratio, times, (0.95, 1.25)),
        *(
            Row(
                f"resnet_{n}",
                f"ResNet-50, {n} images",
                forecast("resnet50", A100, slow=True, precision="amp-fp16", micro_batch=n, channels_last=True),
                mfu,
                share,
            )
            for n in (16, 256)
        ),
    ),
    published=(
        Published(
            "ResNet-50, forward on a V100, mixed precision, 1 / 32 / 256 images",
            "78 / 2,146 / 3,382 images/s",
            "NVIDIA DeepLearningExamples, ResNet-50 v1.5 for PyTorch, NGC 21.03",
            "2021",
        ),
    ),
    measured=(
        "mlp_step_1",
        "mlp_step_32",
        "mlp_step_512",
        "mlp_step_10000",
        "resnet50_step_1",
        "resnet50_step_4",
        "resnet50_step_8",
    ),
)


def _unfused(queries: int) -> tuple[tuple[str, str, Call], ...]:
    """The kernels of attention written out, in bf16: scores, their scale or mask, softmax, and the product with values."""
    batch, heads, size = HEADS["batch"], HEADS["heads"], HEADS["head_size"]
    scores = 2 * batch * heads * queries**2  # bytes
    moved = {"bytes_read": scores, "bytes_written": scores}
    return (
        ("scores", "queries × keys", kernel("gemm", A100, dtype="bf16", batch=batch * heads, m=queries, n=queries, k=size)),
        ("scale", "scale or mask", kernel("elementwise", A100, dtype="bf16", **moved)),
        ("softmax", "softmax", kernel("softmax", A100, dtype="bf16", **moved)),
        ("values", "scores × values", kernel("gemm", A100, dtype="bf16", batch=batch * heads, m=queries, n=size, k=queries)),
    )


def _flash(queries: int) -> Call:
    return kernel("attention", A100, dtype="bf16", queries=queries, **HEADS)


def _attention(queries: int) -> tuple[Row, ...]:
    parts = _unfused(queries)
    return (
        *(Row(f"{key}_{queries}", f"{queries} tokens, {what}", call, time_s, seconds) for key, what, call in parts),
        Row(f"flash_{queries}", f"{queries} tokens, one flash kernel", _flash(queries), time_s, seconds),
        Row(
            f"gain_{queries}",
            f"{queries} tokens: the four over the one",
            (*(f"{key}_{queries}" for key, _, _ in parts), f"flash_{queries}"),
            lambda *t: sum(t[:-1]) / t[-1],
            times,
            (2.5, 9),
        ),
    )


FLASH = Claim(
    name="flash-attention",
    said="Flash attention is 2 to 4 times faster.",
    verdict="right under conditions",
    numbers="attention alone, forward, A100: {gain_512} at 512 tokens, {gain_8192} at 8,192; a whole step gains less",
    conditions="Right of the attention kernel, and today even low against attention written out in PyTorch; a whole step "
    "gains what attention's share of it is: the paper says 15 % for BERT-large at 512 tokens. What always holds is memory: "
    "{scores_gb} of scores for 8 sequences of 8,192 are never stored. On a CPU the fused kernel wins too (measured below).",
    rows=(
        *(row for queries in LENGTHS for row in _attention(queries)),
        *interval("flash", "2048 tokens, flash kernel", _flash(2048)),
        Row(
            "scores_gb",
            "scores of 8 sequences of 8,192 tokens, 16 heads, bf16",
            "2 × 8 × 16 × 8192²",
            lambda: 2.0 * 8 * 16 * 8192**2,
            unit("GB", 1e9),
        ),
    ),
    published=(
        Published(
            "FlashAttention on an A100: the kernel against optimized baselines",
            "2 to 4 times",
            "Dao, FlashAttention-2 (arXiv 2307.08691), abstract, of FlashAttention",
            "2023",
        ),
        Published(
            "FlashAttention in whole trainings: BERT-large at 512; GPT-2 at 1,024; long-range arena",
            "15 % faster; 3 times; 2.4 times",
            "Dao et al., FlashAttention (arXiv 2205.14135), abstract",
            "2022",
            checked=False,
        ),
        Published(
            "FlashAttention-2 against FlashAttention", "about 2 times", "Dao, FlashAttention-2 (arXiv 2307.08691)", "2023"
        ),
    ),
    measured=tuple(f"attention_{kind}_{n}" for n in (512, 1024, 2048) for kind in ("flash", "math")),
    note="gpuwise is above the published 2 to 4 times: its flash kernel is that of today's inference engines (interval "
    "{flash_low} to {flash_high} of the time), against four separate kernels; the paper compared its first version with "
    "optimized baselines.",
)

CLAIMS = (BATCHES, FLASH)
