"""What `offers --unpriced` lists."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.hardware.types import Source


@dataclass(frozen=True)
class UnpricedOffer:
    """A machine that is offered, but that nothing can be planned on.

    Attributes:
        chip_id: None where the row of the price list names no chip of the catalog.
        count: devices; None where unknown.
        why: what the row lacks.
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
