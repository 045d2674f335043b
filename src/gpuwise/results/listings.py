"""The rows of `offers --unpriced` and `offers --quarantined`, and fetched lists as `doctor` names them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpuwise.hardware.types import Source


@dataclass(frozen=True)
class UnpricedOffer:
    """An offered machine that no plan can use.

    Attributes:
        chip_id: catalog id of the chip; None if the price list's row names no chip of the catalog.
        count: number of devices; None where unknown.
        why: the reason why no plan can use it.
    """

    provider: str
    instance: str
    region: str
    chip_id: str | None
    count: float | None
    why: str
    source: Source

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise offers --unpriced --json`."""
        return {
            "provider": self.provider,
            "instance": self.instance,
            "region": self.region,
            "chip_id": self.chip_id,
            "count": self.count,
            "why": self.why,
            "source": str(self.source),
        }


@dataclass(frozen=True)
class QuarantinedRow:
    """Rows of a fetched price list that were not taken.

    Attributes:
        provider: whose list it is.
        source: the published list, in words.
        as_of: day of the list.
        row: instance in the list's words.
        why: the reason.
        rows: number of rows with this instance and reason.
    """

    provider: str
    source: str
    as_of: str
    row: str
    why: str
    rows: int

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise offers --quarantined --json`."""
        return asdict(self)


@dataclass(frozen=True)
class FetchedList:
    """A fetched price list that counts.

    Attributes:
        provider: whose list it is.
        source: the published list, in words, with the beginning of its hash.
        as_of: day of its prices.
        rows: number of rows that are taken; of interruption classes for these.
        quarantined: number of rows that are not.
    """

    provider: str
    source: str
    as_of: str
    rows: int
    quarantined: int
