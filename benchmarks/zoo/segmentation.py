"""nnU-Net of NVIDIA's DeepLearningExamples, in two and three dimensions, and the classic 3D U-Net (Çiçek et al. 2016)."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from gpuwise.job import Job

# Of task 01 (brain tumours), which its benchmark takes: data_preprocessing/configs.py of PyTorch/Segmentation/nnUNet; four
# modalities, three kinds of tissue and the background. Patches are halved until a side would fall below 4, five times at most.
PATCHES = {2: (192, 160), 3: (128, 128, 128)}
MODALITIES, CLASSES, SMALLEST, DEPTH = 4, 4, 4, 5
# Channels double from 32 up to 320 in 3D and 512 in 2D (MONAI's DynUNet).
LARGEST = {2: 512, 3: 320}


class FusedInstanceNorm(nn.BatchNorm3d):
    """Stands for the example's instance norm of volumes with channels innermost (utils/instance_norm.py), a kernel of nvFuser.

    PyTorch's batch norm moves the same bytes in the same layout, over all volumes at once. PyTorch's own instance norm would
    copy to another layout first.
    """


def _conv(dims: int, inside: int, outside: int, stride: int, last: bool) -> nn.Sequential:
    convolution, norm = (nn.Conv2d, nn.InstanceNorm2d) if dims == 2 else (nn.Conv3d, nn.InstanceNorm3d)
    make = FusedInstanceNorm(outside, track_running_stats=False) if last else norm(outside, affine=True)
    return nn.Sequential(convolution(inside, outside, 3, stride, 1, bias=False), make, nn.LeakyReLU(0.01, inplace=True))


def _block(dims: int, inside: int, outside: int, *, stride: int = 1, last: bool = False) -> nn.Sequential:
    return nn.Sequential(_conv(dims, inside, outside, stride, last), _conv(dims, outside, outside, 1, last))


class NnUnet(nn.Module):
    """Images (n, modalities, *patch) -> logits (n, classes, *patch)."""

    def __init__(self, dims: int, *, modalities: int = MODALITIES, classes: int = CLASSES, last: bool = False):
        super().__init__()
        depth, side = 0, min(PATCHES[dims])
        while depth < DEPTH and side >= 2 * SMALLEST:
            depth, side = depth + 1, side // 2
        widths = [min(32 * 2**level, LARGEST[dims]) for level in range(depth + 1)]
        transposed = nn.ConvTranspose2d if dims == 2 else nn.ConvTranspose3d
        self.first = _block(dims, modalities, widths[0], last=last)
        self.down = nn.ModuleList(_block(dims, a, b, stride=2, last=last) for a, b in pairwise(widths))
        pairs = list(pairwise(widths))[::-1]
        self.up = nn.ModuleList(transposed(below, above, 2, 2) for above, below in pairs)
        self.merge = nn.ModuleList(_block(dims, 2 * above, above, last=last) for above, _ in pairs)
        self.out = (nn.Conv2d if dims == 2 else nn.Conv3d)(widths[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        maps = [self.first(images)]
        for block in self.down:
            maps.append(block(maps[-1]))
        x = maps.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), maps.pop()], dim=1))
        return self.out(x)


class Unet3d(nn.Module):
    """Images (n, channels, depth, height, width) -> logits (n, classes, ...): batch norm, max pooling, trilinear growth."""

    def __init__(self, *, channels: int = 1, classes: int = 3, widths: tuple[int, ...] = (32, 64, 128, 256)):
        super().__init__()
        inside = (channels, *widths)
        self.down = nn.ModuleList(_double(a, b // 2, b) for a, b in zip(inside, widths, strict=False))
        self.up = nn.ModuleList(_double(below + above, above, above) for above, below in pairwise(widths))
        self.out = nn.Conv3d(widths[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        maps, x = [], images
        for level, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if level else x)
            maps.append(x)
        x = maps.pop()
        for block in reversed(self.up):
            above = maps.pop()
            x = block(torch.cat([F.interpolate(x, size=above.shape[2:], mode="trilinear"), above], dim=1))
        return self.out(x)


def _double(inside: int, middle: int, outside: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in ((inside, middle), (middle, outside)):
        parts += [nn.Conv3d(a, b, 3, padding=1, bias=False), nn.BatchNorm3d(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts)


def volumes(n: int, *, channels: int, classes: int, sides: tuple[int, ...]) -> dict[str, Tensor]:
    """Images (n, channels, *sides) and their labels (n, *sides)."""
    return {"images": torch.randn(n, channels, *sides), "labels": torch.randint(0, classes, (n, *sides))}


def overlap_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Cross entropy, and one less the Dice overlap of each class but the background, over the whole batch."""
    logits, labels = model(batch["images"]), batch["labels"]
    share = F.softmax(logits.float(), dim=1)
    truth = torch.zeros_like(share).scatter_(1, labels[:, None], 1.0)
    over = [0, *range(2, share.dim())]
    common = (share * truth).sum(over)
    dice = 2 * common / (share.sum(over) + truth.sum(over) + 1e-5)
    return F.cross_entropy(logits.float(), labels) + (1 - dice[1:]).mean()


def forward_sum(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """A forward pass; nothing is compared."""
    return model(batch["images"]).sum()


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """nnunet-2d, nnunet-3d, nnunet-3d-last (channels innermost, as its mixed precision runs); unet3d."""
    if name == "unet3d":
        batch = partial(volumes, channels=1, classes=3, sides=(sizes.get("image_size", 64),) * 3)
        return Job(Unet3d, batch, overlap_loss, optimizer="adam", name=name, sample_unit="image")
    dims = 3 if "3d" in name else 2
    last = name.endswith("last")
    batch = partial(_channels_last if last else volumes, channels=MODALITIES, classes=CLASSES, sides=PATCHES[dims])
    model = partial(_model_last if last else NnUnet, dims)
    return Job(model, batch, overlap_loss, optimizer="adam", name=name, sample_unit="image")


def _model_last(dims: int) -> nn.Module:
    return NnUnet(dims, last=True).to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload,no-any-return]


def _channels_last(n: int, **shape: Any) -> dict[str, Tensor]:
    batch = volumes(n, **shape)
    return {**batch, "images": batch["images"].contiguous(memory_format=torch.channels_last_3d)}


def _read(row: Any) -> Reading | Unscored:
    """The example's own benchmark (scripts/benchmark.py): patches of task 01; with AMP in 3D, channels are innermost.

    Its loader reads whole volumes, copies them to the GPU and crops them there (BenchmarkPipeline of
    data_loading/dali_loader.py). In 2D a batch is one volume: inference of 32 and of 64 images takes equally long."""
    dims = str(row.model_detail)[0]
    if dims not in "23":
        return Unscored("dimensions unknown")
    last = dims == "3" and row.precision == "amp-fp16"
    return Reading(f"nnunet-{dims}d" + "-last" * last, loads=row.task == "infer")


JOBS = {"nnunet": job_of, "unet3d": job_of}
ENTRIES = (Entry(EXAMPLES, "nnUNet", _read),)
