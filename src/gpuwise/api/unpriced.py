"""Rows of price lists that give no offer, and why: shown, so that nobody takes them for forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuwise.hardware import load_catalog, parse_filter
from gpuwise.hardware.types import Source


@dataclass(frozen=True)
class UnpricedOffer:
    """A machine that is offered, but that nothing can be planned on. count: devices, None where unknown."""

    provider: str
    instance: str
    region: str
    chip_id: str | None
    count: float | None
    why: str
    source: Source

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract of `gpuwise offers --unpriced --json`."""
        return {"provider": self.provider, "instance": self.instance, "region": self.region, "chip_id": self.chip_id,
                "count": self.count, "why": self.why, "source": str(self.source)}  # fmt: skip


def unpriced_offers(filter: str = "") -> tuple[UnpricedOffer, ...]:
    """The rows that pass a filter, by provider. Raises InputError for a filter that cannot be read."""
    catalog, chosen = load_catalog(), parse_filter(filter, offers=True)
    rows = [row for row in catalog.incomplete_offers if chosen.matches(catalog.chips.get(row.chip_id or ""), row)]
    made = [UnpricedOffer(row.provider, row.instance, row.region, row.chip_id, row.values.get("count"),
                          row.why_no_offer or "", row.source) for row in rows]  # fmt: skip
    return tuple(sorted(made, key=lambda row: (row.provider, row.instance, row.region)))
