"""Settings of published runs at a fixed concurrency that their table does not state."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_MANY = 16  # users from which the second number of `polled` counts
_FILE = Path(__file__).with_name("online_settings.toml")
_WHICH = ("engine", "family", "device", "formats", "until", "script")


@dataclass(frozen=True)
class OnlineSettings:
    """What online_settings.toml says of a run; attributes as there, and the engine's own where they are 0 or empty."""

    cache: str = ""
    memory_share: float = 0.0
    batched_tokens: int = 0
    batched_prompts: int = 0
    sequences: int = 0
    polled: tuple[int, int] = (0, 0)
    waited: int = 0
    whole: bool = False
    ahead: bool = False

    def tokens(self, read: int) -> int | None:
        """Most new tokens of an iteration for prompts of so many tokens; None for the engine's own."""
        return self.batched_prompts * read or self.batched_tokens or None

    def iterations_waited(self, *, read: int, written: int, devices: int, concurrency: int) -> float:
        """Mean iterations between a request's arrival and the engine's next look at the queue."""
        waited = self.polled[concurrency >= _MANY] / 2
        if self.waited and read == written == 1024 and devices < 8:
            others = self.waited * concurrency / written  # that come while the first one waits for the whole time
            waited += self.waited * (1 + others / 2) / (1 + others)
        return waited


@cache
def _rows() -> list[dict[str, Any]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))["run"]


def settings_of_run(*, engine: str, family: str, format: str, device: str, measured: str) -> OnlineSettings:
    """The settings of a run. format: of its weights; measured: its day, such as 2026-04-08, or "" where it is not stated."""
    run = {"engine": engine, "family": family, "device": device}
    for row in _rows():
        named = all(row.get(name, value) == value for name, value in run.items()) and format in row.get("formats", [format])
        if named and measured < row.get("until", "9999"):
            values = {name: tuple(value) if name == "polled" else value for name, value in row.items() if name not in _WHICH}
            return OnlineSettings(**values)
    return OnlineSettings()
