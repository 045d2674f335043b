"""HostSettings: the host that feeds the device. They change no operation of the step, so no forecast depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gpuwise.strategy.checks import check_choice, check_whole


@dataclass(frozen=True)
class HostSettings:
    """How the host feeds the device. None, the default of each, leaves the choice to the runtime.

    Attributes:
        threads: threads of the CPU's operations, 1 to 4096.
        pin_threads: whether each of those threads is bound to a core of its own.
        loader_workers: processes that read data, 0 to 1024; with 0 the training process reads.
        prefetch: micro-batches made ready ahead, 0 to 1024.
        pinned_memory: whether batches wait in page-locked memory, from which a GPU copies by itself.
    """

    threads: int | None = None
    pin_threads: bool | None = None
    loader_workers: int | None = None
    prefetch: int | None = None
    pinned_memory: bool | None = None

    def __post_init__(self) -> None:
        for name in ("pin_threads", "pinned_memory"):
            check_choice(name.replace("_", " "), getattr(self, name), (None, False, True))
        for name, low, high in (("threads", 1, 4096), ("loader_workers", 0, 1024), ("prefetch", 0, 1024)):
            if getattr(self, name) is not None:
                check_whole(name.replace("_", " "), getattr(self, name), low, high)

    def to_dict(self) -> dict[str, int]:
        """Without the fields that are None. In files and in JSON these keys stand among those of the strategy."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> HostSettings:
        """HostSettings from a dictionary that may have other keys. Raises InputError for values out of range."""
        fields_given: dict[str, Any] = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        return cls(**fields_given)
