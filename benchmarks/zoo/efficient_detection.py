"""EfficientDet-D0 (Tan et al. 2020, arXiv:1911.09070), as NVIDIA's DeepLearningExamples train it, on timm's EfficientNet-B0."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from gpuwise.job import Job
from gpuwise.job.torchvision_cpu import make_importable

# Of section 4 and table 1 of the paper: width and cells of the pyramid, layers of the heads, anchors a place, levels 3 to 7.
WIDTH, CELLS, LAYERS, ANCHORS, LEVELS = 64, 3, 3, 9, 5
SIDE, CLASSES = 512, 90
# Images a GPU of scripts/D0/train-benchmark_*.sh, by precision and GPU.
BATCHES = {("amp-fp16", "A100"): 150, ("tf32", "A100"): 80, ("amp-fp16", "V100"): 60, ("fp32", "V100"): 30}


def _separable(inside: int, outside: int, *, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, inside, 3, padding=1, groups=inside, bias=False), nn.Conv2d(inside, outside, 1, bias=bias)
    )


def _resized(x: Tensor, like: Tensor) -> Tensor:
    """To the side of another level, one above or below."""
    if x.shape[-1] < like.shape[-1]:
        return F.interpolate(x, size=like.shape[-2:], mode="nearest")
    return x if x.shape[-1] == like.shape[-1] else F.max_pool2d(x, 3, 2, 1)


class Fusion(nn.Module):
    """Maps of several levels, weighted by numbers of their own that add up to one, and convolved (section 3.3)."""

    def __init__(self, inputs: int):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(inputs))
        self.conv, self.norm = _separable(WIDTH, WIDTH), nn.BatchNorm2d(WIDTH)

    def forward(self, maps: list[Tensor], like: Tensor) -> Tensor:
        weights = F.relu(self.weights)
        parts = [_resized(x, like) * (weights[i] / (weights.sum() + 1e-4)) for i, x in enumerate(maps)]
        return self.norm(self.conv(F.silu(torch.stack(parts, dim=-1).sum(dim=-1))))  # type: ignore[no-any-return]


class Cell(nn.Module):
    """A layer of the pyramid, down and up again: five maps (n, 64, side, side) -> the same (figure 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(Fusion(2) for _ in range(LEVELS - 1))
        self.up = nn.ModuleList(Fusion(3 if level < LEVELS - 1 else 2) for level in range(1, LEVELS))

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        middle = [maps[-1]]
        for fusion, x in zip(self.down, maps[-2::-1], strict=True):
            middle.insert(0, fusion([x, middle[0]], x))
        out = [middle[0]]
        for level, fusion in enumerate(self.up, start=1):
            inputs = [maps[level], middle[level]] if level < LEVELS - 1 else [maps[level]]
            out.append(fusion([*inputs, out[-1]], maps[level]))
        return out


class Head(nn.Module):
    """Numbers for each anchor of all levels; convolutions are shared, norms are not."""

    def __init__(self, numbers: int):
        super().__init__()
        self.convs = nn.ModuleList(_separable(WIDTH, WIDTH) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.ModuleList(nn.BatchNorm2d(WIDTH) for _ in range(LEVELS)) for _ in range(LAYERS))
        self.out = _separable(WIDTH, ANCHORS * numbers)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        out = []
        for level, x in enumerate(maps):
            for conv, norms in zip(self.convs, self.norms, strict=True):
                x = F.silu(norms[level](conv(x)))  # type: ignore[index]
            out.append(self.out(x))
        return out


class EfficientDet(nn.Module):
    """Images (n, 3, 512, 512) -> scores and boxes of five levels: (n, 9 × 90, side, side) and (n, 9 × 4, side, side)."""

    def __init__(self) -> None:
        super().__init__()
        make_importable()
        import timm

        self.backbone = timm.create_model("efficientnet_b0", features_only=True, out_indices=(2, 3, 4))
        widths = self.backbone.feature_info.channels()
        self.narrow = nn.ModuleList(nn.Sequential(nn.Conv2d(w, WIDTH, 1), nn.BatchNorm2d(WIDTH)) for w in (*widths, widths[-1]))
        self.cells = nn.ModuleList(Cell() for _ in range(CELLS))
        self.scores, self.boxes = Head(CLASSES), Head(4)

    def forward(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        features = self.backbone(images)
        maps = [narrow(x) for narrow, x in zip(self.narrow, (*features, features[-1]), strict=True)]
        maps[-1] = F.max_pool2d(maps[-1], 3, 2, 1)
        maps.append(F.max_pool2d(maps[-1], 3, 2, 1))
        for cell in self.cells:
            maps = cell(maps)
        return self.scores(maps), self.boxes(maps)


class FusedFocalLoss(torch.autograd.Function):
    """Stands for apex's fused focal loss: one kernel reads the logits and writes their gradient up to a factor, which backward
    multiplies. Its arithmetic is left out."""

    @staticmethod
    def forward(context: Any, logits: Tensor) -> Tensor:
        part = torch.sigmoid(logits)
        context.save_for_backward(part)
        return part.sum()

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (part,) = context.saved_tensors
        return part * grad


def images(n: int) -> dict[str, Tensor]:
    """Images (n, 3, 512, 512) and the box of each anchor (n, 4 × anchors)."""
    places = sum((SIDE // 2**level) ** 2 for level in range(3, 3 + LEVELS))
    return {"images": torch.randn(n, 3, SIDE, SIDE), "boxes": torch.randn(n, 4 * ANCHORS * places)}


def detection_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The focal loss of all scores, and fifty times the Huber loss of boxes of anchors that hold something."""
    scores, boxes = model(batch["images"])
    classes = torch.stack([FusedFocalLoss.apply(x.float()) for x in scores]).sum()
    flat = torch.cat([x.flatten(1) for x in boxes], dim=1).float()
    near = F.huber_loss(flat, batch["boxes"], delta=0.1, reduction="none") * (batch["boxes"] != 0)
    return classes + 50 * near.mean()


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """efficientdet-d0, with a moving average of its parameters."""
    return Job(
        EfficientDet,
        images,
        detection_loss,
        optimizer="momentum",
        ema_decay=0.999,
        name=name,
        sample_unit="image",
        image_size=SIDE,
    )


def _read(row: Any) -> Reading | Unscored:
    """Batches are those of the scripts of the benchmark; images lie contiguously."""
    if row.task != "train":
        return Unscored("times its data loader, and TorchScript")
    batch = BATCHES.get((row.precision, str(row.gpu)[:4]))
    return Reading("efficientdet-d0", (("image_size", SIDE),), micro_batch=batch) if batch else Unscored("batch unknown")


JOBS = {"efficientdet": job_of}
ENTRIES = (Entry(EXAMPLES, "Efficientdet", _read),)
