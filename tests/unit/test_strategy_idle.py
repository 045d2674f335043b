"""Settings that change nothing without another one are refused where the user names them."""

from collections.abc import Mapping

import pytest
import torch
from torch import nn

import gpuwise
from gpuwise.errors import InputError
from gpuwise.job import Job
from gpuwise.strategy import Mesh, Parallelism, check_settings_work
from gpuwise.strategy.idle import AXIS_SETTINGS

NAMED: dict[str, object] = {
    "shard": "gradients",
    "sequence_parallel": True,
    "loss_parallel": True,
    "context": "ring",
    "pipeline_schedule": "gpipe",
    "stages_per_rank": 2,
    "compress_gradients": True,
}


def test_every_parallel_setting_is_of_an_axis() -> None:
    assert set(AXIS_SETTINGS) == set(Parallelism.__dataclass_fields__) == set(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_refused_on_one_device_and_taken_on_its_axis(name: str) -> None:
    settings = {name: NAMED[name]}
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} changes nothing here"):
        check_settings_work(settings, Mesh())
    check_settings_work(settings, Mesh(dp_shard=2, tp=2, pp=2, cp=2))
    check_settings_work({name: getattr(Parallelism(), name)}, Mesh())  # the default asks for nothing
    check_settings_work({name: None}, Mesh())


def test_rank_of_an_adapter() -> None:
    with pytest.raises(InputError, match="--adapter-rank changes nothing"):
        check_settings_work({"adapter_rank": 4}, Mesh())
    check_settings_work({"adapter_rank": 4}, Mesh(), adapter="lora")


@pytest.mark.parametrize("settings", [{"compress_gradients": True}, {"adapter_rank": 4}, {"context": "ring"}])
def test_verbs_refuse(settings: Mapping[str, object]) -> None:
    for ask in (
        lambda: gpuwise.forecast("gpt2", on="rtx-4090", **settings),  # type: ignore[arg-type]
        lambda: gpuwise.scale("gpt2", on="rtx-4090:2", **settings),  # type: ignore[arg-type]
        lambda: gpuwise.validate("gpt2", **settings),  # type: ignore[arg-type]
    ):
        if "compress_gradients" in settings and ask.__code__.co_names[-1] == "scale":
            continue  # replicas grow there, whose gradients are added up
        with pytest.raises(InputError, match="changes nothing"):
            ask()


def test_what_is_split_without_a_mesh_makes_shards() -> None:
    split = gpuwise.forecast("gpt2", on="rtx-4090:2", micro_batch=1, shard="optimizer").strategy
    assert (split.mesh, split.parallelism.shard) == (Mesh(dp_shard=2), "optimizer")
    assert gpuwise.forecast("gpt2", on="rtx-4090:2", micro_batch=1).strategy.mesh == Mesh(dp_replicate=2)


def test_plan_refuses_a_rank_without_an_adapter() -> None:
    with pytest.raises(InputError, match="--adapter-rank changes nothing"):
        gpuwise.plan("gpt2", samples="5k", on="t4", adapter_rank=4)


def _job(model: type[nn.Module], *shape: int) -> Job:
    return Job(
        model=model,
        batch=lambda n: {"x": torch.zeros(n, *shape)},
        loss=lambda module, batch: module(batch["x"]).sum(),
    )


class _Rows(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(24, 2))  # volumes and sequences stay as they are


class _Pooled(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 2))  # no weight of images, but their batch


def test_channels_last_needs_images() -> None:
    for ask in (
        lambda: gpuwise.forecast("gpt2", on="rtx-4090", channels_last=True),
        lambda: gpuwise.fit("gpt2", on="rtx-4090", channels_last=True),
        lambda: gpuwise.compare("gpt2", on=["rtx-4090", "t4"], channels_last=True),
        lambda: gpuwise.scale("gpt2", on="rtx-4090:2", channels_last=True),
        lambda: gpuwise.plan("gpt2", samples="5k", on="t4", channels_last=True),
        lambda: gpuwise.forecast(_job(_Rows, 3, 8), on="rtx-4090", channels_last=True),
        lambda: gpuwise.Trainer(_job(_Rows, 3, 8), steps=1, channels_last=True, progress="silent"),
    ):
        with pytest.raises(InputError, match="--channels-last changes nothing here"):
            ask()
    assert gpuwise.forecast(_job(_Pooled, 3, 8, 8), on="rtx-4090", channels_last=True, micro_batch=2).strategy.channels_last
    assert not gpuwise.forecast("gpt2", on="rtx-4090", micro_batch=1, channels_last=False).strategy.channels_last
