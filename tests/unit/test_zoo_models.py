"""Models of the zoo, written from descriptions, have the sizes that their authors report, and their losses a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.zoo import segmentation, speech, voices  # noqa: E402

from gpuwise.strategy import Strategy  # noqa: E402
from gpuwise.tracing import record  # noqa: E402


def parameters(make: Callable[[], Any]) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


@pytest.mark.parametrize(
    ("make", "millions"),
    [
        (speech.Jasper, 333),  # "Jasper DR 10x5", table 4 of arXiv:1904.03288
        (voices.Generator, 13.92),  # V1, table 1 of arXiv:2010.05646, without the directions that weight norm adds
    ],
)
def test_parameters_are_those_that_the_papers_report(make: Callable[[], Any], millions: float) -> None:
    assert parameters(make) == pytest.approx(millions * 1e6, rel=0.01)


@pytest.mark.parametrize(("dims", "places"), [(2, (6, 5)), (3, (4, 4, 4))])
def test_nnunet_halves_its_patch_until_four_places_a_side_are_left(dims: int, places: tuple[int, ...]) -> None:
    model = segmentation.NnUnet(dims).to("meta")
    x = model.first(torch.empty(1, segmentation.MODALITIES, *segmentation.PATCHES[dims], device="meta"))
    for block in model.down:
        x = block(x)
    assert tuple(x.shape[2:]) == places


@pytest.mark.parametrize("name", ["unet3d", "nnunet-2d"])
def test_segmentation_is_recorded_on_a_gpu_and_on_a_cpu(name: str) -> None:
    job = segmentation.job_of(name, {"image_size": 32}, half=False)
    for target in ("accelerator", "cpu"):
        step = record(job, Strategy(micro_batch=1), target=target)
        assert step.operations.column("flops").sum() > 0
