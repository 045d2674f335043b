"""SSD300 on ResNet-50, as NVIDIA's DeepLearningExamples have it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.support.published_latency import LARGEST_BATCH
from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from gpuwise.job import Job
from gpuwise.job.torchvision_cpu import make_importable


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
    matched = batch["classes"] > 0
    count = matched.sum(dim=1, keepdim=True)
    near = (F.smooth_l1_loss(boxes.float(), batch["boxes"], reduction="none").sum(dim=1) * matched).sum(dim=1)
    entropy = F.cross_entropy(scores.float(), batch["classes"], reduction="none")
    rank = entropy.detach().masked_fill(matched, 0.0).argsort(dim=1, descending=True).argsort(dim=1)
    kept = matched | (rank < 3 * count)
    return ((near + (entropy * kept).sum(dim=1)) / count.squeeze(1).clamp(min=1)).mean()


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """SSD300 on images of 300 x 300."""
    make_importable()
    return Job(Ssd300, detection_batch, detection_loss, optimizer="momentum", name=name, sample_unit="image", image_size=300)


def _read(row: Any) -> Reading | Unscored:
    """Images lie channels last with AMP. A timed step loads its batch and copies it, and no other runs meanwhile
    (benchmark_inference_loop of ssd/train.py). Small batches set the host's figures (benchmarks.support.published_latency)."""
    if row.task != "infer":
        return Unscored("see accuracy.md, accuracy-several.md")
    if row.batch_per_gpu <= LARGEST_BATCH:
        return Unscored("the host was fitted to it")
    return Reading(
        "ssd300", (("image_size", 300),), channels_last=row.precision == "amp-fp16", waits_for_batch=True, loads=True
    )


JOBS = {"ssd300": job_of}
ENTRIES = (Entry(EXAMPLES, "SSD", _read),)
