"""Models of the zoo, written from descriptions, have the sizes that their authors report, and their losses a gradient."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.zoo import (  # noqa: E402
    efficient_detection,
    molecules,
    segmentation,
    speech,
    speech_pretraining,
    voices,
)

from gpuwise.strategy import Strategy  # noqa: E402
from gpuwise.tracing import record  # noqa: E402

with_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")


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


@with_timm
def test_efficientdet_has_the_size_of_its_paper() -> None:
    assert round(parameters(efficient_detection.EfficientDet) / 1e6, 1) == 3.9  # D0, table 2 of arXiv:1911.09070


def test_flows_of_molecules_are_their_own_inverse() -> None:
    flow, data = molecules.BondFlow(swap=True).eval(), torch.randn(2, 1600, 2, 2)
    atoms, made = molecules.AtomFlow(3).eval(), torch.randn(2, molecules.ATOMS, molecules.KINDS)
    bonds = molecules.molecules(2)["bonds"]
    with torch.no_grad():
        assert torch.allclose(flow.reverse(flow(data)[0]), data, atol=1e-5)
        assert torch.allclose(atoms.reverse(bonds, atoms(bonds, made)[0]), made, atol=1e-5)


def test_convolutions_of_sound_leave_a_frame_for_320_numbers() -> None:
    sound = torch.empty(1, 1, 4000, device="meta")
    model = speech_pretraining.Encoder().to("meta")
    for conv in model.convs:
        sound = conv(sound)
    assert sound.shape[-1] == speech_pretraining.frames(4000)
    assert speech_pretraining.frames(250_000) == 781  # of 15.6 s, 49 a second (section 4.2 of arXiv:2006.11477)


@with_timm
def test_an_update_of_detection_has_a_gradient_for_every_parameter() -> None:
    model = efficient_detection.EfficientDet().train()
    efficient_detection.detection_loss(model, efficient_detection.images(1)).backward()
    assert all(p.grad is not None for p in model.parameters())
