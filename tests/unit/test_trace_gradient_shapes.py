"""The shapes of gradients, at any size, are those of the model's parameters; every preset is sharded with them."""

from __future__ import annotations

import pytest
import torch

import gpuwise
from gpuwise.job.presets import preset_job
from gpuwise.trace.presets import load_preset
from gpuwise.trace.presets.table import PRESETS


@pytest.mark.parametrize(("name", "sizes"), [("vit-b16", {"image_size": 160}), ("vit-b16", {}), ("gpt2", {"seq_len": 256})])
def test_shapes_are_those_of_the_model_at_the_sizes(name: str, sizes: dict[str, int]) -> None:
    """Position embeddings of an image grow with it: of 14 x 14 patches and the class token there are 197."""
    family = load_preset(name, precision="amp-bf16")
    assert family is not None
    with torch.device("meta"):
        model = preset_job(name, **sizes).model()
    expected = sorted(tuple(parameter.shape) for parameter in model.parameters())
    assert sorted(family.at(**sizes).header.gradient_shapes) == expected


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_forecast_with_shards(name: str) -> None:
    forecast = gpuwise.forecast(name, on="h100-sxm:8x64", mesh="dp_shard=512", micro_batch=1)
    assert forecast.strategy.mesh.dp_shard == 512
