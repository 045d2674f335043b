"""Price lists that the user fetched with `gpuwise offers --refresh`, as kept in the cache folder: one JSON file a provider.

A file names the digest of its own content, so that a damaged one is recognised. Such a file is ignored, which
`gpuwise doctor` and `gpuwise offers` say, and the shipped prices count. GPUWISE_NO_CACHE=1 switches refreshed prices off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from gpuwise.errors import FileFormatError
from gpuwise.hardware.sourced import Source
from gpuwise.hardware.toml_cache import cache_home, switched_off
from gpuwise.hardware.types import Offer
from gpuwise.json_types import JsonObject
from gpuwise.plain_files import parse_json, read_regular

FORMAT, VERSION = "gpuwise-prices", 1
LARGEST_BYTES = 64 * 2**20
SPOT_ADVISOR = "spot-advisor"
_TEXTS = ("provider", "source", "url", "fetched_at", "as_of", "etag", "sha256")


@dataclass(frozen=True)
class RefreshedList:
    """A fetched list of one provider, as kept.

    Attributes:
        provider: id of the provider; SPOT_ADVISOR for AWS's interruptions.
        source: the published list, in words.
        url: where its bytes came from; a file's path for --from.
        fetched_at: when, in UTC.
        as_of: the day of the prices: that of the fetch, or of the list where its server says that the list is older.
        etag: of the server's answer; "" where it gave none.
        sha256: of the list's bytes, in hexadecimal.
        parser: version of the adapter that read it.
        offers: rows as in the catalog's files, without provider, source and date.
        rates: interruption classes by region and instance: [share a month, label].
        quarantined: rows that were not taken: [row, reason, number].
        remarks: what was read otherwise than written.
    """

    provider: str
    source: str
    url: str
    fetched_at: str
    as_of: str
    etag: str
    sha256: str
    parser: int
    offers: tuple[JsonObject, ...] = field(default=(), hash=False)
    rates: Mapping[str, Mapping[str, tuple[float, str]]] = field(default_factory=dict, hash=False)
    quarantined: tuple[tuple[str, str, int], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def source_text(self) -> str:
        """As offers and plans show it: with the beginning of the list's hash."""
        return f"{self.source}, sha256 {self.sha256[:12]}"

    @property
    def quarantined_rows(self) -> int:
        return sum(rows for _, _, rows in self.quarantined)

    @property
    def number_of_rates(self) -> int:
        return sum(map(len, self.rates.values()))

    def tables(self) -> list[dict[str, object]]:
        """The rows as `[[offer]]` tables of a catalog file."""
        common = {"provider": self.provider, "source": self.source_text, "as_of": self.as_of}
        return [{**row, **common} for row in self.offers]

    def to_bytes(self) -> bytes:
        """The content of its file."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        body = json.dumps({"format": FORMAT, "version": VERSION, **values}, ensure_ascii=False, separators=(",", ":"))
        encoded = body.encode(errors="replace")
        return sha256(encoded).hexdigest().encode() + b"\n" + encoded + b"\n"


def folder() -> Path:
    """$XDG_CACHE_HOME/gpuwise/prices, else ~/.cache/gpuwise/prices. It need not exist."""
    return cache_home() / "prices"


def path_of(provider: str) -> Path:
    """The file of a provider's list."""
    return folder() / f"{provider}.json"


def refreshed_files() -> tuple[Path, ...]:
    """The lists that are kept; none where GPUWISE_NO_CACHE is set."""
    return () if switched_off() else tuple(sorted(path for path in folder().glob("*.json") if not path.name.startswith(".")))


def read_list(path: Path) -> RefreshedList:
    """A kept list. Raises FileFormatError for a file that is not as it was written."""
    try:
        return read_list_of(read_regular(path, limit_bytes=LARGEST_BYTES))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FileFormatError(
            f"{path}: the fetched price list cannot be read ({error}).", ["gpuwise offers --refresh", "remove the file"]
        ) from None


def read_list_of(data: bytes) -> RefreshedList:
    """A list from the content of its file. Raises ValueError, TypeError or KeyError."""
    digest, _, body = data.partition(b"\n")
    if sha256(body.removesuffix(b"\n")).hexdigest().encode() != digest:
        raise ValueError("its digest differs")
    values = parse_json(body)
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ValueError("it is no price list of gpuwise")
    if values.pop("version", None) != VERSION:
        raise ValueError("it is of another version of gpuwise")
    return _checked(values)


def _checked(values: Mapping[str, object]) -> RefreshedList:
    """Raises ValueError, TypeError or KeyError for values of the wrong types."""
    if not all(isinstance(values[name], str) for name in _TEXTS) or not isinstance(values["parser"], int):
        raise ValueError("a field has the wrong type")
    offers, rates, quarantined, remarks = (values[name] for name in ("offers", "rates", "quarantined", "remarks"))
    if not isinstance(offers, list) or not all(isinstance(row, dict) for row in offers):
        raise ValueError("its offers are no tables")
    if not isinstance(rates, dict) or not isinstance(quarantined, list) or not isinstance(remarks, list):
        raise ValueError("a field has the wrong type")
    texts = {name: str(values[name]) for name in _TEXTS}
    return RefreshedList(
        **texts,
        parser=values["parser"],
        offers=tuple(offers),
        rates={
            str(region): {str(instance): (float(share), str(label)) for instance, (share, label) in table.items()}
            for region, table in rates.items()
        },
        quarantined=tuple((str(row), str(why), int(count)) for row, why, count in quarantined),
        remarks=tuple(map(str, remarks)),
    )


@dataclass(frozen=True)
class SourcedInterruptions:
    """How often one kind of spot machine was interrupted in the last month, as its provider publishes it.

    Attributes:
        share_per_month: upper end of the class.
        label: the class in the provider's words.
        source: of the class.
    """

    share_per_month: float
    label: str
    source: Source


def sourced_interruptions(offer: Offer) -> SourcedInterruptions | None:
    """The published class of an offer's machine in its region; None where none was fetched, or it is not listed."""
    if offer.provider != "aws" or offer.terms != "spot" or switched_off():
        return None
    path = path_of(SPOT_ADVISOR)
    with suppress(OSError):
        published = _rates(path, path.stat().st_mtime_ns)
        rate = None if published is None else published.rates.get(offer.region, {}).get(offer.instance)
        if published is not None and rate is not None:
            return SourcedInterruptions(*rate, Source(published.source_text, published.as_of))
    return None


@lru_cache(maxsize=4)
def _rates(path: Path, changed_ns: int) -> RefreshedList | None:
    with suppress(FileFormatError):
        return read_list(path)
    return None
