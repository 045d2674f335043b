"""A row of a price list, as stored, and the offers it makes: one for each kind of terms that has a price."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

from gpuwise.hardware.rows import latest_day
from gpuwise.hardware.types import TERMS, UNSTATED, Offer, Source

_STALE_AFTER_DAYS = 365


@dataclass(frozen=True)
class OfferRow:
    """A stored row of a price list: values as in Offer, and a price for each kind of terms that has one."""

    provider: str
    instance: str
    region: str
    values: dict[str, Any] = field(hash=False)
    prices: dict[str, float] = field(hash=False)
    source: Source = UNSTATED
    sources: dict[str, Source] = field(default_factory=dict, hash=False)
    caveats: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def chip_id(self) -> str | None:
        return self.values.get("chip_id")

    @property
    def why_no_offer(self) -> str | None:
        """Why the row gives no priced Offer; None when it does."""
        if self.chip_id is None:
            return "its chip is not in the catalog"
        if self.values.get("count") is None:
            return "number of devices unknown"
        if not self.prices:
            return "no price"
        only = self.values.get("accelerator_only")
        return "price of the accelerators only; the host is billed on top" if only else None

    def offers(self, *, today: date) -> tuple[Offer, ...]:
        """One Offer a kind of terms. today: the day from which ages of prices count."""
        if self.why_no_offer:
            return ()
        values = {k: v for k, v in self.values.items() if k not in ("free", "accelerator_only")}
        offers = []
        for terms, price in self.prices.items():
            sources = {k: s for k, s in self.sources.items() if k not in TERMS}
            sources["usd_per_hour"] = self.sources.get(terms, self.source)
            offers.append(
                Offer(
                    self.provider,
                    self.instance,
                    self.region,
                    terms=terms,
                    usd_per_hour=price,
                    stale=is_stale(sources["usd_per_hour"].as_of, today=today),
                    source=self.source,
                    sources=sources,
                    **values,
                    caveats={k: why for k, why in self.caveats.items() if k == terms or k not in TERMS},
                )
            )
        return tuple(offers)


def is_stale(as_of: str, *, today: date) -> bool:
    """Whether a date, as in data files, lies more than 12 months before today."""
    day = latest_day(as_of)
    return day is None or day < today - timedelta(days=_STALE_AFTER_DAYS)


def exact_day(as_of: str) -> str:
    """For the newest date only days count in full: a bare "2026" may be any day of that year."""
    last = as_of.split("..")[-1]
    return last if len(last) == 10 else last + "-01-01"[len(last) - 4 :] if last else ""
