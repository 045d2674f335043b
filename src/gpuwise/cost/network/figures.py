"""The figures of collectives by technology of the link, read from data/network.toml, and by which of them a link is priced."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpuwise.hardware.types import Link

# Whose figures a link has that names no technology, by its kind.
_OF_KIND = {"scale-up": "nvlink", "host": "pcie", "scale-out": "ethernet"}


@dataclass(frozen=True)
class Protocol:
    """One way to send a message; NCCL has three: LL, LL128 and Simple, each for larger messages than the one before.

    Attributes:
        call_s: seconds a call, for any payload and number of ranks.
        hop_s: seconds from one rank to the next.
        share: bandwidth, as a share of what the largest messages reach.
    """

    call_s: float
    hop_s: float
    share: float


@dataclass(frozen=True)
class LinkFigures:
    """What collectives over one technology take.

    Attributes:
        technology: name, such as "nvlink".
        protocols: a fixed number, quickest first.
        efficiency: share of the line rate that rings reach with large messages.
        own_part: time to copy a byte of a rank's own part, relative to that of a byte that is sent.
        crowded: bandwidth where more than two ranks share a bus, relative to that of two; 1 elsewhere.
        direct: bandwidth of an all-to-all, relative to that of a ring.
        in_switch_efficiency: share of the line rate that an all-reduce in the switch reaches; 0 where there is none.
        in_switch_call_s: seconds of such a call, for any payload and number of ranks.
        spread: low and high of real over forecast times, with 90 % between them.
        basis: "fitted" | "published" | "assumed".
        source: of the figures.
    """

    technology: str
    protocols: tuple[Protocol, ...]
    efficiency: float
    own_part: float
    crowded: float
    direct: float
    in_switch_efficiency: float
    in_switch_call_s: float
    spread: tuple[float, float]
    basis: str
    source: str

    def to_dict(self) -> dict[str, object]:
        """As in network.toml."""
        protocols = [{"call_s": p.call_s, "hop_s": p.hop_s, "share": p.share} for p in self.protocols]
        single = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("technology", "protocols")}
        return {**single, "spread": list(self.spread), "protocols": protocols}


def figures_of(raw: Mapping[str, Mapping[str, object]]) -> dict[str, LinkFigures]:
    """The tables of network.toml by technology."""
    return {name: _figures(name, dict(table)) for name, table in raw.items()}


def _figures(technology: str, table: dict) -> LinkFigures:
    protocols = tuple(Protocol(**protocol) for protocol in table.pop("protocols"))
    low, high = table.pop("spread")
    return LinkFigures(technology=technology, protocols=protocols, spread=(low, high), **table)


@cache
def network_figures() -> Mapping[str, LinkFigures]:
    """The shipped figures by technology."""
    text = files("gpuwise.cost").joinpath("data/network.toml").read_text(encoding="utf-8")
    return figures_of(tomllib.loads(text)["technology"])


def technology_of(link: Link) -> str:
    """The technology by whose figures collectives over a link are priced."""
    return link.technology or _OF_KIND.get(link.kind, "ethernet")
