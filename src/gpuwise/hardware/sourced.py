"""SourcedFigures: the base of chips, links and offers. Each figure knows where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property

PEAKS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")


@dataclass(frozen=True)
class Source:
    """Where a figure comes from.

    Attributes:
        text: an address, a document or a method.
        as_of: a day, month, year or range of them.
        verified: False where no source was found.
        digest: SHA-256 of the fetched price list, in hexadecimal; None for what is shipped or the user's own.
    """

    text: str
    as_of: str
    verified: bool = True
    digest: str | None = None

    def __str__(self) -> str:
        return f"{self.text}, {self.as_of}" + ("" if self.verified else " (unverified)")


UNSTATED = Source("not stated", "", verified=False)


@dataclass(frozen=True)
class SourcedFigures:
    """Figures with their sources: `source` for the row, `sources` for the figures that differ, by field name."""

    source: Source = field(default=UNSTATED, kw_only=True)
    sources: Mapping[str, Source] = field(default_factory=dict, kw_only=True, hash=False)
    caveats: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    notes: str = field(default="", kw_only=True)

    def source_of(self, figure: str) -> Source:
        """The source of one figure, named as the field is (`tdp_w`); of peak rates by precision (`fp16`).

        Raises KeyError for a name that is no figure of this type.
        """
        if figure not in PEAKS and figure not in {f.name for f in fields(self)}:
            raise KeyError(figure)
        return self.sources.get(figure, self.source)

    @property
    def figures(self) -> dict[str, object]:
        """The known figures by name, peak rates spread out by precision."""
        skip = {"source", "sources", "caveats", "notes", "id", "name", "trains", "calibration", "achieved"}
        if getattr(self, "devices_per_package", 1) == 1:
            skip.add("devices_per_package")  # nothing is claimed
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skip}
        values.update(values.pop("peak_flops_per_s", {}))
        return {name: value for name, value in values.items() if value not in (None, "")}

    @cached_property
    def unverified(self) -> tuple[str, ...]:
        """Names of the known figures that have no verified source; listings mark them."""
        return tuple(name for name in self.figures if not self.source_of(name).verified)

    def to_dict(self) -> dict[str, object]:
        """Plain types, known values only, with the names of unverified figures."""
        values = {key: value for key, value in asdict(self).items() if value not in (None, "", {})}
        return values | {"unverified": list(self.unverified)}
