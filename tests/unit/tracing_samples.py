"""Small jobs for the tests of `gpuwise.tracing`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpuwise.job import Job
from gpuwise.trace import PHASES, Trace

WIDTH, CLASSES = 64, 5


class Attention(nn.Module):
    def __init__(self, *, causal: bool, masked: bool, head_size: int):
        super().__init__()
        self.causal, self.masked, self.head_size = causal, masked, head_size
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * 4 * head_size)
        self.out = nn.Linear(4 * head_size, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mask = x.new_ones(x.shape[1], x.shape[1]).bool() if self.masked else None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, *, causal: bool = False, masked: bool = False, head_size: int = 16):
        super().__init__()
        self.layers = nn.ModuleList(Attention(causal=causal, masked=masked, head_size=head_size) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def batch_of(*shape: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda n: {"x": torch.zeros(n, *shape), "y": torch.zeros(n, dtype=torch.int64)}


def class_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]).float(), batch["y"])


def attention_job(seq_len: int = 16, **options: Any) -> Job:
    return Job(lambda: Stack(**options), batch_of(seq_len, WIDTH), class_loss)


def cnn_job() -> Job:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        )

    return Job(model, batch_of(3, 16, 16), class_loss)


def mlp_job(activation: Callable[[], nn.Module] = nn.ReLU) -> Job:
    return Job(lambda: nn.Sequential(nn.Linear(WIDTH, 96), activation(), nn.Linear(96, CLASSES)), batch_of(WIDTH), class_loss)


def rows(trace: Trace) -> list[tuple[str, str, int, str]]:
    """(operator, phase, micro-step, module) of every position, the operator without namespace and overload."""
    sequence, names = trace.sequence, trace.operations.name
    return [
        (names[o].split(".")[1], PHASES[p], int(s), trace.modules[m])
        for o, p, s, m in zip(sequence.operation, sequence.phase, sequence.micro_step, sequence.module, strict=True)
    ]


def operators(trace: Trace, phase: str | None = None) -> list[str]:
    return [name for name, where, _, _ in rows(trace) if phase in (None, where)]


class Counting(TorchDispatchMode):
    """Counts the operators that plain PyTorch runs, by name and overload."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))
