"""The rows of `offers --unpriced`."""

from __future__ import annotations

from dataclasses import dataclass

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
