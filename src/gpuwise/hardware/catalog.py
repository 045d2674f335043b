"""The catalog: chips, links and offers from gpuwise's data files, with a user's own files on top."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from gpuwise.errors import FileFormatError, UnknownNameError, unknown_name
from gpuwise.hardware import names
from gpuwise.hardware.catalog_build import (
    build,
    build_chip,
    build_offer_row,
    elsewhere,
    near_words,
    offer_key,
    with_digest,
)
from gpuwise.hardware.pricelist import OfferRow, exact_day
from gpuwise.hardware.providers import provider
from gpuwise.hardware.refreshed import RefreshedList, read_list, refreshed_files
from gpuwise.hardware.rows import CHIP, LINK, OFFER, CatalogRow, Column, latest_day, read_row
from gpuwise.hardware.today import today
from gpuwise.hardware.tomlfile import bad_file, find_line, read_toml
from gpuwise.hardware.types import Chip, Link, Offer

DATA = Path(__file__).parent / "data"


class Catalog:
    """Chips, links and offers, read when first used.

    Arguments:
        user_files: they override or add single rows.
        refreshed: fetched price lists, which override or add shipped offers; a user's rows override these. One that cannot be
            read is ignored and stands in `ignored_lists`.
        now: the day from which ages of prices count; None takes gpuwise.hardware.today.
    """

    def __init__(
        self, *, data: Path = DATA, user_files: Iterable[Path] = (), refreshed: Iterable[Path] = (), now: date | None = None
    ):
        self._data, self._now = data, now
        self.user_files, self.refreshed = tuple(user_files), tuple(refreshed)

    @cached_property
    def _lists(self) -> tuple[dict[Path, RefreshedList], dict[Path, str]]:
        """Fetched lists that can be read, and why the others cannot."""
        lists: dict[Path, RefreshedList] = {}
        ignored: dict[Path, str] = {}
        for path in self.refreshed:
            try:
                lists[path] = read_list(path)
                for table in lists[path].tables():
                    self._check_listed(path, table)
            except FileFormatError as error:
                lists.pop(path, None)
                ignored[path] = error.what
        return lists, ignored

    def _check_listed(self, path: Path, table: Mapping[str, object]) -> None:
        fail = _failure(path, "", "offer", 0)
        row = read_row(table, OFFER, fail)
        offer_key(row, fail)
        self._check_offer(row.values, fail)

    @property
    def refreshed_lists(self) -> tuple[RefreshedList, ...]:
        """The fetched lists that count."""
        return tuple(self._lists[0].values())

    @property
    def ignored_lists(self) -> tuple[str, ...]:
        """Fetched lists that do not count, with the reason."""
        return tuple(self._lists[1].values())

    @cached_property
    def chips(self) -> dict[str, Chip]:
        """By id."""
        chips: dict[str, Chip] = {}
        for path, raw, text in self._files("chips/*.toml"):
            for id_, row, fail in _tables(path, raw, text, "chip", CHIP, shipped=path not in self.user_files, ids=chips):
                chips[id_] = build_chip(id_, row, chips, path, fail)
        for path, raw, text in self._files():
            for _, row, fail in _tables(path, raw, text, "chip", CHIP, shipped=False, ids={}):
                link = row.values.get("link_id")
                if link is not None and link not in self.links:
                    raise fail("link", f"unknown link {link!r}")
        return chips

    @cached_property
    def links(self) -> dict[str, Link]:
        """By id."""
        links: dict[str, Link] = {}
        for path, raw, text in self._files("links.toml"):
            for id_, row, fail in _tables(path, raw, text, "link", LINK, shipped=path not in self.user_files, ids=links):
                links[id_] = build(Link, id_, row, links, path, fail, ("name", "kind"))
        return links

    @cached_property
    def offer_rows(self) -> tuple[OfferRow, ...]:
        """All stored rows, including those without a price."""
        rows: dict[tuple[str, str, str], OfferRow] = {}
        machines: dict[tuple[str, str], OfferRow] = {}  # by provider and instance, of any region
        for path, raw, text in self._files("offers/*.toml", lists=True):
            keys: set[tuple[str, str, str]] = set()
            for index, table in enumerate(_list(raw, "offer", path, text)):
                fail = _failure(path, text, "offer", index)
                row = read_row(table, OFFER, fail)
                if path in self.user_files:
                    _check_past(row, fail)
                    row = self._with_id(row)
                key = offer_key(row, fail)
                if key in keys:
                    raise fail("instance", f"the offer {' '.join(key)} stands twice in this file")
                keys.add(key)
                base = rows.get(key)
                if path in self.refreshed:
                    row, machine = with_digest(row, self._lists[0][path].sha256), machines.get(key[:2])
                    base = elsewhere(machine, key) if base is None and machine is not None else base
                rows[key] = build_offer_row(key, row, base, path, fail)
                machines.setdefault(key[:2], rows[key])
                self._check_offer(rows[key].values, fail)
        return tuple(rows.values())

    def _with_id(self, row: CatalogRow) -> CatalogRow:
        """The row with its chip's id, where the user names it as on the command line: h100-sxm."""
        with suppress(UnknownNameError, KeyError):
            return replace(row, values={**row.values, "chip_id": names.find_chip(str(row.values["chip_id"]), self.chips).id})
        return row

    def _check_offer(self, values: Mapping[str, Any], fail: Callable[[str | None, str], Exception]) -> None:
        chip, link = values.get("chip_id"), values.get("network_link_id")
        if chip is not None and chip not in self.chips:
            raise fail("chip", f"unknown chip {chip!r}{near_words(chip, self.chips)}")
        if chip is not None and values.get("count") == 0 and self.chips[chip].kind != "cpu":
            raise fail("count", f"a count of 0 means a CPU offer, and {chip} is none")
        if link is not None and link not in self.links:
            raise fail("network_link", f"unknown link {link!r}")

    @cached_property
    def newest(self) -> str:
        """The latest date of a shipped price. A user's own rows are ignored, because they do not show the age of the others."""
        rows = Catalog(data=self._data).offer_rows if self.user_files or self.refreshed else self.offer_rows
        return max((s.as_of for row in rows for s in (row.source, *row.sources.values())), key=exact_day, default="")

    @cached_property
    def today(self) -> date:
        """The day from which ages of prices count; the newest price's where this machine's clock is behind it."""
        now = today() if self._now is None else self._now
        return max(now, latest_day(exact_day(self.newest)) or now)

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Every offer that can be priced."""
        return tuple(offer for row in self.offer_rows for offer in row.offers(today=self.today))

    def where_servers_stay(self) -> Catalog:
        """The same without offers of notebook sessions, in which no server stays up."""
        catalog = copy(self)
        catalog.offers = tuple(offer for offer in self.offers if not provider(offer.provider).notebooks)
        return catalog

    @cached_property
    def incomplete_offers(self) -> tuple[OfferRow, ...]:
        """Rows that give no offer; `why_no_offer` says why."""
        return tuple(row for row in self.offer_rows if row.why_no_offer)

    def chip(self, id_: str) -> Chip:
        """A chip by its exact id. Raises UnknownNameError."""
        if id_ not in self.chips:
            raise unknown_name("chip", id_, list(self.chips), listing="gpuwise chips")
        return self.chips[id_]

    def link(self, id_: str) -> Link:
        """A link by its exact id. Raises UnknownNameError."""
        if id_ not in self.links:
            raise unknown_name("link", id_, list(self.links), listing="gpuwise chips --json")
        return self.links[id_]

    def find_chip(self, text: str) -> Chip:
        """A chip by id or any unambiguous shorter form ("h100-sxm"). Raises UnknownNameError."""
        return names.find_chip(text, self.chips)

    def _files(self, pattern: str | None = None, *, lists: bool = False) -> Iterable[tuple[Path, dict[str, object], str]]:
        """Shipped tables, then fetched ones where `lists`, then the user's: later ones override."""
        own = sorted(self._data.glob(pattern)) if pattern else []
        for path in own:
            shipped = self._data == DATA
            yield (path, *read_toml(path, entry=f"{path.parent.name}-{path.stem}" if shipped else None))
        for path, fetched in self._lists[0].items() if lists else ():
            yield path, {"offer": fetched.tables()}, ""
        for path in self.user_files:
            raw, text = _read_user(path)
            yield path, raw, text


def config_home() -> Path:
    """$GPUWISE_CONFIG_DIR, else $XDG_CONFIG_HOME/gpuwise, else ~/.config/gpuwise. It need not exist."""
    own = os.environ.get("GPUWISE_CONFIG_DIR")
    return Path(own) if own else Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "gpuwise"


def user_files() -> tuple[Path, ...]:
    """The user's files: *.toml in the folder of the configuration."""
    return tuple(sorted(config_home().glob("*.toml")))


def load_catalog() -> Catalog:
    """The catalog with the user's current files and fetched lists; cached for each set of files."""
    files, lists = (tuple((path, _changed(path)) for path in paths) for paths in (user_files(), refreshed_files()))
    return _load(files, lists, today())


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # e.g. a broken link: reading it says so with the file's name
        return 0


@lru_cache(maxsize=8)
def _load(files: tuple[tuple[Path, int], ...], lists: tuple[tuple[Path, int], ...], now: date) -> Catalog:
    return Catalog(user_files=[path for path, _ in files], refreshed=[path for path, _ in lists], now=now)


def _read_user(path: Path) -> tuple[dict[str, object], str]:
    raw, text = read_toml(path)
    for section in raw:
        if section not in ("chip", "link", "offer"):
            line = next((n for n, t in enumerate(text.splitlines(), 1) if section in t), 1)
            raise bad_file(path, line, f"unknown section {section!r}: rows are [chip.<id>], [link.<id>] and [[offer]]")
    return raw, text


def _failure(path: Path, text: str, section: str, name: str | int) -> Callable[[str | None, str], FileFormatError]:
    def fail(key: str | None, what: str) -> FileFormatError:
        return bad_file(path, find_line(text, section, name, key), what)

    return fail


def _tables(
    path: Path,
    raw: Mapping[str, object],
    text: str,
    section: str,
    columns: dict[str, Column],
    *,
    shipped: bool,
    ids: Collection[str],
) -> Iterable[tuple[str, CatalogRow, Callable[[str | None, str], FileFormatError]]]:
    tables = raw.get(section, {})
    if not isinstance(tables, dict):
        raise bad_file(path, find_line(text, section, 0), f"write [{section}.<id>], not [[{section}]]")
    for id_, table in tables.items():
        fail = _failure(path, text, section, id_)
        if not isinstance(table, dict):
            raise fail(None, f"{section}.{id_} must be a table")
        if not names.valid_id(id_):
            raise fail(None, f"{id_!r} is no id: lower-case letters, digits and hyphens")
        if shipped and id_ in ids:
            raise fail(None, f"duplicate id {id_!r}")
        row = read_row(table, columns, fail)
        if not shipped:
            _check_past(row, fail)
        yield id_, row, fail


def _list(raw: Mapping[str, object], section: str, path: Path, text: str) -> list[dict[str, object]]:
    tables = raw.get(section, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise bad_file(path, find_line(text, section, 0), f"write each as [[{section}]]")
    return tables


def _check_past(row: CatalogRow, fail: Callable[[str | None, str], FileFormatError]) -> None:
    """Rejects a user's row with a future date, which would be a mistake and never become stale."""
    dated = [("as_of", row.source), *(("sources", source) for source in row.sources.values())]
    for key, source in dated:
        if source is not None and exact_day(source.as_of) > date.today().isoformat():
            raise fail(key, f"the date {source.as_of} lies in the future")
