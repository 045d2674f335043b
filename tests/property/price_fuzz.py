"""Damaged price lists, many a second: bytes of the samples cut, repeated, replaced and crossed with each other."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tests.price_lists import LISTS, archive, documents, yardstick

from gpuwise.errors import PriceListError
from gpuwise.hardware.refreshed import RefreshedList, read_list_of
from gpuwise.hardware.rows import OFFER, read_row
from gpuwise.refresh.kept_rows import table_of
from gpuwise.refresh.row_gates import gated
from gpuwise.refresh.sources import request_of

NAMES = list(LISTS)
_SPICE = [
    *(b"", b"0", b"-1", b"0.00", b"1e999", b"nan", b"null", b"NaN", b"true", b"80", b"A100", b"H100 NVL", b"8x-"),
    *(
        b'"',
        b"'",
        b",",
        b"\n",
        b"{",
        b"[",
        b"\x00",
        b"\xff",
        b"\\ud800",
        b"9" * 400,
        b"\x1b[2J",
        b"<html>",
        b"PK\x03\x04",
        b"..",
    ),
]
_FIELDS = [b"0.00", b"H100", b"A100", b"81920", b"80", b"us-east-1", b"1.0", b"8.0", b"USD", b"null", b"false", b"True"]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes after one to four accidents."""
    for _ in range(chance.randint(1, 4)):
        at, to = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
        to = min(to, at + chance.choice((1, 4, 40, 4000)))
        kind = chance.randrange(5)
        if kind == 0:
            data = data[:at] + data[to:]
        elif kind == 1:
            data = data[:at] + chance.choice(_SPICE) + data[to:]
        elif kind == 2:
            data = data[:to] + data[at:to] + data[to:]
        elif kind == 3:
            data = data.replace(chance.choice(_FIELDS), chance.choice(_SPICE), chance.choice((1, -1)))
        else:
            data = data[:at] + bytes(chance.randrange(256) for _ in range(min(8, to - at))) + data[to:]
    return data


def swapped(data: bytes, chance: random.Random) -> bytes:
    """A JSON document with some of its values replaced, still JSON."""

    def change(value: object) -> object:
        if isinstance(value, dict):
            return {key: change(item) for key, item in value.items() if chance.random() > 0.02}
        if isinstance(value, list):
            return [change(item) for item in value]
        odd: list[object] = [None, True, 0, -1, 1e308, 10**30, "", "H100", [], {}, "\ud800", 0.0]
        return chance.choice(odd) if chance.random() < 0.05 else value

    return json.dumps(change(json.loads(data))).encode()


def sample(name: str, chance: random.Random) -> tuple[bytes, ...]:
    """The pages of a damaged list."""
    pages = list(documents(name))
    at = chance.randrange(len(pages))
    if pages[at].startswith(b"{") and chance.random() < 0.5:
        pages[at] = swapped(pages[at], chance)
    elif name.startswith("gpuhunt") and chance.random() < 0.3:
        packed = archive("aws.csv", pages[at])
        pages[at] = packed if chance.random() < 0.1 else damaged(packed, chance)
    else:
        pages[at] = damaged(pages[at], chance)
    return tuple(pages)


def _fail(key: str | None, what: str) -> Exception:
    return AssertionError(f"{key}: {what}")


def check(name: str, pages: tuple[bytes, ...], provider: str = "") -> str:
    """What came of a list: "rows", "none" or "error". Whatever is raised is a fault of ours."""
    request = request_of(name)
    provider = provider or request.provider
    try:
        parsed = request.source.parse(pages, provider=provider)
    except PriceListError as error:
        if not (error.what and error.ways_out and error.code == "bad-price-list"):
            raise AssertionError(f"an error without its parts: {error!r}") from None
        return "error"
    offers, refused = gated(parsed.rows, yardstick())
    rates: dict[str, dict[str, tuple[float, str]]] = {}
    for rate in parsed.rates:
        rates.setdefault(rate.region, {})[rate.instance] = (rate.share_per_month, rate.label)
    quarantined = tuple((each.row, each.why, each.rows) for each in refused)
    kept = RefreshedList(
        "aws", "a list", "", "", "2026-11-09", "", "0" * 64, 1, tuple(map(table_of, offers)), rates, quarantined
    )
    if read_list_of(kept.to_bytes()) != kept:
        raise AssertionError("the list is not read back as it was written")
    for table, offer in zip(kept.tables(), offers, strict=True):
        read_row(table, OFFER, _fail)  # the catalog takes what passed
        spot, on_demand = offer.spot_usd, offer.on_demand_usd
        if not all(usd > 0 for usd in offer.prices().values()) or not offer.prices() or offer.chip_id not in yardstick().chips:
            raise AssertionError(f"a row that should not have passed: {offer}")
        if spot is not None and on_demand is not None and spot > 1.05 * on_demand:
            raise AssertionError(f"spot above on demand: {offer}")
    if any(not 0 < share <= 1 for table in rates.values() for share, _ in table.values()):
        raise AssertionError("a share that is none")
    return "rows" if offers or rates else "none"


def fuzz(inputs: int, seed: int, tell: Callable[[str], None] = print) -> dict[str, int]:
    """Checks so many lists; the counts of what came of them."""
    counts = {"rows": 0, "none": 0, "error": 0}
    for number in range(inputs):
        chance = random.Random(f"{seed} {number}")
        name = NAMES[number % len(NAMES)]
        pages = sample(name, chance)
        try:
            counts[check(name, pages)] += 1
        except BaseException:
            tell(f"seed {seed}, input {number}, {name}: {pages!r}")
            raise
    return counts
