"""Offers of fetched price lists, which have a machine in each of many regions: the cheapest region stands for them."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwise.hardware.types import Offer


class CheapestRegions:
    """The cheapest of some offers by provider, instance and terms."""

    def __init__(self, offers: Iterable[Offer]):
        self._least_usd: dict[tuple[str, str, str], float] = {}
        for offer in offers:
            key = (offer.provider, offer.instance, offer.terms)
            self._least_usd[key] = min(offer.usd_per_hour, self._least_usd.get(key, offer.usd_per_hour))

    def undercut(self, offer: Offer) -> bool:
        """Whether the machine of a fetched offer is cheaper in another region. Shipped and own offers never are."""
        fetched = offer.source_of("usd_per_hour").digest is not None
        return fetched and offer.usd_per_hour > self._least_usd[offer.provider, offer.instance, offer.terms]
