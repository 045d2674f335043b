"""Which offers the user can use, and at which discounts: --where, --region, --no-xla, --discounts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpuwise.hardware.filters import Filter
from gpuwise.hardware.types import Chip, Offer
from gpuwise.notes import Note, rejections
from gpuwise.notes.price import discounted
from gpuwise.plan.buying.runnable import train_obstacle
from gpuwise.plan.user_file import read_user_file
from gpuwise.strategy import Strategy

ANY_REGION = "any"  # of an offer in a user's file that names none: it is there wherever the user wants it
_UNNAMED_REGIONS = ("global", "marketplace")  # as price lists say it: the provider, or the host, decides


@dataclass(frozen=True)
class OfferChoice:
    """Which offers are considered.

    Attributes:
        where: what the chip and the offer must satisfy; None for anything.
        region: a filter on the offer's region; None for any. Offers of a user's file without a region satisfy every filter.
            Those of a price list that names none do not: where such a machine stands is not known before it is rented.
        region_name: the region as the user typed it.
        train_only: leaves out what `gpuwise train` cannot run, such as what needs PyTorch/XLA.
        discounts: share off all prices of a provider, by its name.
    """

    where: Filter | None = None
    region: Filter | None = None
    region_name: str = ""
    train_only: bool = False
    discounts: Mapping[str, float] = field(default_factory=dict, hash=False)

    def why_not(self, offer: Offer, chip: Chip) -> Note | None:
        """Why an offer is left out; None for one that is considered."""
        if self.region is not None and offer.region != ANY_REGION and not self.region.matches(chip, offer):
            if offer.region in _UNNAMED_REGIONS:
                return rejections.no_region(listed=offer.region)
            return rejections.another_region(region=self.region_name)
        if self.where is not None and not self.where.matches(chip, offer):
            return rejections.not_where()
        if self.train_only and (obstacle := train_obstacle(chip, Strategy())):
            return rejections.train_cannot_run(obstacle=obstacle)
        return None

    def price_share(self, offer: Offer) -> tuple[float, list[Note]]:
        """The share of the listed price that the user pays, with the note on it."""
        share = self.discounts.get(offer.provider, 0.0)
        return 1.0 - share, [discounted(share=share, provider=offer.provider)] if share else []


def read_discounts(path: str, providers: Collection[str]) -> dict[str, float]:
    """A user's discounts: `aws = 0.25` is a quarter off all prices of aws.

    Raises FileFormatError, with the line, for an unknown provider, and for a share below 0 or of 1 and more.
    """
    table = read_user_file(path)
    table.check_keys(sorted(providers))
    discounts = {}
    for name in table.values:
        share = table.number(name, least=0.0, most=0.99)
        assert share is not None
        discounts[name] = share
    return discounts
