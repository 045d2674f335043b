"""Vocoders and what gives them spectra: HiFi-GAN (Kong et al. 2020) and FastPitch (Łańcucki 2021), as NVIDIA's
DeepLearningExamples have them (PyTorch/SpeechSynthesis/HiFiGAN)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from gpuwise.job import Job

MELS, HOP, SEGMENT = 80, 256, 8192  # train.py: spectra of 1,024 numbers every 256, segments of 8,192
RATES, KERNELS, DILATIONS = (8, 8, 2, 2), (3, 7, 11), (1, 3, 5)
PERIODS = (2, 3, 5, 7, 11)
SLOPE = 0.1
# Inference: 128 letters give 8.05 s of sound (its README) at 22,050 numbers a second.
LETTERS, FRAMES = 128, 693


class Residual(nn.Module):
    """Three pairs of convolutions of one kernel, the first of each dilated; x (n, channels, length)."""

    def __init__(self, channels: int, kernel: int):
        super().__init__()
        self.dilated = nn.ModuleList(_conv(channels, channels, kernel, dilation=d) for d in DILATIONS)
        self.plain = nn.ModuleList(_conv(channels, channels, kernel) for _ in DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, SLOPE)), SLOPE))
        return x


def _conv(inside: int, outside: int, kernel: int, *, dilation: int = 1) -> nn.Module:
    return weight_norm(nn.Conv1d(inside, outside, kernel, padding=(kernel - 1) * dilation // 2, dilation=dilation))


class Generator(nn.Module):
    """Spectra (n, 80, frames) -> sound (n, 1, 256 * frames)."""

    def __init__(self, width: int = 512):
        super().__init__()
        self.first = _conv(MELS, width, 7)
        self.grow, self.residuals = nn.ModuleList(), nn.ModuleList()
        for rate in RATES:
            grown = nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, rate // 2)
            width //= 2
            self.grow.append(weight_norm(grown))
            self.residuals.append(nn.ModuleList(Residual(width, kernel) for kernel in KERNELS))
        self.last = _conv(width, 1, 7)

    def forward(self, spectra: Tensor) -> Tensor:
        x = self.first(spectra)
        for grow, residuals in zip(self.grow, self.residuals, strict=True):
            x = grow(F.leaky_relu(x, SLOPE))
            x = sum(residual(x) for residual in residuals) / len(KERNELS)  # type: ignore[assignment]
        return torch.tanh(self.last(F.leaky_relu(x)))


class PeriodDiscriminator(nn.Module):
    """Looks at every p-th number: sound (n, 1, length) -> what its layers make."""

    def __init__(self, period: int):
        super().__init__()
        self.period, widths = period, (1, 32, 128, 512, 1024)
        layers = [nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in pairwise(widths)]
        layers += [nn.Conv2d(1024, 1024, (5, 1), 1, (2, 0)), nn.Conv2d(1024, 1, (3, 1), 1, (1, 0))]
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)

    def forward(self, sound: Tensor) -> list[Tensor]:
        n, channels, length = sound.shape
        if length % self.period:
            sound = F.pad(sound, (0, self.period - length % self.period), "reflect")
        return _layers(self.layers, sound.view(n, channels, -1, self.period))


class ScaleDiscriminator(nn.Module):
    """Looks at all numbers with grouped convolutions: sound (n, 1, length) -> what its layers make."""

    def __init__(self, norm: Any):
        super().__init__()
        layers = [
            nn.Conv1d(1, 128, 15, 1, 7),
            nn.Conv1d(128, 128, 41, 2, 20, groups=4),
            nn.Conv1d(128, 256, 41, 2, 20, groups=16),
            nn.Conv1d(256, 512, 41, 4, 20, groups=16),
            nn.Conv1d(512, 1024, 41, 4, 20, groups=16),
            nn.Conv1d(1024, 1024, 41, 1, 20, groups=16),
            nn.Conv1d(1024, 1024, 5, 1, 2),
            nn.Conv1d(1024, 1, 3, 1, 1),
        ]
        self.layers = nn.ModuleList(norm(layer) for layer in layers)

    def forward(self, sound: Tensor) -> list[Tensor]:
        return _layers(self.layers, sound)


def _layers(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    maps = []
    for layer in layers:
        x = layer(x)
        x = x if layer is layers[-1] else F.leaky_relu(x, SLOPE)
        maps.append(x)
    return maps


class Judges(nn.Module):
    """All discriminators: five periods and three scales."""

    def __init__(self) -> None:
        super().__init__()
        self.periods = nn.ModuleList(PeriodDiscriminator(period) for period in PERIODS)
        self.scales = nn.ModuleList(ScaleDiscriminator(norm) for norm in (spectral_norm, weight_norm, weight_norm))

    def forward(self, sound: Tensor) -> list[list[Tensor]]:
        maps = [judge(sound) for judge in self.periods]
        for number, judge in enumerate(self.scales):
            sound = F.avg_pool1d(sound, 4, 2, 1) if number else sound
            maps.append(judge(sound))
        return maps


class HifiGan(nn.Module):
    """The generator, its discriminators, and mel spectra of sound (n, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.judges = Generator(), Judges()
        self.register_buffer("window", torch.ones(4 * HOP))
        self.register_buffer("mels", torch.ones(MELS, 2 * HOP + 1))

    def spectra(self, sound: Tensor) -> Tensor:
        padded = F.pad(sound[:, None], (3 * HOP // 2, 3 * HOP // 2), "reflect")[:, 0]
        parts = torch.view_as_real(torch.stft(padded, 4 * HOP, HOP, 4 * HOP, self.window, center=False, return_complex=True))
        return (self.mels @ (parts.square().sum(-1) + 1e-9).sqrt()).clamp(min=1e-5).log()


def hifigan_step(context: Any, batch: dict[str, Tensor]) -> Tensor:
    """One update of the discriminators, then one of the generator."""
    model, sound = context.model, batch["sound"][:, None]
    made = model.generator(batch["spectra"])
    real, false = model.judges(sound), model.judges(made.detach())
    judged = sum((1 - a[-1]).square().mean() + b[-1].square().mean() for a, b in zip(real, false, strict=True))
    context.backward(judged)
    context.update("judges")
    for parameter in model.judges.parameters():
        parameter.requires_grad_(False)
    near = 45 * F.l1_loss(model.spectra(made.float().squeeze(1)), batch["spectra"])
    real, false = model.judges(sound), model.judges(made)
    pairs = [(a, b) for reals, falses in zip(real, false, strict=True) for a, b in zip(reals, falses, strict=True)]
    alike = 2 * sum((a - b).abs().mean() for a, b in pairs)
    loss = near + alike + sum((1 - maps[-1]).square().mean() for maps in false)
    context.backward(loss)
    context.update("generator")
    for parameter in model.judges.parameters():
        parameter.requires_grad_(True)
    return loss.detach()


def sounds(n: int) -> dict[str, Tensor]:
    """Segments of sound (n, 8192) and their spectra (n, 80, 32)."""
    return {"sound": torch.randn(n, SEGMENT), "spectra": torch.randn(n, MELS, SEGMENT // HOP)}


class Transformer(nn.Module):
    """A feed-forward transformer of FastPitch: one head of 64, convolutions of three in place of products."""

    def __init__(self, layers: int = 6, width: int = 384, inner: int = 1536):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(layers):
            parts = {
                "qkv": nn.Linear(width, 3 * 64),
                "out": nn.Linear(64, width, bias=False),
                "widen": nn.Conv1d(width, inner, 3, padding=1),
                "narrow": nn.Conv1d(inner, width, 3, padding=1),
                "first": nn.LayerNorm(width),
                "second": nn.LayerNorm(width),
            }
            self.layers.append(nn.ModuleDict(parts))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            q, k, v = layer["qkv"](x).chunk(3, dim=-1)
            weights = F.softmax(q @ k.transpose(1, 2) / 8, dim=-1)
            x = layer["first"](x + layer["out"](weights @ v))
            wide = F.relu(layer["widen"](x.transpose(1, 2)))
            x = layer["second"](x + layer["narrow"](wide).transpose(1, 2))
        return x


class Predictor(nn.Module):
    """A number for each letter: x (n, letters, 384) -> (n, letters)."""

    def __init__(self, width: int = 384, filters: int = 256):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(a, filters, 3, padding=1) for a in (width, filters))
        self.norms = nn.ModuleList(nn.LayerNorm(filters) for _ in range(2))
        self.out = nn.Linear(filters, 1)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(F.relu(conv(x.transpose(1, 2))).transpose(1, 2))
        return self.out(x)[..., 0]


class Voice(nn.Module):
    """FastPitch and HiFi-GAN's generator: letters (n, 128) -> sound (n, 1, 256 * 693)."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(148, 384)
        self.encoder, self.decoder = Transformer(), Transformer()
        self.durations, self.pitch = Predictor(), Predictor()
        self.pitch_to_width = nn.Conv1d(1, 384, 3, padding=1)
        self.to_mels = nn.Linear(384, MELS)
        self.generator = Generator()

    def forward(self, letters: Tensor) -> Tensor:
        x = self.encoder(self.letters(letters))
        ends = self.durations(x).exp().cumsum(1)
        x = x + self.pitch_to_width(self.pitch(x)[:, None]).transpose(1, 2)
        frames = torch.arange(FRAMES, device=x.device, dtype=x.dtype)
        starts = F.pad(ends[:, :-1], (1, 0))
        of_letter = (starts[:, None] <= frames[:, None]) & (frames[:, None] < ends[:, None])
        return self.generator(self.to_mels(self.decoder(of_letter.to(x.dtype) @ x)).transpose(1, 2))


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """hifigan: training on segments. hifigan-voice: letters to sound; hifigan-voice-fp16: the whole model in fp16."""
    if name.startswith("hifigan-voice"):
        return Job(
            _in_fp16 if name.endswith("fp16") else Voice, _texts, lambda model, batch: model(batch["letters"]).sum(), name=name
        )
    optimizers = {
        part: lambda model, part=part: torch.optim.AdamW(getattr(model, part).parameters(), lr=3e-4, betas=(0.8, 0.99))
        for part in ("judges", "generator")
    }
    return Job(HifiGan, sounds, optimizer=optimizers, step=hifigan_step, name=name)


def _in_fp16() -> nn.Module:
    return Voice().half()


def _texts(n: int) -> dict[str, Tensor]:
    return {"letters": torch.randint(0, 148, (n, LETTERS))}


def _read(row: Any) -> Reading | Unscored:
    """Training: the throughput counts 80 "mels" a sample (train.py: x.size(0) * x.size(1), of spectra (n, 80, frames)), as the
    README's hours to train confirm. Inference in TorchScript, of letters to sound."""
    if row.task == "train":
        if "grad_accum=1" not in str(row.notes):
            return Unscored("accumulates with the generator run twice")
        return Reading("hifigan", per_sample=MELS)
    if any(line in row.source_path for line in ("#L561", "#L589", "#L613")):
        return Unscored("with a denoiser")
    mixed = row.precision == "amp-fp16"
    return Reading("hifigan-voice-fp16" if mixed else "hifigan-voice", precision="fp32" if mixed else None)


JOBS = {"hifigan": job_of}
ENTRIES = (Entry(EXAMPLES, "HiFiGAN", _read),)
