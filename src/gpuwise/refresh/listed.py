"""What an adapter reads from a published list, before any check: rows in the list's own words, and rates of interruptions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.errors import PriceListError
from gpuwise.plain_files import parse_json

MOST_ROWS = 400_000  # of one list; the largest known has 60,000
LONGEST_TEXT = 200


@dataclass(frozen=True)
class ListedRow:
    """One row of a published list. None: the list does not say.

    Attributes:
        provider: id of the provider in gpuwise.
        instance, region: in the list's words.
        names: texts that name the accelerator, the most specific first; the instance's name is not among them.
        memory_gib: of one device.
        count: devices of the whole row.
        usd: dollars an hour of the whole row by kind of terms; a kind that is not sold is absent.
        vcpus, host_memory_gib: of the host.
        currency: of the prices.
        partial: why the price is not that of the whole row; "" where it is.
        by_chip: whether the row is kept under count and chip ("8x-rtx-4090"), as asks of a marketplace are.
    """

    provider: str
    instance: str
    region: str
    names: tuple[str, ...]
    memory_gib: float | None
    count: float | None
    usd: Mapping[str, float] = field(hash=False)
    vcpus: float | None = None
    host_memory_gib: float | None = None
    currency: str = "USD"
    partial: str = ""
    by_chip: bool = False


@dataclass(frozen=True)
class ListedRate:
    """How often spot machines of one kind are interrupted.

    Attributes:
        instance, region: in the provider's words.
        share_per_month: upper end of the class: of 100 machines, how many are interrupted in a month, over 100.
        label: the class in the list's words, "<5%".
    """

    instance: str
    region: str
    share_per_month: float
    label: str


@dataclass(frozen=True)
class ParsedList:
    """What an adapter made of the bytes of a list.

    Attributes:
        rows: with an accelerator, unchecked.
        rates: of interruptions, of a list that has these instead.
        without_accelerator: number of rows that sell none; no concern of this catalog.
        remarks: what was read otherwise than written, a sentence each.
    """

    rows: tuple[ListedRow, ...] = ()
    rates: tuple[ListedRate, ...] = ()
    without_accelerator: int = 0
    remarks: tuple[str, ...] = ()


def number(value: object) -> float | None:
    """A finite number from a cell or a JSON value; None for anything else, an empty cell among them."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def text(value: object) -> str:
    """A short text on one line, without what a terminal would act upon; "" for anything that is no text."""
    if not isinstance(value, str):
        return ""
    return "".join(each for each in " ".join(value.split())[:LONGEST_TEXT] if each.isprintable()).strip()


def unreadable(source: str, what: str) -> PriceListError:
    """The one error of an adapter."""
    return PriceListError(
        f"the answer is no list of {source}: {what}. The prices that were there stay.",
        ["try again later", "fetch the list yourself and read it with --from FILE"],
    )


def json_of(data: bytes, source: str) -> object:
    """The value of a JSON document. Raises PriceListError."""
    try:
        return parse_json(data)
    except (ValueError, json.JSONDecodeError) as error:
        raise unreadable(source, f"it is not JSON ({error})") from None


def objects(value: object, source: str, key: str) -> list[Mapping[str, object]]:
    """A list of JSON objects. Raises PriceListError where it is something else, or too long."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise unreadable(source, f"{key} is not a list of objects")
    if len(value) > MOST_ROWS:
        raise unreadable(source, f"{key} has {len(value):,} rows, more than {MOST_ROWS:,}")
    return value
