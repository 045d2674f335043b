"""What a target calls a chip of the catalog. The names and their sources are in data/device_names.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from gpuwise.errors import UnsupportedError


@dataclass(frozen=True)
class DeviceNames:
    """Names of chips at one target, or at a target and one provider.

    Attributes:
        source: where the names come from.
        as_of: when they were read there.
        names: name at the target by the chip's id.
        unsure: the same where the target has one name for several chips, so that no file says which one is bought.
    """

    source: str
    as_of: str
    names: Mapping[str, str] = field(hash=False)
    unsure: Mapping[str, str] = field(default_factory=dict, hash=False)


@cache
def device_tables() -> Mapping[str, DeviceNames]:
    """All tables, by name."""
    text = files("gpuwise.launch").joinpath("data", "device_names.toml").read_text(encoding="utf-8")
    return {name: DeviceNames(**table) for name, table in tomllib.loads(text).items()}


def device_name(table: str, chip: str, *, speaker: str, ways_out: Sequence[str] = ()) -> str:
    """The name of a chip in a table.

    Arguments:
        table: name of the table, such as "kubernetes" or "skypilot-aws".
        chip: id in the catalog.
        speaker: who uses the names, for the error: "SkyPilot at runpod".
        ways_out: what the user can do without a name.

    Raises UnsupportedError for a chip that the table lacks, and for one that it cannot tell from others.
    """
    names = device_tables()[table]
    if chip in names.names:
        return names.names[chip]
    if chip in names.unsure:
        raise UnsupportedError(
            f"{speaker} calls {chip} {names.unsure[chip]}, as it calls other chips: no file says which one is bought.", ways_out
        )
    raise UnsupportedError(f"{speaker} has no name for {chip} ({names.source.split(' ')[0]}, {names.as_of}).", ways_out)
