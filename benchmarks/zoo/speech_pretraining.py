"""wav2vec 2.0 base (Baevski et al. 2020, arXiv:2006.11477) with an hourglass transformer, as in NVIDIA's DeepLearningExamples.

In mixed precision the whole model is in bf16, with Adam on fp32 copies (common/fairseq/optim/fp16_optimizer.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from benchmarks.zoo.master_adam import MasterAdam
from gpuwise.job import Job

# Section 4.2 of the paper: seven convolutions of 512 channels, 12 layers of 768 units, two codebooks of 320 entries.
CONVOLUTIONS = ((10, 5), *((3, 2),) * 4, *((2, 2),) * 2)  # kernel, stride
CHANNELS, WIDTH, INNER, HEADS, FINAL = 512, 768, 3072, 12, 256
BOOKS, ENTRIES_OF_BOOK, NEGATIVES, MASKED = 2, 320, 100, 0.49  # 65 % of frames begin spans of ten, which overlap
SHORTENED, OUTER, MIDDLE = 4, 2, 8  # HOURGLASS_CONFIG of scripts/pretrain_base.sh: 2 layers, 8 at a quarter of the length, 2
LETTERS, TRANSCRIPT = 32, 180  # letters and gaps between words: about 14.5 a second of LibriSpeech
# Numbers of sound in a sequence and sequences in a batch, of which several make one of a GPU: pre-training crops to 250,000 and
# has 1.4 million at most (scripts/pretrain_base.sh); LibriSpeech's are 197,000 long on average, 3.2 million in fine-tuning.
SOUND = {"pretrain": (250_000, 5), "finetune": (200_000, 16)}


def frames(sound: int) -> int:
    """Frames that the convolutions make of so many numbers."""
    for kernel, stride in CONVOLUTIONS:
        sound = (sound - kernel) // stride + 1
    return sound


class Layer(nn.Module):
    """A layer of a transformer, norms last: x (n, frames, 768) -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (y.view(n, length, HEADS, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = torch.matmul(q * (WIDTH // HEADS) ** -0.5, k.transpose(2, 3))
        mixed = torch.matmul(self.dropout(F.softmax(scores, dim=-1)), v).transpose(1, 2).reshape(n, length, WIDTH)
        x = self.norms[0](x + self.dropout(self.out(mixed)))
        return self.norms[1](x + self.dropout(self.narrow(F.gelu(self.wide(x)))))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Sound (n, numbers) -> features (n, frames, 512) and what the transformer makes of them (n, frames, 768)."""

    def __init__(self) -> None:
        super().__init__()
        inside = (1, *(CHANNELS,) * (len(CONVOLUTIONS) - 1))
        self.convs = nn.ModuleList(
            nn.Conv1d(a, CHANNELS, kernel, stride, bias=False) for a, (kernel, stride) in zip(inside, CONVOLUTIONS, strict=True)
        )
        self.group_norm, self.norm = nn.GroupNorm(CHANNELS, CHANNELS), nn.LayerNorm(CHANNELS)
        self.project, self.mask = nn.Linear(CHANNELS, WIDTH), nn.Parameter(torch.rand(WIDTH))
        self.position = nn.Conv1d(WIDTH, WIDTH, 128, padding=64, groups=16)
        self.position_norm = nn.LayerNorm(WIDTH)
        self.before, self.middle, self.after = (
            nn.ModuleList(Layer() for _ in range(count)) for count in (OUTER, MIDDLE, OUTER)
        )
        self.shorten, self.lengthen = nn.Linear(SHORTENED * WIDTH, WIDTH), nn.Linear(WIDTH, SHORTENED * WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        x = sound[:, None]
        for number, conv in enumerate(self.convs):
            x = conv(x)
            x = F.gelu(x if number else self.group_norm(x))
        features = self.norm(x.transpose(1, 2))
        x = self.dropout(self.project(features))
        count = int(MASKED * x.shape[1])
        x = torch.cat([self.mask.expand(x.shape[0], count, WIDTH), x[:, count:]], dim=1)
        x = x + F.gelu(self.position(x.transpose(1, 2))[..., :-1]).transpose(1, 2)
        x = self.dropout(self.position_norm(x))
        for layer in self.before:
            x = layer(x)
        n, length, _ = x.shape
        short = F.pad(x, (0, 0, 0, -length % SHORTENED)).reshape(n, -1, SHORTENED * WIDTH)
        short = self.shorten(short)
        for layer in self.middle:
            short = layer(short)
        x = x + self.lengthen(short).reshape(n, -1, WIDTH)[:, :length]
        for layer in self.after:
            x = layer(x)
        return features, x


class Pretraining(nn.Module):
    """Sound (n, numbers), others (n, 100 × masked): -> similarity of each masked frame to itself and to a hundred others."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.choose = nn.Linear(CHANNELS, BOOKS * ENTRIES_OF_BOOK)
        self.books = nn.Parameter(torch.rand(BOOKS, ENTRIES_OF_BOOK, FINAL // BOOKS))
        self.project, self.final = nn.Linear(FINAL, FINAL), nn.Linear(WIDTH, FINAL)

    def forward(self, sound: Tensor, others: Tensor) -> Tensor:
        features, x = self.encoder(sound)
        n, count = len(x), int(MASKED * x.shape[1])
        chosen = F.gumbel_softmax(self.choose(features[:, :count]).view(-1, ENTRIES_OF_BOOK).float(), tau=2.0, hard=True)
        entries = torch.einsum("fbe,bew->fbw", chosen.type_as(x).view(-1, BOOKS, ENTRIES_OF_BOOK), self.books)
        true = self.project(entries.reshape(n, count, FINAL))
        false = true.flatten(0, 1)[others.flatten()].view(n, count, NEGATIVES, FINAL).permute(2, 0, 1, 3)
        targets = torch.cat([true.unsqueeze(0), false], dim=0)
        return torch.cosine_similarity(self.final(x[:, :count]).float(), targets.float(), dim=-1)


class Finetuning(nn.Module):
    """Sound (n, numbers) -> log probabilities of letters (frames, n, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.letters = Encoder(), nn.Linear(WIDTH, LETTERS)

    def forward(self, sound: Tensor) -> Tensor:
        return F.log_softmax(self.letters(self.encoder(sound)[1]).float(), dim=-1).transpose(0, 1)


def recordings(n: int, *, task: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Sound (n, numbers); in pre-training which frames are false ones (n, 100 × masked), else letters (n, 180)."""
    length = SOUND[task][0]
    batch = {"sound": torch.randn(n, length).to(dtype)}
    if task == "pretrain":
        return {**batch, "others": torch.zeros(n, NEGATIVES * int(MASKED * frames(length)), dtype=torch.int64)}
    return {**batch, "letters": torch.randint(1, LETTERS, (n, TRANSCRIPT)), "count": torch.full((n,), TRANSCRIPT)}


def speech_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Cross entropy of the true frame among a hundred others; CTC of the letters in fine-tuning."""
    if "others" in batch:
        scores = (model(batch["sound"], batch["others"]) / 0.1).transpose(0, 2).flatten(0, 1)
        return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64, device=scores.device), reduction="sum")
    scores = model(batch["sound"])
    lengths = torch.full_like(batch["count"], scores.shape[0])
    return F.ctc_loss(scores, batch["letters"], lengths, batch["count"], reduction="sum")


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """wav2vec-pretrain or wav2vec-finetune; with -bf16 the whole model in bf16."""
    whole, task = name.endswith("-bf16"), name.split("-")[1]
    make = Pretraining if task == "pretrain" else Finetuning
    dtype = torch.bfloat16 if whole else torch.float32
    return Job(
        partial(_of_dtype, make, dtype),
        partial(recordings, task=task, dtype=dtype),
        speech_loss,
        optimizer=partial(MasterAdam, fused=True) if whole else "adam",
        name=name,
    )


def _of_dtype(make: type[nn.Module], dtype: torch.dtype) -> nn.Module:
    return make().to(dtype)


def _read(row: Any) -> Reading | Unscored:
    """Throughput counts what the criterion calls tokens (wav2vec2/criterion.py): masked frames in pre-training, letters in
    fine-tuning, the second table of the page. The batch is the number of batches put together."""
    task = "pretrain" if "#L541" in row.source_path else "finetune"
    length, sequences = SOUND[task]
    whole = row.precision == "amp-fp16"
    return Reading(
        f"wav2vec-{task}" + "-bf16" * whole,
        per_sample=int(MASKED * frames(length)) if task == "pretrain" else TRANSCRIPT,
        micro_batch=int(sequences * row.batch_per_gpu),
        accumulation=int(str(row.notes).removeprefix("grad_accum=")),
        precision="fp32" if whole else None,
    )


JOBS = {"wav2vec": job_of}
ENTRIES = (Entry(EXAMPLES, "wav2vec2", _read),)
