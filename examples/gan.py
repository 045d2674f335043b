"""A GAN: two networks, two optimizers and a step of its own, on the 1,797 handwritten digits that ship with scikit-learn.

    gpuwise train examples/gan.py:job --epochs 80 --micro-batch 128

The distance between generated and real digits (of the means and
covariances of their pixels, after Fréchet) falls from 11 to about 3.4.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gpuwise import Job

PIXELS, NOISE, WIDTH = 64, 16, 128


class Gan(nn.Module):
    """generator: noise (n, NOISE) -> images (n, PIXELS) with values 0 to 1; discriminator: images -> logits (n, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(NOISE, WIDTH),
            nn.LeakyReLU(0.2),
            nn.Linear(WIDTH, WIDTH),
            nn.LeakyReLU(0.2),
            nn.Linear(WIDTH, PIXELS),
            nn.Sigmoid(),
        )
        self.discriminator = nn.Sequential(
            nn.Linear(PIXELS, WIDTH),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.2),
            nn.Linear(WIDTH, WIDTH),
            nn.LeakyReLU(0.2),
            nn.Linear(WIDTH, 1),
        )


def guess(logits: Tensor, *, real: bool) -> Tensor:
    """The loss of a guess; labels of real images are smoothed (Salimans et al., 2016)."""
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, 0.9 if real else 0.0))


def step(context, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The discriminator learns to tell real from generated images, then the generator to deceive it."""
    model, real = context.model, batch["image"]
    fake = model.generator(torch.randn(len(real), NOISE, device=real.device))

    context.zero_grad("discriminator")
    of_discriminator = guess(model.discriminator(real), real=True) + guess(model.discriminator(fake.detach()), real=False)
    context.backward(of_discriminator)
    context.update("discriminator")

    context.zero_grad("generator")
    of_generator = guess(model.discriminator(fake), real=True)
    context.backward(of_generator)
    context.update("generator")
    return {"loss": of_discriminator + of_generator, "discriminator": of_discriminator, "generator": of_generator}


@cache
def digits() -> Tensor:
    """Images (1797, PIXELS), values 0 to 1."""
    return torch.tensor(load_digits().data, dtype=torch.float32) / 16


def distance(images: Tensor, others: Tensor) -> float:
    """Fréchet's, between the normal distributions with the means and covariances of two sets of images (Heusel et al., 2017,
    there of features of a network)."""
    (mean, covariance), (mean2, covariance2) = ((x.mean(0), torch.cov(x.T)) for x in (images.double(), others.double()))
    roots = torch.linalg.eigvals(covariance @ covariance2).real.clamp(min=0).sqrt().sum()
    return float((mean - mean2).pow(2).sum() + covariance.trace() + covariance2.trace() - 2 * roots)


@torch.no_grad()
def evaluate(model: nn.Module) -> dict[str, float]:
    noise = torch.randn(1797, NOISE, generator=torch.Generator().manual_seed(0))
    device = next(model.parameters()).device
    return {"distance": distance(model.generator(noise.to(device)).cpu(), digits())}


job = Job(
    model=Gan,
    batch=lambda n: {"image": torch.rand(n, PIXELS)},
    step=step,
    optimizer={
        "discriminator": lambda model: torch.optim.Adam(model.discriminator.parameters(), lr=4e-4, betas=(0.5, 0.999)),
        "generator": lambda model: torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
    },
    ema_decay=0.995,
    data=lambda: {"image": digits()},
    samples=1797,
    evaluate=evaluate,
    name="gan",
    sample_unit="image",
)
