"""Mesh: how many devices share the work, and along which axes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from gpuwise.errors import InputError
from gpuwise.strategy.checks import check_whole

# From the outermost to the innermost: ranks of the last axis are neighbours, and lie in one machine where it is large enough.
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
_SHORT_NAMES = {"dp": "dp_replicate", "fsdp": "dp_shard"}


@dataclass(frozen=True)
class Mesh:
    """Degrees of parallelism. Each is a whole number from 1, and 1 by default.

    Attributes:
        dp_replicate: replicas that hold whole parameters and average their gradients.
        dp_shard: devices that split parameters, gradients and optimizer state (FSDP).
        tp: tensor parallel: devices that split each matrix product.
        pp: pipeline stages: devices that split the layers.
        cp: context parallel: devices that split the sequence.
        ep: expert parallel: devices that split the experts; they are among those of dp_shard, which ep divides.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for f in fields(self):
            check_whole(f"mesh {f.name}", getattr(self, f.name), 1, 1_000_000)

    def __str__(self) -> str:
        """As on the command line: 'dp_shard=8,tp=2'; 'dp=1' for one device."""
        named = [f"{f.name}={degree}" for f in fields(self) if (degree := getattr(self, f.name)) > 1]
        return ",".join(named).replace("dp_replicate", "dp") or "dp=1"

    @property
    def data_parallel(self) -> int:
        """Ranks that each read their own samples."""
        return self.dp_replicate * self.dp_shard

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.data_parallel * self.tp * self.pp * self.cp

    @property
    def degrees(self) -> tuple[int, ...]:
        """Devices along each of AXES."""
        return tuple(getattr(self, axis) for axis in AXES)

    def coordinates(self, rank: int) -> dict[str, int]:
        """The position of a rank along each of AXES; ranks count along the last axis first."""
        position: dict[str, int] = {}
        for axis in reversed(AXES):
            rank, position[axis] = divmod(rank, getattr(self, axis))
        return {axis: position[axis] for axis in AXES}

    def data_rank(self, rank: int) -> int:
        """The number of a rank among those that read their own samples."""
        position = self.coordinates(rank)
        return position["dp_replicate"] * self.dp_shard + position["dp_shard"]

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """'dp=8', 'dp_shard=8,tp=2'. `dp` means dp_replicate, `fsdp` dp_shard. Raises InputError."""
        axes = {f.name for f in fields(cls)}
        degrees: dict[str, int] = {}
        for part in text.split(","):
            name, _, number = part.partition("=")
            name = _SHORT_NAMES.get(name.strip(), name.strip())
            if name not in axes or not re.fullmatch(r"[0-9]{1,9}", number.strip()) or name in degrees:
                raise InputError(
                    f"cannot read mesh {text!r}: {part!r} is not an axis and a degree.",
                    ["write it like dp=8 or dp_shard=4,tp=2", f"axes are dp, {', '.join(f.name for f in fields(cls)[1:])}"],
                )
            degrees[name] = int(number)
        return cls(**degrees)

    @classmethod
    def from_dict(cls, data: object) -> Mesh:
        """Raises InputError for unknown axes or degrees that are no whole numbers from 1."""
        if not isinstance(data, Mapping) or set(data) - {f.name for f in fields(cls)}:
            raise InputError(f"unknown mesh {data!r}.", ["axes are dp_replicate, dp_shard, tp, pp, cp, ep"])
        return cls(**data)
