"""Claims of how many operations a model takes."""

from __future__ import annotations

from typing import Any

from benchmarks.claims.claim import Call, Claim, Published, Row, forecast, times, unit
from benchmarks.claims.devices import ratio

GPT2_PARAMETERS, LLAMA_PARAMETERS = 124_439_808, 6_738_415_616  # Radford et al. 2019 (124M), Touvron et al. 2023
giga = unit("billion", 1e9)
each = unit("operations")


def flops(answer: Any) -> float:
    return float(answer.flops_per_step)


def _language(job: str, seq_len: int, mode: str = "train") -> Call:
    return forecast(job, "a100-80gb-sxm", precision="bf16", micro_batch=1, seq_len=seq_len, mode=mode)


RESNET = Claim(
    name="resnet50-4-gflop",
    said="ResNet-50 takes 4 GFLOPs an image.",
    verdict="wrong",
    numbers="{forward} operations forward, {train} in training, an image of 224 × 224",
    conditions="4 billion (4.1 for version 1.5) are its multiply-adds, so {forward} operations, and three times that in "
    "training. Who divides 4 by a card's peak, which counts both halves, gets half the time.",
    rows=(
        Row(
            "forward",
            "one image, forward",
            forecast("resnet50", "a100-80gb-sxm", precision="fp32", micro_batch=1, mode="infer"),
            flops,
            giga,
            (7.5e9, 8.7e9),
        ),
        Row(
            "train",
            "one image, training step",
            forecast("resnet50", "a100-80gb-sxm", precision="fp32", micro_batch=1),
            flops,
            giga,
            (22e9, 26e9),
        ),
    ),
    published=(
        Published(
            "ResNet-50, multiply-adds",
            "3.8 billion (version 1, printed as FLOPs)",
            "He et al., Deep Residual Learning for Image Recognition (arXiv 1512.03385), table 1",
            "2015",
            checked=False,
        ),
    ),
)

SIX_N = Claim(
    name="six-n-d",
    said="Training takes 6 operations a parameter and token.",
    verdict="right under conditions",
    numbers="Llama 2 7B: {llama_short} at 512 tokens, {llama_long} at 4,096; GPT-2 124M: {gpt2_long} at 1,024",
    conditions="Right while attention is small beside the rest: the 6 count no products of queries with keys, which grow "
    "with the sequence and weigh most in narrow models. Recomputation makes it 8 operations that run, of which 6 are the "
    "model's.",
    rows=(
        *(
            Row(
                key,
                f"{job}, {n} tokens: operations a parameter and token",
                _language(job, n),
                lambda answer, n=n, parameters=parameters: flops(answer) / n / parameters,
                each,
                holds,
            )
            for key, job, n, parameters, holds in (
                ("llama_short", "llama2-7b", 512, LLAMA_PARAMETERS, (5.7, 6.4)),
                ("llama_long", "llama2-7b", 4096, LLAMA_PARAMETERS, (6.2, 7.8)),
                ("gpt2_short", "gpt2", 128, GPT2_PARAMETERS, (5.6, 6.6)),
                ("gpt2_long", "gpt2", 1024, GPT2_PARAMETERS, (6.3, 7.8)),
            )
        ),
    ),
    published=(
        Published(
            "operations of training",
            "C ≈ 6 N D",
            "Kaplan et al., Scaling Laws for Neural Language Models (arXiv 2001.08361), section 2.1",
            "2020",
            checked=False,
        ),
    ),
)

THREE = Claim(
    name="training-three-forward",
    said="A training step is three forward passes.",
    verdict="right under conditions",
    numbers="operations: {resnet} (ResNet-50), {gpt2} (GPT-2); time on an A100: {resnet_time} and {gpt2_time}",
    conditions="Right of the operations: backward makes two products for each of forward. The time is {gpt2_time} to "
    "{resnet_time} that of a forward pass, because norms, elementwise backward and the optimizer step cost memory traffic, "
    "not operations; memory is another matter altogether.",
    rows=(
        *(
            Row(
                f"{key}_{mode}",
                f"{job}, {what}",
                forecast(job, "a100-80gb-sxm", precision=precision, micro_batch=n, mode=mode),
                flops,
                giga,
            )
            for key, job, precision, n in (("resnet", "resnet50", "fp32", 64), ("gpt2", "gpt2", "bf16", 8))
            for mode, what in (("infer", "forward"), ("train", "training step"))
        ),
        *(
            Row(
                f"{key}_{mode}_s",
                f"{job}, {what}: time",
                forecast(job, "a100-80gb-sxm", precision=precision, micro_batch=n, mode=mode),
                lambda answer: float(answer.step_time_s.value),
                unit("ms", 1e-3),
            )
            for key, job, precision, n in (("resnet", "resnet50", "fp32", 64), ("gpt2", "gpt2", "bf16", 8))
            for mode, what in (("infer", "forward"), ("train", "training step"))
        ),
        Row("resnet", "ResNet-50, operations", ("resnet_train", "resnet_infer"), ratio, times, (2.8, 3.1)),
        Row("gpt2", "GPT-2, operations", ("gpt2_train", "gpt2_infer"), ratio, times, (2.9, 3.4)),
        Row("resnet_time", "ResNet-50, time", ("resnet_train_s", "resnet_infer_s"), ratio, times, (2.2, 5)),
        Row("gpt2_time", "GPT-2, time", ("gpt2_train_s", "gpt2_infer_s"), ratio, times, (2.2, 5)),
    ),
)

CLAIMS = (RESNET, SIX_N, THREE)
