"""What holds for all offers of a provider: `data/providers.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from gpuwise.hardware.sourced import UNSTATED, Source
from gpuwise.hardware.tomlfile import bad_file, find_line, read_toml

_FILE = Path(__file__).parent / "data" / "providers.toml"


@dataclass(frozen=True)
class Provider:
    """What holds for all offers of a provider.

    Attributes:
        id: as in the offers' files.
        alone: why several of its machines are not rented to run one job; "" where they are.
        notebooks: whether it rents sessions of notebooks, in which no server stays up.
        quotas: what it lets a new account rent by default, by terms ("any" for all); empty where nothing is known.
        quota_raise: how to request a larger quota, and how long that takes; "" where nothing is known.
        unverified: names of figures that no stored page of the provider confirms.
        price_kinds: kinds of the prices that are not simply published, by terms; see gpuwise.hardware.prices.PRICE_KINDS.
        interruptions_per_day: expected interruptions of one spot machine; None where no rate is known.
        day_limited: whether spot machines live at most 24 hours.
        minimum_billing_s: shortest time that is billed; a minute is that of AWS, Google and Azure, which bill by the second.
        billing_step_s: billed time is rounded up to a multiple of this.
        storage_usd_per_gb_month: price of storage that outlives a machine; None where unknown.
        transfer_usd_per_gb: price of data that leaves the provider's network; None where unknown.
    """

    id: str
    price_kinds: Mapping[str, str] = field(default_factory=dict, hash=False)
    interruptions_per_day: float | None = None
    day_limited: bool = False
    minimum_billing_s: float = 60.0
    billing_step_s: float = 1.0
    storage_usd_per_gb_month: float | None = None
    transfer_usd_per_gb: float | None = None
    alone: str = ""
    notebooks: bool = False
    quotas: Mapping[str, str] = field(default_factory=dict, hash=False)
    quota_raise: str = ""
    unverified: tuple[str, ...] = ()
    source: Source = UNSTATED

    def quota(self, terms: str) -> str:
        """What it lets a new account rent by default on these terms; "" where nothing is known."""
        return self.quotas.get(terms) or self.quotas.get("any", "")


@lru_cache
def providers() -> dict[str, Provider]:
    """All that the file has, by id. Raises FileFormatError for a damaged file."""
    raw, text = read_toml(_FILE, entry="data-providers")
    tables = raw.get("provider")
    return {id_: _provider(id_, table, text) for id_, table in tables.items()} if isinstance(tables, dict) else {}


def provider(id_: str) -> Provider:
    """A provider's figures; the defaults for one that the file does not have."""
    return providers().get(id_) or Provider(id_)


def _provider(id_: str, table: Mapping[str, object], text: str) -> Provider:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    for name in ("source", "as_of"):
        values.pop(name, None)
    source = Source(str(table.get("source", "")), str(table.get("as_of", "")))
    try:
        return replace(Provider(id_, source=source), **values)  # type: ignore[arg-type]
    except TypeError as error:
        raise bad_file(_FILE, find_line(text, "provider", id_), str(error)) from None
