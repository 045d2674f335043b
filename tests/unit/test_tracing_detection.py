"""Detection models of torchvision are recorded with as many boxes as their own limits let through, and say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from tests.quick import quick
from torch import Tensor, nn

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import record
from gpuwise.tracing.kernels import detection as kernels

make_importable()
pytest.importorskip("torchvision")

from torchvision.models import detection  # noqa: E402

SIDE = 256  # pixels; the pyramid has 64² + 32² + 16² + 8² + 4² places with 3 anchors each
OBJECTS = 3


def model(make: Callable[..., nn.Module]) -> Callable[[], nn.Module]:
    return lambda: make(weights=None, weights_backbone=None, min_size=SIDE, max_size=SIDE)


def batch(n: int) -> dict[str, Any]:
    truth = {
        "boxes": torch.rand(OBJECTS, 4),
        "labels": torch.ones(OBJECTS, dtype=torch.int64),
        "masks": torch.zeros(OBJECTS, SIDE, SIDE, dtype=torch.uint8),
        "keypoints": torch.rand(OBJECTS, 17, 3),
    }
    return {"images": [torch.rand(3, SIDE, SIDE) for _ in range(n)], "targets": [dict(truth) for _ in range(n)]}


def losses(module: Any, data: dict[str, Any]) -> Tensor:
    return torch.stack(list(module(data["images"], data["targets"]).values())).sum()


def scores(module: Any, data: dict[str, Any]) -> Tensor:
    return torch.cat([image["scores"] for image in module(data["images"])]).sum()


def trace(make: Callable[..., nn.Module], mode: str, *, target: str = "accelerator", **settings: Any) -> Trace:
    loss = losses if mode == "train" else scores
    job = Job(model(make), batch, loss, optimizer="momentum", samples_in=lambda data: len(data["images"]))
    return record(job, Strategy(mode=mode, micro_batch=2, **settings), target=target).with_accumulation(1)


def calls(step: Trace, name: str, column: str = "bytes_written") -> list[int]:
    """A number of each call of an operator, in order."""
    numbers, names = step.operations.column(column), step.operations.name
    rows = zip(step.sequence.operation.tolist(), step.repeats.tolist(), strict=True)
    return [int(numbers[row]) for row, repeats in rows if names[row] == name and repeats]


def elements(step: Trace, name: str) -> list[int]:
    """Fp32 numbers that each call of an operator writes, in order."""
    return [size // 4 for size in calls(step, name)]


@pytest.mark.parametrize("precision", quick(["fp32", "amp-fp16"], slow=["amp-fp16"]))
def test_mask_rcnn_pools_what_its_sampler_and_its_pyramid_pass_on(precision: str) -> None:
    step = trace(detection.maskrcnn_resnet50_fpn, "train", precision=precision)
    pooled = elements(step, "torchvision.roi_align.default")
    boxes, objects = 2 * 512, 2 * 128  # the sampler's boxes of two images, and a quarter of them
    truth = [128 * 28 * 28] * 2
    assert pooled == [boxes // 4 * 256 * 7 * 7] * 4 + [objects // 4 * 256 * 14 * 14] * 4 + truth
    assert any(note.kind == "assumed-detections" for note in step.header.assumption_notes)


def test_two_images_in_inference_give_their_hundred_detections_each() -> None:
    step = trace(detection.maskrcnn_resnet50_fpn, "infer")
    pooled = elements(step, "torchvision.roi_align.default")
    assert pooled == [2 * 1000 // 4 * 256 * 7 * 7] * 4 + [2 * 100 // 4 * 256 * 14 * 14] * 4
    # Anchors before the proposals (1,000 of each larger level, 768, 192 and 48 of the others), and one detection a proposal.
    workspace_bytes = calls(step, "torchvision.nms.default", "workspace_bytes")
    boxes = [2 * 1000 + 768 + 192 + 48] * 2 + [1000] * 2
    assert workspace_bytes == [
        n * (16 + 8) + n * -(-n // 64) * 8 for n in boxes
    ]  # boxes in order, the order, a bit for each pair


def test_pooling_moves_what_a_hand_count_says() -> None:
    step = trace(detection.fasterrcnn_resnet50_fpn, "train")
    pooled, boxes = 2 * 512 // 4 * 256 * 7 * 7 * 4, 2 * 512 // 4 * 5 * 4  # bytes of a level's share
    samples = pooled * 2 * 2 * 4  # four neighbours of 2 x 2 samples of each number
    maps = [2 * 256 * side**2 * 4 for side in (64, 32, 16, 8)]
    assert calls(step, "torchvision.roi_align.default", "bytes_read") == [min(samples, size) + boxes for size in maps]
    backward = "torchvision._roi_align_backward.default"
    assert calls(step, backward, "bytes_read") == [pooled + boxes] * 4
    assert sorted(calls(step, backward)) == sorted(size + samples for size in maps)


OTHERS = [detection.fasterrcnn_resnet50_fpn, detection.keypointrcnn_resnet50_fpn, detection.retinanet_resnet50_fpn]


CASES = [*product(OTHERS, ("accelerator", "cpu"), ("train", "infer"))]
QUICK = [
    (OTHERS[0], "accelerator", "train"),
    (OTHERS[0], "cpu", "infer"),
    (OTHERS[1], "cpu", "train"),
    (OTHERS[2], "accelerator", "infer"),
]


@pytest.mark.parametrize(
    ("make", "target", "mode"),
    quick(CASES, slow=[case for case in CASES if case not in QUICK]),
)
def test_others_are_recorded_on_each_target(make: Callable[..., nn.Module], target: str, mode: str) -> None:
    step = trace(make, mode, target=target)
    assert Counter(step.operations.name)["torchvision.nms.default" if mode == "infer" else "aten.convolution.default"]


def test_what_is_written_into_a_mask_is_counted() -> None:
    def loss(module: nn.Module, data: dict[str, Tensor]) -> Tensor:
        rows = data["x"].new_zeros(len(data["x"]), dtype=torch.bool)
        rows[torch.arange(2, device=rows.device)] = True
        return module(data["x"])[torch.cat([rows, rows]).nonzero().squeeze(1) // 2].sum()

    step = record(Job(lambda: nn.Linear(4, 8), lambda n: {"x": torch.randn(n, 4)}, loss), Strategy(micro_batch=6))
    assert set(elements(step.with_accumulation(1), "aten.index.Tensor")) == {4 * 8}


def test_counts_of_a_torchvision_with_other_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(mask: Tensor, frame: Any) -> int:
        return int(frame.f_locals["not_there"])

    monkeypatch.setattr(kernels, "COUNTS", dict.fromkeys(kernels.COUNTS, renamed))
    with pytest.raises(JobError, match="depends on"):
        trace(detection.fasterrcnn_mobilenet_v3_large_320_fpn, "infer")


def test_the_job_s_own_masks_are_refused_as_ever() -> None:
    def loss(module: nn.Module, data: dict[str, Tensor]) -> Tensor:
        return module(data["x"])[data["x"][:, 0] > 0].sum()

    with pytest.raises(JobError, match=r"aten\.index.*depends on the data"):
        record(Job(lambda: nn.Linear(4, 8), lambda n: {"x": torch.randn(n, 4)}, loss), Strategy(micro_batch=6))


@pytest.mark.parametrize("target", ["accelerator", "cpu"])
def test_the_ctc_loss_holds_the_scores_of_full_alignments(target: str) -> None:
    frames, letters, samples, classes = 50, 12, 3, 29

    def loss(module: nn.Module, data: dict[str, Tensor]) -> Tensor:
        scores = module(data["x"]).log_softmax(-1).transpose(0, 1)
        return nn.functional.ctc_loss(scores, data["y"], data["x_length"], data["y_length"], reduction="sum")

    def data(n: int) -> dict[str, Tensor]:
        lengths = {"x_length": torch.full((n,), frames), "y_length": torch.full((n,), letters)}
        return {"x": torch.randn(n, frames, 8), "y": torch.randint(1, classes, (n, letters)), **lengths}

    job = Job(lambda: nn.Linear(8, classes), data, loss)
    step = record(job, Strategy(micro_batch=samples), target=target).with_accumulation(1)
    alignments = samples * frames * (2 * letters + 1) * 4
    assert calls(step, "aten._ctc_loss.Tensor") == [alignments + samples * 4]
    assert calls(step, "aten._ctc_loss_backward.Tensor") == [frames * samples * classes * 4]
    assert calls(step, "aten._ctc_loss_backward.Tensor", "workspace_bytes") == [alignments]
