"""Settings that change nothing without another one: refused where the user names them.

Plans and files of other trainers may have them, where they do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.strategy.mesh import Mesh
from gpuwise.strategy.parallelism import Parallelism


@dataclass(frozen=True)
class AxisSetting:
    """A setting of an axis of the mesh.

    Attributes:
        works: whether a mesh has the axis.
        meaning: what the setting is about, in "the step has no ...".
        way_out: the mesh that it is for.
    """

    works: Callable[[Mesh], bool]
    meaning: str
    way_out: str


_TENSOR = (lambda mesh: mesh.tp > 1, "tensor-parallel layers", "--mesh tp=N")
_PIPELINE = (lambda mesh: mesh.pp > 1, "pipeline stages", "--mesh pp=N")
_SHARDS = (lambda mesh: mesh.dp_shard > 1, "shards", "--mesh dp_shard=N")
AXIS_SETTINGS = {
    "shard": AxisSetting(*_SHARDS),
    "sequence_parallel": AxisSetting(*_TENSOR),
    "loss_parallel": AxisSetting(*_TENSOR),
    "context": AxisSetting(lambda mesh: mesh.cp > 1, "parts of sequences", "--mesh cp=N"),
    "pipeline_schedule": AxisSetting(*_PIPELINE),
    "stages_per_rank": AxisSetting(*_PIPELINE),
    "compress_gradients": AxisSetting(
        lambda mesh: mesh.data_parallel * mesh.cp > 1, "gradients of several devices", "--mesh dp=N or dp_shard=N"
    ),
}


def check_settings_work(settings: Mapping[str, object], mesh: Mesh, *, adapter: object = None) -> None:
    """Refuses a named setting that would change nothing on a mesh.

    Arguments:
        settings: the user's settings by name; None and the values of Parallelism's defaults ask for nothing.
        mesh: the devices that share a step.
        adapter: the adapter that is trained; None or "none" for none.

    Raises InputError that names the setting and what it is for.
    """
    plain = Parallelism()
    for name, row in AXIS_SETTINGS.items():
        value = settings.get(name)
        if value is None or value == getattr(plain, name) or row.works(mesh):
            continue
        flag = f"--{name.replace('_', '-')}"
        raise InputError(f"{flag} changes nothing here: the step has no {row.meaning}.", [f"leave out {flag}", row.way_out])
    if settings.get("adapter_rank") is not None and adapter in (None, "none"):
        raise InputError(
            "--adapter-rank changes nothing here: no adapter is trained.", ["--adapter lora", "leave out --adapter-rank"]
        )


def check_layout_works(settings: Mapping[str, object], has_images: Callable[[], bool]) -> None:
    """Refuses channels_last, named for a job without images.

    Arguments:
        settings: the user's settings by name.
        has_images: whether the job has any; called only where channels_last is named.

    Raises InputError.
    """
    if settings.get("channels_last") and not has_images():
        raise InputError(
            "--channels-last changes nothing here: neither the model nor its batch has images.", ["leave out --channels-last"]
        )
