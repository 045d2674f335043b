"""The R-CNN family of detectron2's model zoo, built of torchvision's parts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.entry import Entry, Reading, Unscored
from gpuwise.job import Job
from gpuwise.job.torchvision_cpu import make_importable

SOURCE = "facebookresearch/detectron2"
# The most common size of COCO's images, and seven objects in one on average (Lin et al. 2014, arXiv:1405.0312).
IMAGE, OBJECTS, CLASSES, KEYPOINTS = (480, 640), 7, 81, 17
# Short side of images in tests, and longest side (configs/Base-RCNN-FPN.yaml, COCO-Detection). In training each image gets one
# of six short sides from 640 to 800 at random, a batch is padded to its largest image, and all GPUs wait for the slowest: at
# least one of the 16 images of a published step gets 800 in 95 % of steps (1 - (5/6)^16).
SHORT_SIDE, LONGEST = 800, 1333
BACKBONES = {"r50": "resnet50", "r101": "resnet101", "x101": "resnext101_32x8d"}
TRAINED_STAGES = 3  # stem and first stage are frozen (MODEL.BACKBONE.FREEZE_AT = 2), and all batch norms


def rcnn(kind: str, depth: str, neck: str) -> nn.Module:
    """kind: faster | mask | keypoint; depth: a key of BACKBONES; neck: fpn | dc5."""
    make_importable()
    from torchvision.models import detection

    make = {"faster": detection.FasterRCNN, "mask": detection.MaskRCNN, "keypoint": detection.KeypointRCNN}[kind]
    # How many detections pass the threshold is unknown: as many as there are objects, not the hundred that are allowed.
    limits = {"min_size": SHORT_SIDE, "max_size": LONGEST, "box_detections_per_img": OBJECTS}
    classes = 2 if kind == "keypoint" else CLASSES
    if neck == "dc5":
        return make(_dilated(depth), classes, **limits, **_one_map(kind))  # type: ignore[no-any-return]
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.ops.misc import FrozenBatchNorm2d

    backbone = resnet_fpn_backbone(
        backbone_name=BACKBONES[depth], weights=None, norm_layer=FrozenBatchNorm2d, trainable_layers=TRAINED_STAGES
    )
    return make(backbone, classes, rpn_post_nms_top_n_train=1000, **limits)  # type: ignore[no-any-return]


def _dilated(depth: str) -> nn.Module:
    """A ResNet whose last stage is dilated in place of strided: 2,048 channels at a sixteenth of the image."""
    from torchvision.models import get_model
    from torchvision.ops.misc import FrozenBatchNorm2d

    whole = get_model(
        BACKBONES[depth], weights=None, norm_layer=FrozenBatchNorm2d, replace_stride_with_dilation=[False, False, True]
    )
    backbone = nn.Sequential(*list(whole.children())[:-2])
    for part in list(backbone)[:5]:  # convolution, norm, ReLU, pool, first stage
        part.requires_grad_(False)
    backbone.out_channels = 2048  # type: ignore[assignment]
    return backbone


def _one_map(kind: str) -> dict[str, Any]:
    """Anchors of all sizes on one map, and twelve thousand of them before suppression (configs/Base-RCNN-DilatedC5.yaml)."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    parts: dict[str, Any] = {
        "rpn_anchor_generator": AnchorGenerator(((32, 64, 128, 256, 512),), ((0.5, 1.0, 2.0),)),
        "box_roi_pool": MultiScaleRoIAlign(["0"], 7, 2),
        "rpn_pre_nms_top_n_train": 12000,
        "rpn_pre_nms_top_n_test": 6000,
    }
    if kind == "mask":
        parts["mask_roi_pool"] = MultiScaleRoIAlign(["0"], 14, 2)
    return parts


def images(n: int) -> dict[str, Any]:
    """n images (3, 480, 640), and of each the boxes, labels, masks and keypoints of seven objects."""
    truth = {
        "boxes": torch.rand(OBJECTS, 4),
        "labels": torch.ones(OBJECTS, dtype=torch.int64),
        "masks": torch.zeros(OBJECTS, *IMAGE, dtype=torch.uint8),
        "keypoints": torch.rand(OBJECTS, KEYPOINTS, 3),
    }
    return {"images": [torch.rand(3, *IMAGE) for _ in range(n)], "targets": [dict(truth) for _ in range(n)]}


def losses(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """In training the sum of the model's losses; else of the scores of its detections."""
    if model.training:
        return torch.stack(list(model(batch["images"], batch["targets"]).values())).sum()
    return torch.cat([image["scores"] for image in model(batch["images"])]).sum()


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """rcnn-<kind>-<depth>-<neck>, such as rcnn-mask-r50-fpn."""
    return Job(
        partial(rcnn, *name.split("-")[1:]),
        images,
        losses,
        optimizer="momentum",
        name=name,
        sample_unit="image",
        samples_in=lambda batch: len(batch["images"]),
    )


def _read(row: Any) -> Reading | Unscored:
    """Two images a GPU in training, one in tests."""
    kind, _, rest = str(row.model).partition(" R-CNN ")
    depth, *_, neck = rest.split(" ")[0].lower().split("-")
    if neck == "c4":
        return Unscored("its heads share a stage, which torchvision's do not")
    return Reading(f"rcnn-{kind.lower()}-{depth}-{neck}")


MODELS = (
    *(f"Faster R-CNN {name} 3x" for name in ("R50-FPN", "R101-DC5", "X101-32x8d-FPN")),
    *(f"Mask R-CNN {name}" for name in ("R50-FPN 1x", "R50-FPN 3x", "R101-FPN 3x", "R50-DC5 1x", "R50-DC5 3x", "R50-C4 1x")),
    *(f"Keypoint R-CNN {name} 3x" for name in ("R50-FPN", "R101-FPN")),
)
JOBS = {"rcnn": job_of}
ENTRIES = tuple(Entry(SOURCE, model, _read) for model in MODELS)
