"""How many samples a second PyTorch's DataLoader prepares: images decoded, cropped and normalised, by number of workers."""

from __future__ import annotations

import importlib
import io
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from gpuwise.hardware.detect import detect_cpu
from gpuwise.measure.timing import summary
from gpuwise.results.measurement import MeasuredRow

BATCH = 16
IMAGES = 8
HEIGHT, WIDTH, CROP = 375, 500, 224  # the usual image of ImageNet, and what networks take of it
QUALITY = 90  # JPEG's: 85 KB of the images drawn here; ImageNet's are 108 KB (138 GB for 1.28 million, ILSVRC 2012)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # torchvision's, of ImageNet
MOST_WORKERS = 32
MOST_ROUNDS = 50
PATIENCE_S = 60.0  # for a batch


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Random images in memory, as JPEG where Pillow is installed, endlessly many samples of them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        coarse = torch.rand(IMAGES, 3, HEIGHT // 4, WIDTH // 4, generator=generator)
        smooth = F.interpolate(coarse, (HEIGHT, WIDTH), mode="bilinear")
        pixels = (smooth * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        self.pillow = _pillow()
        self._images: list[Any] = [self._encoded(image) for image in pixels] if self.pillow else list(pixels)

    @property
    def what(self) -> str:
        decoded = "decode a JPEG of" if self.pillow else "take pixels of"
        return f"{decoded} {WIDTH} × {HEIGHT}, crop {CROP} × {CROP}, flip, normalise"

    def __len__(self) -> int:
        return 2**30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self._images[index % IMAGES]
        pixels = self._decoded(image) if self.pillow else image
        generator = torch.Generator().manual_seed(index)
        top, left, flip = (int(torch.randint(most, (), generator=generator)) for most in (HEIGHT - CROP, WIDTH - CROP, 2))
        sample = pixels[top : top + CROP, left : left + CROP].permute(2, 0, 1).float().div_(255)
        sample = sample.flip(2) if flip else sample
        return sample.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(DEVIATION).view(3, 1, 1)), index

    def _encoded(self, pixels: torch.Tensor) -> bytes:
        file = io.BytesIO()
        self.pillow.fromarray(pixels.numpy()).save(file, "JPEG", quality=QUALITY)
        return file.getvalue()

    def _decoded(self, jpeg: bytes) -> torch.Tensor:
        image = self.pillow.open(io.BytesIO(jpeg))
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(HEIGHT, WIDTH, 3)


def rows(budget_s: float, device: torch.device, say: Callable[[str], None]) -> Iterator[MeasuredRow]:
    """Rows of group "loader", seconds of a batch of sizes["samples"] samples, by sizes["workers"]: 0, 1, one a processor."""
    images = Images()
    if not images.pillow:
        say("Pillow is not installed: the loader is measured without decoding JPEG.")
    counts = sorted({0, 1, min(detect_cpu().threads, MOST_WORKERS)})
    for workers in counts:
        try:
            yield _row(images, workers, budget_s / len(counts))
        except (RuntimeError, OSError) as error:  # a worker that died, of too small a /dev/shm say; no process to be had
            say(f"the loader with {workers} workers was left out: {' '.join(str(error).split())[:160]}")


def _row(images: Images, workers: int, budget_s: float) -> MeasuredRow:
    began = time.perf_counter()
    loader = DataLoader(images, batch_size=BATCH, num_workers=workers, timeout=PATIENCE_S if workers else 0)
    batches = iter(loader)
    # Workers deliver in turn: a round is a batch of each. The first rounds wait for them to start.
    group, seconds, first = max(1, workers), [], None
    try:
        for place in itertools.count():
            start = time.perf_counter()
            taken = [next(batches) for _ in range(group)]
            first = first or taken[0]
            if place:
                seconds.append((time.perf_counter() - start) / group)
            if len(seconds) >= MOST_ROUNDS or (len(seconds) >= 3 and time.perf_counter() - began > budget_s):
                break
    finally:
        shut_down = getattr(batches, "_shutdown_workers", None)  # what its __del__ calls, which may come late
        with suppress(Exception):
            if shut_down is not None:
                shut_down()
    assert first is not None
    samples, indices = first
    right = all(torch.equal(sample, images[int(index)][0]) for sample, index in zip(samples[:4], indices[:4], strict=True))
    return MeasuredRow(
        "loader",
        images.what,
        summary(seconds),
        "fp32",
        {"workers": workers, "samples": BATCH},
        bytes=samples.nbytes,
        verified=right,
    )


def _pillow() -> Any:
    """PIL.Image, None where it is not installed."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        return None
