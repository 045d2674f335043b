"""Jasper of NVIDIA's DeepLearningExamples: sound to letters (Li et al. 2019, arXiv:1904.03288)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from gpuwise.job import Job

# Of configs/jasper10x5dr_speedp-online_train-benchmark.yaml: filters, kernel, dropout of the ten blocks of five.
BLOCKS = tuple(
    (f, k, d) for f, k, d in ((256, 11, 0.2), (384, 13, 0.2), (512, 17, 0.2), (640, 21, 0.3), (768, 25, 0.3)) for _ in "12"
)
MELS, LETTERS = 64, 29
# Speech is padded to its longest, 16.7 s, in frames of 10 ms and multiples of 16 (the README's training benchmark).
FRAMES = 1680
TRANSCRIPT = 200  # letters of 16 s of LibriSpeech: 12 to 13 a second


class MaskedConv(nn.Conv1d):
    """A convolution of sequences whose ends are set to zero first: x (n, channels, frames), lengths (n,)."""

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        frames = torch.arange(x.shape[2], device=x.device)
        x = x.masked_fill((frames >= lengths[:, None])[:, None], 0)
        ends = (lengths + 2 * self.padding[0] - self.dilation[0] * (self.kernel_size[0] - 1) - 1) / self.stride[0]  # type: ignore[operator]
        return super().forward(x), ends.floor().long() + 1


class Block(nn.Module):
    """Convolutions with batch norm, each with ReLU and dropout; residual: channels of all inputs that are added at the end."""

    def __init__(
        self,
        inside: int,
        outside: int,
        kernel: int,
        *,
        repeat: int = 1,
        stride: int = 1,
        dilation: int = 1,
        dropout: float = 0.2,
        residual: tuple[int, ...] = (),
    ):
        super().__init__()
        self.convs = nn.ModuleList(
            MaskedConv(a, outside, kernel, stride, kernel // 2 * dilation, dilation, bias=False)
            for a in [inside, *[outside] * (repeat - 1)]
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(outside, eps=1e-3) for _ in range(repeat))
        self.skips = nn.ModuleList(MaskedConv(a, outside, 1, bias=False) for a in residual)
        self.skip_norms = nn.ModuleList(nn.BatchNorm1d(outside, eps=1e-3) for _ in residual)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: list[Tensor], lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, ends = inputs[-1], lengths
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x, ends = conv(self.dropout(F.relu(x)) if number else x, ends)
            x = norm(x)
        for skip, norm, earlier in zip(self.skips, self.skip_norms, inputs, strict=False):
            x = x + norm(skip(earlier, lengths)[0])
        return self.dropout(F.relu(x)), ends


class Jasper(nn.Module):
    """Mel spectra (n, 64, frames) and their lengths (n,) -> log probabilities (n, frames / 2, 29), lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block(MELS, 256, 11, stride=2)
        self.blocks, panes = nn.ModuleList(), [256]
        for filters, kernel, dropout in BLOCKS:
            block = Block(panes[-1], filters, kernel, repeat=5, dropout=dropout, residual=tuple(panes))
            self.blocks.append(block)
            panes.append(filters)
        self.last = nn.ModuleList([Block(768, 896, 29, dilation=2, dropout=0.4), Block(896, 1024, 1, dropout=0.4)])
        self.letters = nn.Conv1d(1024, LETTERS, 1)

    def forward(self, spectra: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, lengths = self.first([spectra], lengths)
        dense = [x]
        for block in self.blocks:
            x, lengths = block(dense, lengths)
            dense.append(x)
        for block in self.last:
            x, lengths = block([x], lengths)
        return F.log_softmax(self.letters(x).transpose(1, 2), dim=2), lengths


def utterances(n: int) -> dict[str, Tensor]:
    """Spectra (n, 64, frames), their lengths (n,), letters (n, 200) and theirs (n,)."""
    return {
        "spectra": torch.randn(n, MELS, FRAMES),
        "lengths": torch.full((n,), FRAMES),
        "letters": torch.randint(0, LETTERS - 1, (n, TRANSCRIPT)),
        "count": torch.full((n,), TRANSCRIPT),
    }


def alignment_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean of the CTC loss of each utterance."""
    scores, lengths = model(batch["spectra"], batch["lengths"])
    losses = F.ctc_loss(
        scores.float().transpose(0, 1), batch["letters"], lengths, batch["count"], blank=LETTERS - 1, reduction="none"
    )
    return losses.mean()


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """Jasper 10x5 with dense residuals. Its NovoGrad keeps one number a layer for Adam's second moments: as momentum."""
    return Job(Jasper, utterances, alignment_loss, optimizer="momentum", name=name)


def _read(row: Any) -> Reading | Unscored:
    return Reading("jasper") if row.task == "train" else Unscored("length of the utterances unknown")


JOBS = {"jasper": job_of}
ENTRIES = (Entry(EXAMPLES, "Jasper", _read),)
