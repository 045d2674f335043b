"""Published models that are neither presets nor in transformers or timm, written from their papers and public descriptions.

Transformer-XL (Dai et al. 2019) as NVIDIA's DeepLearningExamples train it on WikiText-103. Needs PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TransformerXlConfig:
    """The default is the base size; words: of WikiText-103."""

    words: int = 267_735
    layers: int = 16
    width: int = 512
    heads: int = 8
    inner: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0


TRANSFORMER_XL = {
    "base": TransformerXlConfig(),
    "large": TransformerXlConfig(layers=18, width=1024, heads=16, inner=4096, dropout=0.2, attention_dropout=0.2),
}


class RelativeAttention(nn.Module):
    """Attention to the segment before and this one, by content and by distance (section 3.3 of the paper)."""

    def __init__(self, config: TransformerXlConfig):
        super().__init__()
        self.heads, self.head_dim = config.heads, config.width // config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.distance = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.dropout, self.attention_dropout = nn.Dropout(config.dropout), nn.Dropout(config.attention_dropout)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, memory: Tensor, distances: Tensor, biases: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """x: (new, n, width); memory: (old, n, width); distances: (old + new, 1, width); biases: (heads, head size) each."""
        new, n, width = x.shape
        q, k, v = self.qkv(torch.cat([memory, x])).chunk(3, dim=-1)
        q = q[-new:].reshape(new, n, self.heads, self.head_dim)
        k, v = (y.reshape(-1, n, self.heads, self.head_dim) for y in (k, v))
        r = self.distance(distances).reshape(-1, self.heads, self.head_dim)
        content = torch.einsum("ibnd,jbnd->bnij", q + biases[0], k)
        position = _shifted(torch.einsum("ibnd,jnd->bnij", q + biases[1], r))
        scores = ((content + position) * self.head_dim**-0.5).masked_fill_(mask, -float("inf"))
        weights = self.attention_dropout(F.softmax(scores, dim=-1))
        mixed = torch.einsum("bnij,jbnd->ibnd", weights, v).reshape(new, n, width)
        return self.norm(x + self.dropout(self.out(mixed)))


def _shifted(scores: Tensor) -> Tensor:
    """Scores by distance, (n, heads, new, all), moved so that column j belongs to key j: appendix B of the paper."""
    n, heads, new, known = scores.shape
    padded = F.pad(scores, (1, 0)).view(n, heads, known + 1, new)
    return padded[:, :, 1:].reshape(n, heads, new, known)


class Layer(nn.Module):
    def __init__(self, config: TransformerXlConfig):
        super().__init__()
        self.attention = RelativeAttention(config)
        self.inner = nn.Sequential(
            nn.Linear(config.width, config.inner),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.inner, config.width),
            nn.Dropout(config.dropout),
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, *context: object) -> Tensor:
        x = self.attention(x, *context)
        return self.norm(x + self.inner(x))


class TransformerXl(nn.Module):
    """tokens (n, new), memory (n, layers, old, width) -> logits (new × n, words). One table serves words and outputs."""

    def __init__(self, config: TransformerXlConfig):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.words, config.width)
        self.word_bias = nn.Parameter(torch.zeros(config.words))
        self.biases = nn.ParameterList(torch.zeros(config.heads, config.width // config.heads) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.register_buffer("frequencies", 1e4 ** -(torch.arange(0, config.width, 2) / config.width))

    def forward(self, tokens: Tensor, memory: Tensor) -> Tensor:
        x = self.dropout(self.words(tokens.t()) * self.config.width**0.5)
        old, new = memory.shape[2], x.shape[0]
        far = torch.arange(old + new - 1, -1, -1, device=x.device, dtype=self.frequencies.dtype)
        angles = torch.outer(far, self.frequencies)
        distances = self.dropout(torch.cat([angles.sin(), angles.cos()], dim=-1)[:, None].to(x.dtype))
        mask = torch.ones(new, old + new, device=x.device, dtype=x.dtype).triu(1 + old).bool()
        hidden = []
        for layer, before in zip(self.layers, memory.permute(1, 2, 0, 3), strict=True):
            hidden.append(x.detach())
            x = layer(x, before.to(x.dtype), distances, tuple(self.biases), mask)
        torch.stack(hidden)  # becomes the next segment's memory
        return F.linear(self.dropout(x).flatten(0, 1), self.words.weight, self.word_bias)


def transformer_xl_batch(n: int, *, config: TransformerXlConfig, seq_len: int) -> dict[str, Tensor]:
    """Tokens and labels (n, seq_len), and the last segment's hidden states (n, layers, seq_len, width)."""
    tokens = torch.randint(0, config.words, (n, seq_len + 1))
    memory = torch.randn(n, config.layers, seq_len, config.width)
    return {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous(), "memory": memory}


def transformer_xl_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean of -log p of each next word over the whole vocabulary."""
    logits = model(batch["tokens"], batch["memory"])
    return F.nll_loss(F.log_softmax(logits, dim=-1), batch["labels"].t().flatten())


class MasterAdam(torch.optim.Optimizer):
    """Adam on fp32 copies of half-precision parameters, as NVIDIA's apex kept them at its level O2.

    fused: one kernel for all parameters (apex's FusedAdam), else several a parameter.
    """

    def __init__(self, params: object, lr: float = 1e-3, fused: bool = False):
        super().__init__(params, {"lr": lr, "fused": fused})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if not self.state[p]:
                zeros = [torch.zeros_like(p, dtype=torch.float32) for _ in range(2)]
                self.state[p] = {
                    "master": p.float(),
                    "mean": zeros[0],
                    "square": zeros[1],
                    "step": torch.zeros((), device=p.device),
                }
        names = ("master", "mean", "square", "step")
        master, mean, square, step = ([self.state[p][name] for p in params] for name in names)
        grads = [p.grad.float() for p in params]  # type: ignore[union-attr]
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (1.0 / (total + 1e-6)).clamp(max=1.0))
        if group["fused"]:
            torch._foreach_add_(step, 1)
            torch._fused_adam_(
                master,
                grads,
                mean,
                square,
                [],
                step,
                lr=group["lr"],
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-6,
                amsgrad=False,
                maximize=False,
            )
        else:
            for g, m, s, w in zip(grads, mean, square, master, strict=True):
                m.lerp_(g, 0.1)
                s.mul_(0.999).addcmul_(g, g, value=1e-3)
                w.addcdiv_(m, s.sqrt().add_(1e-6), value=-group["lr"])
        torch._foreach_copy_(params, master)


class NeuMf(nn.Module):
    """Neural collaborative filtering (He et al. 2017) over MovieLens 20M: users and items (n,) -> logit of a view (n,)."""

    def __init__(
        self, users: int = 138_493, items: int = 26_744, factors: int = 64, widths: tuple[int, ...] = (256, 256, 128, 64)
    ):
        super().__init__()
        self.factors = nn.ModuleList([nn.Embedding(users, factors), nn.Embedding(items, factors)])
        self.deep = nn.ModuleList([nn.Embedding(users, widths[0] // 2), nn.Embedding(items, widths[0] // 2)])
        layers: list[nn.Module] = []
        for inside, outside in pairwise(widths):
            layers += [nn.Linear(inside, outside), nn.ReLU(), nn.Dropout(0.5)]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Linear(factors + widths[-1], 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        product = self.factors[0](users) * self.factors[1](items)
        deep = self.layers(torch.cat([self.deep[0](users), self.deep[1](items)], dim=1))
        return self.out(torch.cat([product, deep], dim=1)).squeeze(1)


def view_batch(n: int) -> dict[str, Tensor]:
    """Users, items (n,) int64 and whether it was viewed (n,) float."""
    return {"users": torch.randint(0, 138_493, (n,)), "items": torch.randint(0, 26_744, (n,)), "viewed": torch.rand(n).round()}


def view_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch["users"], batch["items"]).float(), batch["viewed"])


class Ssd300(nn.Module):
    """Single-shot detection (Liu et al. 2016) on ResNet-50 up to its third stage, kept at 38 × 38, as NVIDIA's
    DeepLearningExamples have it: images (n, 3, 300, 300) -> boxes (n, 4, 8732) and scores (n, 81, 8732)."""

    CLASSES = 81

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet50

        whole = resnet50()
        first = whole.layer3[0]
        first.conv2.stride = first.downsample[0].stride = (1, 1)
        self.features = nn.Sequential(
            whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1, whole.layer2, whole.layer3
        )
        shapes = [
            (1024, 256, 512, 2, 1),
            (512, 256, 512, 2, 1),
            (512, 128, 256, 2, 1),
            (256, 128, 256, 1, 0),
            (256, 128, 256, 1, 0),
        ]
        self.more = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(inside, middle, 1, bias=False),
                nn.BatchNorm2d(middle),
                nn.ReLU(inplace=True),
                nn.Conv2d(middle, outside, 3, stride, padding, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(inplace=True),
            )
            for inside, middle, outside, stride, padding in shapes
        )
        widths, boxes = [1024, *(shape[2] for shape in shapes)], (4, 6, 6, 6, 4, 4)
        self.boxes = nn.ModuleList(nn.Conv2d(w, 4 * b, 3, padding=1) for w, b in zip(widths, boxes, strict=True))
        self.scores = nn.ModuleList(nn.Conv2d(w, self.CLASSES * b, 3, padding=1) for w, b in zip(widths, boxes, strict=True))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = [self.features(images)]
        for block in self.more:
            maps.append(block(maps[-1]))
        n = len(images)
        boxes = [head(x).reshape(n, 4, -1) for head, x in zip(self.boxes, maps, strict=True)]
        scores = [head(x).reshape(n, self.CLASSES, -1) for head, x in zip(self.scores, maps, strict=True)]
        return torch.cat(boxes, 2), torch.cat(scores, 2)


SSD_BOXES = 8732


def detection_batch(n: int) -> dict[str, Tensor]:
    """Images (n, 3, 300, 300), and for each default box its target box (n, 4, boxes) and class (n, boxes)."""
    return {
        "images": torch.randn(n, 3, 300, 300),
        "boxes": torch.randn(n, 4, SSD_BOXES),
        "classes": torch.randint(0, Ssd300.CLASSES, (n, SSD_BOXES)),
    }


def detection_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Smooth L1 of boxes that hold something, and cross entropy of those and of three times as many of the worst others."""
    boxes, scores = model(batch["images"])
    held = batch["classes"] > 0
    count = held.sum(dim=1, keepdim=True)
    near = (F.smooth_l1_loss(boxes.float(), batch["boxes"], reduction="none").sum(dim=1) * held).sum(dim=1)
    entropy = F.cross_entropy(scores.float(), batch["classes"], reduction="none")
    rank = entropy.detach().masked_fill(held, 0.0).argsort(dim=1, descending=True).argsort(dim=1)
    kept = held | (rank < 3 * count)
    return ((near + (entropy * kept).sum(dim=1)) / count.squeeze(1).clamp(min=1)).mean()
