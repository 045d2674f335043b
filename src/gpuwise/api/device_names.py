"""The device names that users give in `on` and `own`, checked before any work."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.device import parse_device
from gpuwise.hardware.names import split_device


def device_names(on: str | Sequence[str]) -> list[str]:
    """The devices in a list or in a comma-separated text. Raises InputError."""
    if not isinstance(on, str) and not (isinstance(on, Sequence) and all(isinstance(name, str) for name in on)):
        raise InputError(f"devices are named in a text or a list of texts, got {on!r}.", ['on="rtx-4090,h100-sxm:8"'])
    names = [name.strip() for name in (on.split(",") if isinstance(on, str) else on)]
    if not names or not all(names):
        raise InputError(f"cannot read the devices {on!r}.", ["write them like rtx-4090,h100-sxm:8"])
    return names


def one_machine(text: str, flag: str) -> str:
    """The text unchanged. Raises UnsupportedError if it names devices of several machines."""
    name, count, machines = split_device(text)
    if machines == 1 and count is not None and name.strip().lower() not in ("here", "cpu"):
        cluster = parse_device(text).cluster
        count, machines = cluster.devices_per_machine, cluster.machines
    if machines > 1:
        raise UnsupportedError(f"{text!r}: plans use one machine so far.", [f"{flag} {name}:{count}"])
    return text


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
