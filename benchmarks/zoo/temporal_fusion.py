"""The temporal fusion transformer (Lim et al. 2019, arXiv:1912.09363), as NVIDIA's DeepLearningExamples train it on hours.

Sizes are those of PyTorch/Forecasting/TFT/configuration.py there: a week of history and a day to forecast, 128 units, four
heads, the name of the series, three inputs that are known beforehand, and the target.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from gpuwise.job import Job

SERIES = {"electricity": 369, "traffic": 963}
HISTORY, LENGTH, WIDTH, HEADS, KNOWN = 168, 192, 128, 4, 3
QUANTILES = (0.1, 0.5, 0.9)


class Gated(nn.Module):
    """A gated residual network (section 4.1 of the paper): (..., inputs) -> (..., outputs)."""

    def __init__(self, inputs: int, outputs: int = WIDTH, *, context: bool = False, dropout: float = 0.0):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.context = nn.Linear(WIDTH, WIDTH, bias=False) if context else None
        self.gate, self.dropout = nn.Linear(WIDTH, 2 * outputs), nn.Dropout(dropout)
        self.skip = nn.Identity() if inputs == outputs else nn.Linear(inputs, outputs)
        self.norm = nn.Identity() if outputs == 1 else nn.LayerNorm(outputs, eps=1e-3)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        y = self.first(x)
        if self.context is not None and context is not None:
            y = y + self.context(context).unsqueeze(1)
        y = F.glu(self.gate(self.dropout(self.second(F.elu(y)))))
        return self.norm(y + self.skip(x))


class Selection(nn.Module):
    """Weights of inputs by what they hold (section 4.2): (..., inputs, width) -> (..., width)."""

    def __init__(self, inputs: int, dropout: float):
        super().__init__()
        self.weights = Gated(inputs * WIDTH, inputs, context=True)
        self.each = nn.ModuleList(Gated(WIDTH, dropout=dropout) for _ in range(inputs))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        weights = F.softmax(self.weights(x.flatten(-2), context), dim=-1)
        each = torch.stack([gated(x[..., i, :]) for i, gated in enumerate(self.each)], dim=-1)
        return torch.matmul(each, weights.unsqueeze(-1)).squeeze(-1)


class Attention(nn.Module):
    """Heads with queries and keys of their own and one value (section 4.4): (n, time, width) -> the same."""

    def __init__(self, dropout: float):
        super().__init__()
        self.size = WIDTH // HEADS
        self.qkv = nn.Linear(WIDTH, (2 * HEADS + 1) * self.size, bias=False)
        self.out, self.dropout = nn.Linear(self.size, WIDTH, bias=False), nn.Dropout(dropout)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        n, times, _ = x.shape
        q, k, v = self.qkv(x).split((WIDTH, WIDTH, self.size), dim=-1)
        q, k = (y.view(n, times, HEADS, self.size) for y in (q, k))
        scores = torch.matmul(q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1)).mul_(self.size**-0.5) + self.mask
        mixed = torch.matmul(F.softmax(scores, dim=-1), v.unsqueeze(1))
        return self.dropout(self.out(mixed.mean(dim=1)))


class GatedNorm(nn.Module):
    """A gated linear unit, added to what was before, and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.norm = nn.Linear(WIDTH, 2 * WIDTH), nn.LayerNorm(WIDTH, eps=1e-3)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return self.norm(F.glu(self.gate(x)) + before)


class TemporalFusion(nn.Module):
    """series (n,), known (n, time, 3), target (n, time, 1) -> quantiles of the day (n, 24, 3)."""

    def __init__(self, series: int, dropout: float):
        super().__init__()
        self.series = nn.Embedding(series, WIDTH)
        self.known, self.target = (nn.Parameter(torch.randn(inputs, WIDTH) * 0.1) for inputs in (KNOWN, 1))
        self.known_bias, self.target_bias = (nn.Parameter(torch.zeros(inputs, WIDTH)) for inputs in (KNOWN, 1))
        self.static = Selection(1, dropout)
        self.contexts = nn.ModuleList(Gated(WIDTH, dropout=dropout) for _ in range(4))
        self.history, self.future = Selection(KNOWN + 1, dropout), Selection(KNOWN, dropout)
        self.encoder, self.decoder = (nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.gates = nn.ModuleList(GatedNorm() for _ in range(3))
        self.enrichment = Gated(WIDTH, context=True, dropout=dropout)
        self.attention, self.position = Attention(dropout), Gated(WIDTH, dropout=dropout)
        self.quantiles = nn.Linear(WIDTH, len(QUANTILES))

    def forward(self, series: Tensor, known: Tensor, target: Tensor) -> Tensor:
        known = known.unsqueeze(-1) * self.known + self.known_bias
        target = torch.matmul(target.unsqueeze(3).unsqueeze(4), self.target.unsqueeze(1)).squeeze(3) + self.target_bias
        static = self.static(self.series(series).unsqueeze(1))
        selects, enriches, *state = (context(static) for context in self.contexts)
        past = self.history(torch.cat([known[:, :HISTORY], target[:, :HISTORY]], dim=-2), selects)
        coming = self.future(known[:, HISTORY:], selects)
        history, last = self.encoder(past, tuple(s.unsqueeze(0) for s in state))
        future, _ = self.decoder(coming, last)
        x = self.gates[0](torch.cat([history, future], dim=1), torch.cat([past, coming], dim=1))
        enriched = self.enrichment(x, enriches)
        attended = self.gates[1](self.attention(enriched)[:, HISTORY:], enriched[:, HISTORY:])
        return self.quantiles(self.gates[2](self.position(attended), x[:, HISTORY:]))


def series_batch(n: int, *, series: int) -> dict[str, Tensor]:
    return {
        "series": torch.randint(0, series, (n,)),
        "known": torch.randn(n, LENGTH, KNOWN),
        "target": torch.randn(n, LENGTH, 1),
    }


def quantile_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Pinball loss of the forecast day (section 5 of the paper)."""
    error = batch["target"][:, HISTORY:] - model(batch["series"], batch["known"], batch["target"])
    quantiles = torch.tensor(QUANTILES, device=error.device)
    return torch.maximum(error * quantiles, error * (quantiles - 1)).mean(dim=(0, 1)).sum()


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """tft-electricity or tft-traffic."""
    series = SERIES[name.removeprefix("tft-")]
    model = partial(TemporalFusion, series, 0.1 if series == SERIES["electricity"] else 0.3)
    return Job(model, partial(series_batch, series=series), quantile_loss, optimizer="adam", name=name)


def _read(row: Any) -> Reading | Unscored:
    name = str(row.model_detail).lower()
    return Reading(f"tft-{name}") if name in SERIES else Unscored("which series is unknown")


JOBS = {"tft": job_of}
ENTRIES = (Entry(EXAMPLES, "TFT", _read),)
