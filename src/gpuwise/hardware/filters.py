"""Filters as people type them: `memory>=24GB kind=gpu-consumer`, `h100-sxm terms=spot price<3`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from gpuwise.errors import InputError, nearest, unknown_name
from gpuwise.hardware.names import words
from gpuwise.hardware.pricelist import OfferRow
from gpuwise.hardware.types import Chip, Offer
from gpuwise.units import parse_bytes, parse_usd

_TERM = re.compile(r"([A-Za-z][\w-]*)\s*(!=|>=|<=|=|>|<)\s*(\S+)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_RATE = re.compile(r"([\d.]+)([GTP])(?:FLOPS?|OPS?)?(?:/S)?", re.IGNORECASE)


def _rate(text: str) -> float:
    match = _RATE.fullmatch(text)
    try:
        return float(match[1]) * {"G": 1e9, "T": 1e12, "P": 1e15}[match[2].upper()] if match else 1 / 0
    except (ValueError, ZeroDivisionError):
        raise InputError(f"cannot read {text!r} as a rate.", ["write it like 100T, 989TFLOPS or 1.5P"]) from None


def _size(text: str) -> float:
    if re.fullmatch(r"[\d.]+", text):
        raise InputError(f"{text!r} lacks a unit.", ["write it like 24GB, 24GiB or 900GB/s"])
    return parse_bytes(re.sub(r"/s$", "", text, flags=re.IGNORECASE))


def _plain(text: str) -> float:
    try:
        if re.fullmatch(r"\d+(\.\d+)?[Ww]?", text, re.ASCII):
            return float(text.rstrip("Ww"))
    except ValueError:
        pass
    raise InputError(f"cannot read {text!r} as a number.", ["write it like 2023 or 300W"])


Item = TypeVar("Item")
Value: TypeAlias = float | str | None


@dataclass(frozen=True)
class _Field(Generic[Item]):
    get: Callable[[Item], Value]
    parse: Callable[[str], float] | None  # None: text


def _price(offer: Offer | OfferRow) -> float | None:
    """The lowest price of a row."""
    return offer.usd_per_hour if isinstance(offer, Offer) else min(offer.prices.values(), default=None)


def _peak(precision: str) -> _Field[Chip]:
    return _Field(lambda chip: chip.peak_flops_per_s.get(precision), _rate)


_CHIP_FIELDS: dict[str, _Field[Chip]] = {
    "id": _Field(lambda c: c.id, None),
    "vendor": _Field(lambda c: c.vendor, None),
    "kind": _Field(lambda c: c.kind, None),
    "arch": _Field(lambda c: c.architecture, None),
    "year": _Field(lambda c: c.year, _plain),
    "memory": _Field(lambda c: c.memory_bytes, _size),
    "bandwidth": _Field(lambda c: c.memory_bandwidth_bytes_per_s, _size),
    "tdp": _Field(lambda c: c.tdp_w, _plain),
    **{precision: _peak(precision) for precision in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")},
}
_OFFER_FIELDS: dict[str, _Field[Offer | OfferRow]] = {
    "provider": _Field(lambda o: o.provider, None),
    "instance": _Field(lambda o: o.instance, None),
    "chip": _Field(lambda o: o.chip_id, None),
    "region": _Field(lambda o: o.region, None),
    "terms": _Field(lambda o: o.terms if isinstance(o, Offer) else " ".join(o.prices), None),
    "count": _Field(lambda o: o.count if isinstance(o, Offer) else o.values.get("count"), _plain),
    "price": _Field(lambda o: _price(o), parse_usd),
}


Target: TypeAlias = float | tuple[tuple[str, ...], ...]
"""What a term compares with: a number, or alternatives, each as its words."""


@dataclass(frozen=True)
class Filter:
    """A parsed filter; `matches` is pure. An unknown figure never satisfies a comparison."""

    terms: tuple[tuple[str, str, Target], ...]
    bare: tuple[str, ...]

    def matches(self, chip: Chip | None, offer: Offer | OfferRow | None = None) -> bool:
        """Whether a chip, or an offer with its chip, satisfies every term and every bare word."""
        name_words: set[str] = set()
        for text in (chip and chip.id, chip and chip.name, offer and offer.provider, offer and offer.instance):
            name_words.update(words(text or ""))
        return all(word in name_words for word in self.bare) and all(self._term(*term, chip, offer) for term in self.terms)

    @staticmethod
    def _term(name: str, sign: str, target: Target, chip: Chip | None, offer: Offer | OfferRow | None) -> bool:
        if name in _OFFER_FIELDS:
            value = None if offer is None else _OFFER_FIELDS[name].get(offer)
        elif name == "memory" and offer is not None:
            value = _offer_memory(None if chip is None else chip.memory_bytes, offer)
        else:
            value = None if chip is None else _CHIP_FIELDS[name].get(chip)
        if isinstance(value, str) and isinstance(target, tuple):
            matches = any(_has_words(value, one) for one in target)
            return matches if sign == "=" else not matches
        return not isinstance(value, str | None) and not isinstance(target, tuple) and _COMPARE[sign](value, target)


def check_values(chosen: Filter, chips: Iterable[Chip], offers: Iterable[Offer | OfferRow] = (), *, listing: str) -> None:
    """Raises UnknownNameError for a text that a term compares with and that no chip or offer has: kind=gpu-consumr.

    Arguments:
        listing: the command that lists what there is.
    """
    for name, _, targets in chosen.terms:
        if not isinstance(targets, tuple):
            continue
        if name in _OFFER_FIELDS:
            names = [_OFFER_FIELDS[name].get(offer) for offer in offers]
        else:
            names = [_CHIP_FIELDS[name].get(chip) for chip in chips]
        texts = {text for text in names if text and isinstance(text, str)}
        values = sorted({term for text in texts for term in text.split()} if name == "terms" else texts)
        for target in targets:
            if not any(_has_words(value, target) for value in values):
                raise unknown_name(name, "-".join(target), values, listing=listing)


def _offer_memory(chip_bytes: int | None, offer: Offer | OfferRow) -> float | None:
    """Memory of one device of an offer: a slice has its share, a CPU the host's."""
    values = vars(offer) if isinstance(offer, Offer) else offer.values
    if chip_bytes is None:
        return values.get("host_memory_bytes")
    return chip_bytes * min(1.0, values.get("count") or 1.0)


def _has_words(value: str, words_: tuple[str, ...]) -> bool:
    return set(words_) <= set(words(value))


def parse_filter(text: str, *, offers: bool = False) -> Filter:
    """A filter from text. Terms are joined by "and"; `a,b` after = means either; a bare word must occur in the name.

    Arguments:
        offers: also allow the fields of offers (provider, instance, chip, count, price, region, terms).

    Raises InputError for unknown fields, unreadable values and orderings of texts.
    """
    fields: dict[str, _Field[Chip] | _Field[Offer | OfferRow]] = {**_CHIP_FIELDS, **(_OFFER_FIELDS if offers else {})}
    terms, bare = [], []
    rest = re.sub(r" ?(!=|>=|<=|=|>|<) ?", r"\1", " ".join(text.split()))
    for part in rest.split():
        match = _TERM.fullmatch(part)
        if not match:
            if re.search(r"[<>=!]", part):
                raise InputError(f"cannot read the filter {part!r}.", ["write it like memory>=24GB"])
            bare.extend(words(part) or [part.lower()])
            continue
        name, sign, value = match[1].lower(), match[2], match[3]
        if name not in fields:
            near = nearest(name, list(fields))
            raise InputError(
                f"unknown filter field {match[1]!r}.",
                [*([f"nearest: {', '.join(near)}"] if near else []), f"fields: {', '.join(fields)}"],
            )
        terms.append((name, sign, _value(fields[name], name, sign, value)))
    return Filter(tuple(terms), tuple(bare))


def _value(field: _Field[Chip] | _Field[Offer | OfferRow], name: str, sign: str, value: str) -> Target:
    if re.search(r"[<>=!]", value):
        raise InputError(f"cannot read {value!r} in the filter on {name}.", ["one comparison a term: memory>=24GB"])
    if field.parse is not None:
        return field.parse(value)
    if sign not in ("=", "!="):
        raise InputError(f"{name} is a text: it has no order.", [f"write {name}={value}"])
    alternatives = tuple(tuple(words(one)) for one in value.split(",") if words(one))
    if not alternatives:
        raise InputError(f"the filter on {name} names nothing: {value!r}.")
    return alternatives
