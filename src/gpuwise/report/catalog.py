"""Chips and offers as tables. Figures without a verified source have a question mark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.hardware import Chip, Offer
from gpuwise.hardware.package import share_words
from gpuwise.report.parts import UNKNOWN, columns, offer_words
from gpuwise.units import format_bytes, format_usd

if TYPE_CHECKING:
    from gpuwise.results.listings import UnpricedOffer

_CHIP_COLUMNS = ("chip", "kind", "year", "memory", "GB/s", "fp32", "tf32", "fp16", "bf16", "fp8", "link GB/s", "W")
_CHIP_NARROW = (("chip", "kind"), ("memory", "year"), ("GB/s", "link GB/s"), ("fp32", "tf32"), ("fp16", "bf16"), ("fp8", "W"))
_OFFER_COLUMNS = ("offer", "region", "device", "terms", "$/h", "$/h a device", "limits", "price of")
_OFFER_NARROW = (("offer", "region"), ("device", "terms"), ("$/h", "$/h a device"), ("price of", "limits"))
_UNPRICED_COLUMNS = ("offer", "region", "device", "why there is no price", "source")


def chips_report(chips: Sequence[Chip]) -> Group:
    """One row a chip; rates are dense, in TFLOP/s."""
    if not chips:
        return Group(Text("no chip passes this filter; `gpuwise chips` lists all."))
    table = columns(_CHIP_COLUMNS, map(_chip_row, chips), right=_CHIP_COLUMNS[2:], narrow=_CHIP_NARROW)
    foot = [f"{len(chips)} chips. Rates are dense with fp32 accumulation, in TFLOP/s. Links: one direction."]
    if any(chip.unverified for chip in chips):
        foot.append("? unverified: no public source found for this figure yet.")
    shares = [f"{chip.id} is {share}" for chip in chips if (share := share_words(chip))]
    if shares:
        foot.append(f"A row is one device as PyTorch sees it; a link's figure is of the whole package. {'; '.join(shares)}.")
    foot += [f"! {chip.id}: {caveat}." for chip in chips for caveat in chip.caveats.values()]
    return Group(table, *_footnotes(foot))


def offers_report(offers: Sequence[Offer], *, unpriced: int = 0, ignored: Sequence[str] = ()) -> Group:
    """One row an offer, in the order given. unpriced: rows that pass the filter, but give no offer. ignored: why fetched
    price lists do not count."""
    missing = [f"{unpriced} more cannot be planned with; --unpriced lists them and why."] if unpriced else []
    if not offers:
        return Group(Text("no offer passes this filter; `gpuwise offers` lists all."), *map(Text, missing))
    caveats = list(dict.fromkeys(caveat for offer in offers for caveat in offer.caveats.values()))
    table = columns(
        _OFFER_COLUMNS, [_offer_row(offer, caveats) for offer in offers], right=("$/h", "$/h a device"), narrow=_OFFER_NARROW
    )
    dates = sorted(offer.as_of for offer in offers if offer.as_of)
    foot = [
        f"{len(offers)} offers, in US dollars; prices of {dates[0]} to {dates[-1]}."
        if dates
        else f"{len(offers)} offers, in US dollars."
    ]
    if any(offer.stale for offer in offers):
        foot.append("stale: over a year old; check before you count on it.")
    if any(offer.unverified for offer in offers):
        foot.append("? unverified: no public source found for this figure yet.")
    foot += [f"[{number}] {caveat}." for number, caveat in enumerate(caveats, 1)]
    foot += [*missing, *ignored]
    return Group(table, *_footnotes(foot))


def unpriced_report(rows: Sequence[UnpricedOffer]) -> Group:
    """One row of a price list a line, with what it lacks."""
    if not rows:
        return Group(Text("every offer that passes this filter has a price."))
    cells = [
        [f"{row.provider} {row.instance}", row.region, _device(row.chip_id or "?", row.count or 0), row.why, str(row.source)]
        for row in rows
    ]
    table = columns(
        _UNPRICED_COLUMNS, cells, wide="source", narrow=(("offer", "region"), ("device",), ("why there is no price", "source"))
    )
    return Group(table, *_footnotes([f"{len(rows)} rows that give no offer; `plan` counts them as rejected."]))


def _chip_row(chip: Chip) -> list[str]:
    def cell(figure: str, text: str | None) -> str:
        if text is None:
            return UNKNOWN
        return text if chip.source_of(figure).verified else f"{text}?"

    def number(figure: str, value: float | None, scale: float = 1) -> str:
        if value is None:
            return UNKNOWN
        return cell(figure, f"{value / scale:,.4g}" if value < 1e4 * scale else f"{value / scale:,.0f}")

    peaks = [number(name, chip.peak_flops_per_s.get(name), 1e12) for name in ("fp32", "tf32", "fp16", "bf16", "fp8")]
    memory = None if chip.memory_bytes is None else format_bytes(chip.memory_bytes)
    return [
        chip.id + (" !" if chip.caveats else ""),
        chip.kind,
        cell("year", str(chip.year) if chip.year else None),
        cell("memory_bytes", memory),
        number("memory_bandwidth_bytes_per_s", chip.memory_bandwidth_bytes_per_s, 1e9),
        *peaks,
        number("link_bandwidth_bytes_per_s", chip.link_bandwidth_bytes_per_s, 1e9),
        number("tdp_w", chip.tdp_w),
    ]


def _device(chip_id: str, count: float) -> str:
    return chip_id + (f" x {count:g}" if count not in (0, 1) else "")


def _offer_row(offer: Offer, caveats: Sequence[str]) -> list[str]:
    mind = "".join(f" [{caveats.index(caveat) + 1}]" for caveat in offer.caveats.values())
    mark = "" if offer.source_of("usd_per_hour").verified else "?"
    free = offer.terms == "free"
    return [
        offer_words(offer),
        offer.region,
        _device(offer.chip_id, offer.count),
        offer.terms,
        "free" if free else format_usd(offer.usd_per_hour) + mark,
        "free" if free else format_usd(offer.usd_per_device_hour) + mark,
        _limits(offer),
        offer.as_of + (" stale" if offer.stale else "") + mind,
    ]


def _limits(offer: Offer) -> str:
    week = f"{offer.hours_per_week:g} h a week" if offer.hours_per_week is not None else ""
    session = f"{offer.max_session_hours:g} h a session" if offer.max_session_hours is not None else ""
    return ", ".join(part for part in (week, session) if part)


def _footnotes(lines: Iterable[str]) -> list[RenderableType]:
    return [Text(""), *(Text(line, style="dim") for line in lines)]
