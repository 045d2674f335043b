"""The other side of the comparison: a training loop as a PyTorch user writes it. Nothing of gpuwise is imported here.

Updates run in PyTorch's for-loop kernels, one tensor at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SEED, STEPS, SAMPLES, CLASSES = 0, 20, 8, 7
CLIP_NORM, EMA_DECAY, WARMUP = 0.5, 0.95, 4
RANK = 16  # of adapters; their alpha is twice that
AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
# Large enough that 20 steps move numbers of 16 bits, small enough that the loss falls.
LEARNING_RATES = {"sgd": 0.05, "momentum": 0.01, "muon": 0.02, "adafactor": 0.02}
LEARNING_RATE = 3e-3  # of the Adam family


class Block(nn.Module):
    """33 wide: every kind of kernel meets whole blocks of numbers and a remainder."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(33), nn.Linear(33, 66), nn.Linear(66, 33)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), self.dropout, self.training)


class Net(nn.Module):
    """Images: a convolution, running statistics, two residual blocks and a head."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 33, 3, bias=False), nn.BatchNorm2d(33)
        self.blocks = nn.ModuleList([Block(dropout), Block(dropout)])
        self.head = nn.Linear(33, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Recipe:
    """What is trained, in the words of PyTorch. overflow: the step (from 0) whose loss is so large that fp16's gradients
    overflow; None for none. dropout: compiled steps draw other random numbers, so they have none."""

    optimizer: str
    precision: str
    accumulation: int = 1
    clips: bool = False
    averages: bool = False
    schedules: bool = False
    channels_last: bool = False
    adapter: bool = False
    overflow: int | None = None
    dropout: float = 0.1


@dataclass
class Trained:
    """initial, final: parameters and buffers. averages: of the trained parameters. losses: of each step. scale: of fp16."""

    initial: dict[str, Tensor]
    final: dict[str, Tensor]
    averages: dict[str, Tensor]
    losses: list[float]
    scale: float


def batches(recipe: Recipe) -> list[list[dict[str, Tensor]]]:
    """Micro-batches by step."""
    draw = torch.Generator().manual_seed(SEED + 1)
    prototypes = torch.randn(CLASSES, 3, 6, 6, generator=draw)
    made = []
    for step in range(STEPS):
        loud = 1e5 if step == recipe.overflow else 1.0
        made.append([])
        for _ in range(recipe.accumulation):
            y = torch.randint(0, CLASSES, (SAMPLES,), generator=draw)
            x = prototypes[y] + torch.randn(SAMPLES, 3, 6, 6, generator=draw)
            made[-1].append({"x": x, "y": y, "loud": torch.full((SAMPLES,), loud)})
    return made


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]).float(), batch["y"]) * batch["loud"].float().mean()


def model_of(recipe: Recipe) -> nn.Module:
    model: nn.Module = Net(recipe.dropout)
    if recipe.adapter:
        peft: Any = import_module("peft")
        layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "head"]
        model = peft.inject_adapter_in_model(
            peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=layers, lora_dropout=0.0, bias="none"), model
        )
    if recipe.precision == "bf16":
        model = model.to(torch.bfloat16)
    return model.to(memory_format=torch.channels_last) if recipe.channels_last else model  # type: ignore[call-overload,no-any-return]


def optimizers_of(recipe: Recipe, model: nn.Module) -> list[torch.optim.Optimizer]:
    trained = [p for p in model.parameters() if p.requires_grad]
    rate = LEARNING_RATES.get(recipe.optimizer, LEARNING_RATE)
    loop: dict[str, Any] = {"lr": rate, "foreach": False}
    match recipe.optimizer:
        case "sgd" | "momentum":
            return [torch.optim.SGD(trained, momentum=0.9 if recipe.optimizer == "momentum" else 0.0, fused=False, **loop)]
        case "adam":
            return [torch.optim.Adam(trained, fused=False, **loop)]
        case "adamw":
            return [torch.optim.AdamW(trained, fused=False, **loop)]
        case "adafactor":
            return [torch.optim.Adafactor(trained, **loop)]
        case "muon":
            hidden = {id(p) for p in model.blocks.parameters() if p.dim() == 2}  # type: ignore[union-attr]
            rest = [p for p in trained if id(p) not in hidden]
            matrices = torch.optim.Muon([p for p in trained if id(p) in hidden], lr=rate)
            return [matrices, *([torch.optim.AdamW(rest, fused=False, **loop)] if rest else [])]
    low_bit: Any = import_module("torchao.optim")
    return [{"adamw-8bit": low_bit.AdamW8bit, "adamw-4bit": low_bit.AdamW4bit}[recipe.optimizer](trained, lr=rate)]


def factor(step: int) -> float:
    """A line up over the warm-up, then half a cosine down to a tenth."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def train_plain(recipe: Recipe) -> Trained:
    torch.manual_seed(SEED)
    model = model_of(recipe)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizers = optimizers_of(recipe, model)
    rates = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers]
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    averages = {name: p.detach().clone() for name, p in trained.items()}
    scaler = torch.amp.GradScaler("cpu", enabled=recipe.precision == "amp-fp16")
    autocast = AUTOCAST.get(recipe.precision)
    losses = []
    for step, micro_batches in enumerate(batches(recipe)):
        if recipe.schedules:
            for optimizer, own in zip(optimizers, rates, strict=True):
                for group, rate in zip(optimizer.param_groups, own, strict=True):
                    if isinstance(group["lr"], Tensor):  # torchao's
                        group["lr"].fill_(rate * factor(step))
                    else:
                        group["lr"] = rate * factor(step)
        total = 0.0
        for batch in micro_batches:
            if recipe.precision == "bf16":
                batch = {name: t.bfloat16() if t.is_floating_point() else t for name, t in batch.items()}
            if recipe.channels_last:
                batch = {**batch, "x": batch["x"].contiguous(memory_format=torch.channels_last)}
            with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                loss = loss_of(model, batch)
            scaler.scale(loss / recipe.accumulation).backward()
            total += loss.item()
        if recipe.clips:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(trained.values(), CLIP_NORM)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
        if recipe.averages:
            weight = 1 - min(EMA_DECAY, (2 + step) / (11 + step))
            with torch.no_grad():
                for name, p in trained.items():
                    averages[name].lerp_(p, weight)
        losses.append(total / recipe.accumulation)
    return Trained(initial, dict(model.state_dict()), averages if recipe.averages else {}, losses, float(scaler.get_scale()))
