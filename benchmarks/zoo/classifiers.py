"""Classifiers of images that tables outside of timm time: VGG and ResNet in whole precisions, and Swin."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import Entry, Reading, Unscored
from gpuwise.job import Job
from gpuwise.job.torchvision_cpu import make_importable

PAIRS = "u39kun/deep-learning-benchmark"
SWIN = "microsoft/Swin-Transformer"
SWIN_BATCH = 64  # of `main.py --throughput` (get_started.md)
SWINS = {"Swin-S": "small", "Swin-B": "base", "Swin-L": "large"}
SIDE, CLASSES = 224, 1000


def classifier(name: str, *, half: bool) -> nn.Module:
    """A classifier of torchvision; half: in fp16 as a whole."""
    make_importable()
    from torchvision.models import get_model

    model = get_model(name, weights=None)
    return model.half() if half else model  # type: ignore[no-any-return]


def images(n: int, *, half: bool) -> dict[str, Tensor]:
    """Images (n, 3, 224, 224) and their classes (n,)."""
    pixels = torch.randn(n, 3, SIDE, SIDE)
    return {"images": pixels.half() if half else pixels, "classes": torch.randint(0, CLASSES, (n,))}


def entropy(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Cross entropy in training; else the scores, which are not compared with anything."""
    scores: Tensor = model(batch["images"])
    return F.cross_entropy(scores, batch["classes"]) if model.training else scores


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """classify-<torchvision's name>, with -fp16 for the whole model in fp16."""
    whole = name.endswith("-fp16")
    model = name.removeprefix("classify-").removesuffix("-fp16")
    return Job(
        partial(classifier, model, half=whole),
        partial(images, half=whole),
        entropy,
        optimizer="sgd",
        name=name,
        sample_unit="image",
        image_size=SIDE,
    )


def _read_pair(row: Any) -> Reading:
    """Training is a forward and a backward pass, without an update; fp16 is the whole model in fp16."""
    whole = row.precision == "fp16"
    job = f"classify-{row.model}" + "-fp16" * whole
    return Reading(job, (("image_size", SIDE),), precision="fp32" if whole else None, update=False, collectives=False)


def _read_swin(row: Any) -> Reading | Unscored:
    """The table has neither batch nor precision: its program's are taken, fp32 on a V100."""
    side = int(row.image_size)
    window = {224: 7, 384: 12}[side]
    job = f"timm:swin_{SWINS[row.model]}_patch4_window{window}_{side}"
    return Reading(job, (("image_size", side),), micro_batch=SWIN_BATCH, precision="fp32")


JOBS = {"classify": job_of}
ENTRIES = (
    *(Entry(PAIRS, model, _read_pair) for model in ("vgg16", "resnet152")),
    *(Entry(SWIN, model, _read_swin) for model in SWINS),
)
