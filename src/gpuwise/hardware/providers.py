"""What holds for all offers of a provider: `data/providers.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuwise.hardware.sourced import UNSTATED, Source
from gpuwise.hardware.tomlfile import bad_file, find_line, read_toml

_FILE = Path(__file__).parent / "data" / "providers.toml"


@dataclass(frozen=True)
class Provider:
    """What holds for all offers of a provider.

    Attributes:
        id: as in the offers' files.
        price_kinds: kinds of the prices that are not simply published, by terms; see gpuwise.hardware.prices.PRICE_KINDS.
    """

    id: str
    price_kinds: Mapping[str, str] = field(default_factory=dict, hash=False)
    source: Source = UNSTATED


@lru_cache
def providers() -> dict[str, Provider]:
    """All that the file has, by id. Raises FileFormatError for a damaged file."""
    raw, text = read_toml(_FILE, entry="data-providers")
    tables: Any = raw.get("provider", {})
    return {id_: _provider(id_, dict(table), text) for id_, table in tables.items()}


def provider(id_: str) -> Provider:
    """A provider's figures; the defaults for one that the file does not have."""
    return providers().get(id_) or Provider(id_)


def _provider(id_: str, table: dict[str, Any], text: str) -> Provider:
    source = Source(table.pop("source", ""), table.pop("as_of", ""))
    if unknown := set(table) - {f.name for f in fields(Provider)}:
        raise bad_file(_FILE, find_line(text, "provider", id_), f"unknown key {sorted(unknown)[0]!r}")
    return Provider(id_, source=source, **table)
