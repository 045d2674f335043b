"""torchvision's operators of detection on a virtual device, and how many boxes its detection models keep.

What those models keep (`torch.where(mask)[0]`, non-maximum suppression) depends on the images. A forecast takes as many as
the model's own limits let through, function by function of torchvision: a row of COUNTS each, which a note repeats. Other
code that asks how many elements of a mask are true is refused, as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import FrameType
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from gpuwise.job.torchvision_cpu import stands_in
from gpuwise.tracing.kernels.autocast import full
from gpuwise.tracing.patching import patched

# A function of torchvision -> how many elements of a mask count in it; frame: that of its call.
CountRule = Callable[[Tensor, FrameType], int]
AUTOCAST = "AutocastPrivateUse1"
_libraries: list[torch.library.Library] = []  # a registration lives as long as its library


def _every(mask: Tensor, frame: FrameType) -> int:
    return mask.numel()


def _one_per_row(mask: Tensor, frame: FrameType) -> int:
    """Of boxes of the truth (rows) and anchors: one anchor fits each box best."""
    return mask.shape[0]


def _equal_share(mask: Tensor, frame: FrameType) -> int:
    """The boxes of one level of the pyramid; those of all levels add up to all."""
    levels, level, boxes = (frame.f_locals[name] for name in ("num_levels", "level", "num_rois"))
    return (level + 1) * boxes // levels - level * boxes // levels


def _objects(mask: Tensor, frame: FrameType) -> int:
    """Of boxes sampled for training: the share that the sampler gives to objects."""
    heads = _caller(frame, "RoIHeads.forward").f_locals["self"]
    return int(mask.numel() * heads.fg_bg_sampler.positive_fraction)


def _one_per_box(mask: Tensor, frame: FrameType) -> int:
    """Of the scores of every box for every class but the background: each box is one detection."""
    return mask.numel() // max(1, frame.f_locals["num_classes"] - 1)


def _truth(mask: Tensor, frame: FrameType) -> int:
    """Of the anchors of an image: one for each of its objects."""
    objects: Tensor = frame.f_locals["targets_per_image"]["labels"]
    return objects.shape[0]


def _truth_or_every(mask: Tensor, frame: FrameType) -> int:
    """As `_truth`; every anchor is either an object or none."""
    return mask.numel() if mask is frame.f_locals.get("valid_idxs_per_image") else _truth(mask, frame)


def _candidates(mask: Tensor, frame: FrameType) -> int:
    """Of the scores of anchors: as many as the model passes on."""
    return min(mask.numel(), frame.f_locals["self"].topk_candidates)


def _equal_classes(mask: Tensor, frame: FrameType) -> int:
    """The boxes of one class, where classes are suppressed one after the other."""
    return mask.numel() // _classes(frame)


def _classes(frame: FrameType) -> int:
    """Classes of boxes that do not suppress each other: levels of the pyramid before the proposals, classes after them."""
    while "num_anchors_per_level" not in frame.f_locals and "num_classes" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    levels = frame.f_locals.get("num_anchors_per_level")
    return len(levels) if levels is not None else max(1, frame.f_locals["num_classes"] - 1)


# By file and function. Only what depends on the images is here: what was written into a mask is counted (tracing.counts).
COUNTS: dict[tuple[str, str], CountRule] = {
    ("ops/boxes.py", "remove_small_boxes"): _every,
    ("models/detection/rpn.py", "RegionProposalNetwork.filter_proposals"): _every,
    ("models/detection/_utils.py", "BalancedPositiveNegativeSampler.__call__"): _every,
    ("models/detection/_utils.py", "Matcher.set_low_quality_matches_"): _one_per_row,
    ("models/detection/roi_heads.py", "RoIHeads.postprocess_detections"): _one_per_box,
    ("models/detection/roi_heads.py", "RoIHeads.forward"): _objects,
    ("models/detection/roi_heads.py", "fastrcnn_loss"): _objects,
    ("models/detection/roi_heads.py", "keypointrcnn_loss"): _every,
    ("ops/poolers.py", "_multiscale_roi_align"): _equal_share,
    ("ops/boxes.py", "_batched_nms_vanilla"): _equal_classes,
    ("models/detection/retinanet.py", "RetinaNetClassificationHead.compute_loss"): _truth_or_every,
    ("models/detection/retinanet.py", "RetinaNetRegressionHead.compute_loss"): _truth,
    ("models/detection/retinanet.py", "RetinaNet.postprocess_detections"): _candidates,
    ("models/detection/fcos.py", "FCOS.postprocess_detections"): _candidates,
    ("models/detection/ssd.py", "SSD.compute_loss"): _every,
    ("models/detection/ssd.py", "SSD.postprocess_detections"): _candidates,
}
_NAMES = {name for _, name in COUNTS}


def assumed_count(mask: Tensor) -> int | None:
    """How many elements of a mask the function of torchvision that asks takes; None where another one asks."""
    rule, frame = _asking()
    try:
        return None if rule is None else rule(mask, frame)
    except KeyError:  # a version of torchvision whose variables have other names: its counts are refused, as other code's are
        return None


def assumed_classes() -> int | None:
    """How many classes the boxes have whose classes torchvision asks for; None where another one asks."""
    rule, frame = _asking()
    return _classes(frame) if rule is _equal_classes else None


def _asking() -> tuple[CountRule | None, FrameType]:
    """The rule of the function of torchvision that calls PyTorch now, and its frame; None where another one does."""
    here = frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        name, path = frame.f_code.co_qualname, frame.f_code.co_filename.replace("\\", "/")
        if name in _NAMES and "/torchvision/" in path:
            return COUNTS.get((path.rpartition("/torchvision/")[2], name)), frame
    return None, here


def _caller(frame: FrameType, name: str) -> FrameType:
    """The nearest call of a function around a frame, or the frame itself. Raises KeyError where there is none."""
    while frame.f_code.co_qualname != name:
        if frame.f_back is None:
            raise KeyError(name)
        frame = frame.f_back
    return frame


@contextmanager
def detecting() -> Iterator[None]:
    """Inside, torchvision takes its operators for there, whether or not they load beside this PyTorch."""
    with ExitStack() as stack:
        if "torchvision.ops.roi_align" in sys.modules:
            _register()
            for name in ("boxes", "roi_align"):
                module = sys.modules[f"torchvision.ops.{name}"]
                for question in ("_has_ops", "_assert_has_ops"):
                    if hasattr(module, question):
                        stack.enter_context(patched(module, question, lambda: True))
        heads = sys.modules.get("torchvision.models.detection.roi_heads")
        if heads is not None:
            stack.enter_context(patched(heads, "paste_mask_in_image", _paste_over_image))
        yield


def _paste_over_image(mask: Tensor, box: Tensor, height: int, width: int) -> Tensor:
    """torchvision's paste_mask_in_image of a box as large as the image: boxes have no values here."""
    resized = F.interpolate(mask[None, None], size=(height, width), mode="bilinear", align_corners=False)[0, 0]
    image = torch.zeros((height, width), dtype=mask.dtype, device=mask.device)
    image[:, :] = resized
    return image


@cache
def _register() -> None:
    """Shapes and derivatives of operators that exist by name only, and CUDA's casts under autocast: boxes and what is pooled
    in fp32 (torchvision/csrc/ops/autocast/roi_align_kernel.cpp and nms_kernel.cpp)."""
    if stands_in("roi_align"):
        shapes = sys.modules["torchvision._meta_registrations"]
        torch.library.register_fake("torchvision::roi_align", shapes.meta_roi_align)
        torch.library.register_fake("torchvision::_roi_align_backward", shapes.meta_roi_align_backward)
        torch.library.register_autograd("torchvision::roi_align", _gradients, setup_context=_remember)
    library = torch.library.Library("torchvision", "IMPL")
    pooled, suppressed = (full(getattr(torch.ops.torchvision, name).default) for name in ("roi_align", "nms"))
    library.impl("roi_align", lambda x, *args: cast(Tensor, pooled(x, *args)).to(x.dtype), AUTOCAST)
    library.impl("nms", suppressed, AUTOCAST)
    _libraries.append(library)


def _remember(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, rois, *rest = inputs
    ctx.save_for_backward(rois)
    vars(ctx).update(shape=x.shape, rest=rest)


def _gradients(ctx: torch.autograd.function.BackwardCFunction, grad: Tensor) -> tuple[Tensor | None, ...]:
    (rois,), (scale, height, width, sampling, aligned) = ctx.saved_tensors, vars(ctx)["rest"]
    backward = torch.ops.torchvision._roi_align_backward
    return (backward(grad, rois, scale, height, width, *vars(ctx)["shape"], sampling, aligned), *[None] * 6)
