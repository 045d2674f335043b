"""Rows of the catalog's files to chips, links and offers: new ones, or known ones with the row's figures in place of theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from gpuwise.errors import nearest
from gpuwise.hardware.pricelist import OfferRow
from gpuwise.hardware.rows import CatalogRow, Fail
from gpuwise.hardware.types import PEAKS, TERMS, Chip, Link, Source

Entry = TypeVar("Entry", Chip, Link)


def _row_source(row: CatalogRow, path: Path) -> Source:
    """Rows of a user's file may leave out source and date: the file itself, as of its last change, at latest today."""
    source = row.source or Source("", "")
    if source.text and source.as_of:
        return source
    day = min(date.fromtimestamp(path.stat().st_mtime), date.today()).isoformat()
    return replace(source, text=source.text or path.name, as_of=source.as_of or day)


def near_words(name: str, candidates: Iterable[str]) -> str:
    """' (nearest: rtx-4090)', or ''."""
    near = nearest(name, list(candidates))
    return f" (nearest: {', '.join(near)})" if near else ""


def build(
    type_: type[Entry],
    id_: str,
    row: CatalogRow,
    existing: Mapping[str, Entry],
    path: Path,
    fail: Fail,
    required: tuple[str, ...],
) -> Entry:
    """A new object, or the known one of this id with the row's fields in place of its own."""
    base = existing.get(id_)
    source = _row_source(row, path)
    values: dict[str, Any] = dict(row.values)
    if base is None:
        missing = [name for name in required if name not in values]
        if missing:
            raise fail(
                None, f"there is no {id_!r} to change{near_words(id_, existing)}, and a new row needs {', '.join(missing)}"
            )
        return type_(id=id_, **values, source=source, sources=row.sources, caveats=row.caveats)
    sources = {name: row.sources.get(name, source) for name in (*values, *values.get("peak_flops_per_s", {}))}
    if isinstance(base, Chip) and "peak_flops_per_s" in values:
        values["peak_flops_per_s"] = {**base.peak_flops_per_s, **values["peak_flops_per_s"]}
    return replace(base, **values, sources={**base.sources, **sources}, caveats={**base.caveats, **row.caveats})


def build_chip(id_: str, row: CatalogRow, existing: Mapping[str, Chip], path: Path, fail: Fail) -> Chip:
    values = {k: v for k, v in row.values.items() if k not in PEAKS}
    peaks = {k: v for k, v in row.values.items() if k in PEAKS}
    if peaks:
        values["peak_flops_per_s"] = peaks
    return build(Chip, id_, replace(row, values=values), existing, path, fail, ("vendor", "name", "kind"))


def offer_key(row: CatalogRow, fail: Fail) -> tuple[str, str, str]:
    missing = [name for name in ("provider", "instance") if name not in row.values]
    if missing:
        raise fail(None, f"an offer needs {' and '.join(missing)}")
    return row.values.pop("provider"), row.values.pop("instance"), row.values.pop("region", "any")


def build_offer_row(key: tuple[str, str, str], row: CatalogRow, base: OfferRow | None, path: Path, fail: Fail) -> OfferRow:
    source = _row_source(row, path)
    values = {k: v for k, v in row.values.items() if k not in TERMS}
    prices = {k: v for k, v in row.values.items() if k in TERMS and k != "free"}
    if row.values.get("free"):
        prices["free"] = 0.0
    if base is None:
        return OfferRow(*key, values, prices, source, row.sources, row.caveats)
    sources = {name: row.sources.get(name, source) for name in row.values}
    return OfferRow(
        *key,
        {**base.values, **values},
        {**base.prices, **prices},
        base.source,
        {**base.sources, **sources},
        {**base.caveats, **row.caveats},
    )


def with_digest(row: CatalogRow, digest: str) -> CatalogRow:
    """A row of a fetched list, whose source then has the hash of the list."""
    return replace(row, source=None if row.source is None else replace(row.source, digest=digest))


def elsewhere(machine: OfferRow, key: tuple[str, str, str]) -> OfferRow:
    """The same machine in another region: what it has, without prices and what is written about them."""
    sources = {name: source for name, source in machine.sources.items() if name not in TERMS}
    caveats = {name: why for name, why in machine.caveats.items() if name not in TERMS}
    return OfferRow(*key, machine.values, {}, machine.source, sources, caveats)
