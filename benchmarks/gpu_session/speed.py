"""Training speed on the device: gpuwise, loops by hand and other trainers at the same work, in turns."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_session.cases import LLAMA_1B
from benchmarks.gpu_session.models import GPT, token_rows
from benchmarks.gpu_session.rows import Row
from benchmarks.train_speed import ours
from benchmarks.train_speed.children import OURS, PEERS
from benchmarks.train_speed.works import Work
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mlp import class_loss
from gpuwise.job.models.resnet import ResNet

ROUNDS = 2
# Contestant -> the module of its function, and the function.
CONTESTANTS = {
    "gpuwise": (OURS, "no_folder"),
    "gpuwise, data set": (OURS, "rows"),
    "by hand, index batches": (PEERS, "indexed"),
    "by hand, DataLoader": (PEERS, "loader"),
    "Trainer": (PEERS, "trainer"),
    "Lightning": (PEERS, "lightning"),
}
ALL, SHORT, PAIR = (
    tuple(CONTESTANTS),
    ("gpuwise", "by hand, index batches", "Trainer", "Lightning"),
    tuple(CONTESTANTS)[::2][:2],
)
SAVED = "gpt2"


def _tokens(count: int, seq_len: int, vocabulary: int) -> dict[str, Tensor]:
    tokens = torch.randint(vocabulary, (count, seq_len), generator=torch.Generator().manual_seed(0))
    return {"tokens": tokens, "labels": tokens.roll(-1, 1)}


def _images() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(512, 3, 224, 224, generator=generator), "y": torch.randint(1000, (512,), generator=generator)}


def works(device: str, *, toy: bool) -> dict[str, tuple[Work, str, tuple[str, ...]]]:
    """By name: the work, its precision, and who does it."""
    if toy:
        work = Work("GPT of 3 layers", lambda: Gpt2(GPT), token_loss, token_rows, batch=4, warm=2, timed=4, threads=1)
        return {"gpt": (work, "fp32", PAIR)}
    gpt2 = Work(
        "GPT-2 124M, 16 x 1,024 tokens",
        lambda: Gpt2(Gpt2Config()),
        token_loss,
        partial(_tokens, 512, 1024, Gpt2Config().vocabulary),
        batch=16,
        warm=6,
        timed=40,
    )
    resnet = Work("ResNet-50, 128 images of 224 x 224", ResNet, class_loss, _images, batch=128, warm=6, timed=40)
    one = Work(
        "Llama of 1B, 4 x 2,048 tokens",
        lambda: Llama(LLAMA_1B),
        token_loss,
        partial(_tokens, 256, 2048, LLAMA_1B.vocabulary),
        batch=4,
        warm=5,
        timed=25,
    )
    eight = Work(
        "Llama 3 8B, 1 x 4,096 tokens",
        lambda: Llama(LlamaConfig()),
        token_loss,
        partial(_tokens, 64, 4096, LlamaConfig().vocabulary),
        batch=1,
        warm=4,
        timed=15,
    )
    results = {
        "llama-8b": (eight, "bf16", PAIR),
        "llama-1b": (one, "bf16", SHORT),
        "gpt2": (gpt2, "amp-bf16", ALL),
        "resnet50": (resnet, "amp-bf16", ALL),
    }
    return {
        name: (replace(work, device=device, threads=None), precision, who) for name, (work, precision, who) in results.items()
    }


def forecast_rows(device: str, *, toy: bool) -> list[Row]:
    return [
        Row(f"forecast/{name}", partial(_forecast, work, precision), parallel=True, seconds=8, limit_s=150)
        for name, (work, precision, _) in works(device, toy=toy).items()
    ]


def speed_rows(device: str, number: int, *, toy: bool) -> list[Row]:
    """One round: every contestant once, in an order that turns from round to round."""
    rows = []
    for name, (work, precision, who) in works(device, toy=toy).items():
        first = number % len(who)
        for contestant in (*who[first:], *who[:first]):
            rows.append(
                Row(
                    f"speed/{name}, {contestant}, round {number + 1}",
                    partial(_timed, contestant, work, precision),
                    seconds=20 if name == "llama-8b" else 12,
                    limit_s=120,
                )
            )
    return rows


def saves(device: str, *, toy: bool) -> list[Row]:
    """What checkpoints of a run hold the device up for."""
    work, precision, _ = works(device, toy=toy)["gpt" if toy else SAVED]
    return [Row("saves/gpt2", partial(_saves, replace(work, timed=20 if toy else 120), precision), seconds=30, limit_s=120)]


def _forecast(work: Work, precision: str) -> dict[str, Any]:
    from benchmarks.gpu_session.cases import StepCase
    from benchmarks.gpu_session.forecasts import forecast_of
    from gpuwise.strategy import Strategy

    case = StepCase(work.text, partial(ours.job_of, work, work.columns), Strategy(precision=precision, micro_batch=work.batch))
    return forecast_of(case)


def _timed(contestant: str, work: Work, precision: str) -> dict[str, Any]:
    from gpuwise.job.torchvision_cpu import make_importable

    make_importable()
    if work.device == "cpu":
        torch.set_num_threads(1)
    module, function = CONTESTANTS[contestant]
    seconds, loss = getattr(importlib.import_module(module), function)(work, precision)
    peak = torch.cuda.max_memory_allocated() if work.device == "cuda" else None
    return {
        "work": work.text,
        "precision": precision,
        "contestant": contestant,
        "batch": work.batch,
        "steps": work.timed,
        "step_s": seconds / work.timed,
        "loss": loss,
        "peak_bytes": peak,
    }


def _saves(work: Work, precision: str) -> dict[str, Any]:
    return {"saves": ours.saved(work, precision)}
