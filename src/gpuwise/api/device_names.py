"""The device names that users give in `on` and `own`, checked before any work."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.api.devices import device_of
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.device import parse_device
from gpuwise.hardware.names import split_device


def device_names(on: str | Sequence[str]) -> list[str]:
    """The devices in a list or in a comma-separated text. Raises InputError."""
    if not isinstance(on, str) and not (isinstance(on, Sequence) and all(isinstance(name, str) for name in on)):
        raise InputError(f"devices are named in a text or a list of texts, got {on!r}.", ['on="rtx-4090,h100-sxm:8"'])
    names = [name.strip() for name in (on.split(",") if isinstance(on, str) else on)]
    if not names or not all(names):
        raise InputError(f"cannot read the devices {','.join(names)!r}.", ["write them like rtx-4090,h100-sxm:8"])
    return names


def distinct_devices(on: str | Sequence[str], catalog: Catalog) -> list[str]:
    """The devices in a list or in a comma-separated text, each once, under the first of its names. Raises InputError or
    UnknownNameError."""
    names: dict[tuple[str, bool], str] = {}
    for text in device_names(on):
        spec = device_of(text, catalog).spec
        names.setdefault((spec.cluster.name, spec.machine is None), text)
    return list(names.values())


def owned_machines(text: str) -> tuple[str, int, int]:
    """Chip, devices of a machine and number of machines that the user has: "rtx-4090:2", "h100-sxm:8x4". Raises InputError or
    UnknownNameError."""
    name, _, _ = split_device(text)
    if name.strip().lower() == "here":
        raise InputError(
            "this machine is always considered: --own is for others.", ["leave out --own here", "--on here considers it alone"]
        )
    cluster = parse_device(text).cluster  # an unknown chip, or more of it than a machine holds, is refused before any work
    return name, cluster.devices_per_machine, cluster.machines


def names_this_cpu(on: str | Sequence[str] | None) -> bool:
    """Whether plans are for this machine's CPU, alone or among few others, so that tracing for its settings pays off."""
    return on is not None and bool({name.partition(":")[0].strip().lower() for name in device_names(on)} & {"here", "cpu"})
