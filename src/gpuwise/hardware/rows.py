"""The columns of the catalog's files, one by one: key in the file, field in the type, scale to base units, limits."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from gpuwise.errors import nearest
from gpuwise.hardware.types import CHIP_KINDS, FABRICS, LINK_KINDS, LINK_SERVES, PEAKS, Source

GB, GIB = 10**9, 2**30


@dataclass(frozen=True)
class Column:
    """How one key is read. scale None: text (choices limits it) or a flag; else a number in [low, high]."""

    field: str
    scale: float | None = None
    low: float = 0
    high: float = 1e9
    whole: bool = False
    flag: bool = False
    choices: tuple[str, ...] = ()


def _text(field: str, *, choices: tuple[str, ...] = ()) -> Column:
    return Column(field, choices=choices)


def _number(field: str, scale: float, low: float, high: float, *, whole: bool = False) -> Column:
    return Column(field, scale, low, high, whole)


# Common to every row; `sources`, `caveats` and `unverified` are read by `read_row` itself.
_META = {"source": _text("source"), "as_of": _text("as_of"), "notes": _text("notes")}

CHIP = {
    "vendor": _text("vendor"),
    "name": _text("name"),
    "kind": _text("kind", choices=CHIP_KINDS),
    "package": _text("package"),
    "devices_per_package": _number("devices_per_package", 1, 1, 1024, whole=True),
    "architecture": _text("architecture"),
    "compute_capability": _text("compute_capability"),
    "year": _number("year", 1, 1990, 2100, whole=True),
    "memory_gib": _number("memory_bytes", GIB, 0.01, 1e5, whole=True),
    "memory_type": _text("memory_type"),
    "memory_bandwidth_gb_per_s": _number("memory_bandwidth_bytes_per_s", GB, 0.1, 1e8),
    "ecc": Column("ecc", flag=True),
    "l2_mib": _number("l2_bytes", 2**20, 0.01, 1e5, whole=True),
    "sm_count": _number("sm_count", 1, 1, 1e7, whole=True),
    "shared_memory_per_sm_kib": _number("shared_memory_per_sm_bytes", 2**10, 1, 1e5, whole=True),
    "cuda_cores": _number("cuda_cores", 1, 1, 1e7, whole=True),
    "tensor_cores": _number("tensor_cores", 1, 1, 1e7, whole=True),
    "boost_clock_mhz": _number("boost_clock_hz", 1e6, 10, 1e5),
    **{f"{p}_tflops": _number(p, 1e12, 1e-4, 1e7) for p in PEAKS if p != "int8"},
    "int8_tops": _number("int8", 1e12, 1e-4, 1e7),
    "interconnect": _text("interconnect"),
    "link": _text("link_id"),
    "link_bandwidth_gb_per_s": _number("link_bandwidth_bytes_per_s", GB, 0.01, 1e6),
    "pcie_generation": _number("pcie_generation", 1, 1, 10, whole=True),
    "tdp_w": _number("tdp_w", 1, 0.01, 1e6),
    "msrp_usd": _number("msrp_usd", 1, 1, 1e7),
    "street_price_usd": _number("street_price_usd", 1, 1, 1e7),
    "trains": Column("trains", flag=True),
    **_META,
}

LINK = {
    "name": _text("name"),
    "kind": _text("kind", choices=LINK_KINDS),
    "technology": _text("technology"),
    "fabric": _text("fabric", choices=FABRICS),
    "serves": _text("serves", choices=LINK_SERVES),
    "reduces_in_switch": Column("reduces_in_switch", flag=True),
    "year": _number("year", 1, 1980, 2100, whole=True),
    "links_per_device": _number("links_per_device", 1, 1, 1e4, whole=True),
    "per_link_gb_per_s": _number("per_link_bytes_per_s", GB, 0.001, 1e6),
    "per_direction_gb_per_s": _number("per_direction_bytes_per_s", GB, 0.001, 1e6),
    "domain_devices": _number("domain_devices", 1, 1, 1e7, whole=True),
    "latency_us": _number("latency_s", 1e-6, 0.001, 1e7),
    "allreduce_busbw_gb_per_s": _number("allreduce_busbw_bytes_per_s", GB, 0.001, 1e6),
    "allreduce_condition": _text("allreduce_condition"),
    "used_by": _text("used_by"),
    **_META,
}

_PRICE_LIMIT = 1e6  # dollars an hour of a whole row; the largest pod in the catalog is below 30,000
OFFER = {
    "provider": _text("provider"),
    "instance": _text("instance"),
    "region": _text("region"),
    "chip": _text("chip_id"),
    "count": _number("count", 1, 0, 1e6),
    "vcpus": _number("vcpus", 1, 1, 1e6, whole=True),
    "host_memory_gib": _number("host_memory_bytes", GIB, 0.1, 1e7, whole=True),
    "local_disk_gb": _number("local_disk_bytes", GB, 0.1, 1e9, whole=True),
    "interconnect": _text("interconnect"),
    "network_gbit_per_s": _number("network_bytes_per_s", 1e9 / 8, 0.001, 1e6),
    "network_link": _text("network_link_id"),
    "on_demand_usd_per_hour": _number("on-demand", 1, 1e-4, _PRICE_LIMIT),
    "spot_usd_per_hour": _number("spot", 1, 1e-4, _PRICE_LIMIT),
    "reserved_1y_usd_per_hour": _number("reserved-1y", 1, 1e-4, _PRICE_LIMIT),
    "reserved_3y_usd_per_hour": _number("reserved-3y", 1, 1e-4, _PRICE_LIMIT),
    "owned_usd_per_hour": _number("owned", 1, 0, _PRICE_LIMIT),
    "free": Column("free", flag=True),
    "accelerator_only": Column("accelerator_only", flag=True),
    "max_session_hours": _number("max_session_hours", 1, 0.1, 1e5),
    "hours_per_week": _number("hours_per_week", 1, 0.1, 168),
    **_META,
}

Fail = Callable[[str | None, str], Exception]  # (key, what is wrong) -> the error to raise


@dataclass(frozen=True)
class CatalogRow:
    """A row read: values by field name, sources by field name, the row's own source (None: not stated; its text or date
    may be empty) and caveats."""

    values: dict[str, Any]
    sources: dict[str, Source]
    source: Source | None
    caveats: dict[str, str]


def read_row(raw: Mapping[str, object], columns: Mapping[str, Column], fail: Fail) -> CatalogRow:
    """Check and convert one table of a file. Raises what `fail` makes of (key, message)."""
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key in ("sources", "caveats", "unverified"):
            continue
        if key not in columns:
            near = nearest(key, list(columns))
            raise fail(key, f"unknown key {key!r} ({f'nearest: {near[0]}; ' if near else ''}known: {', '.join(columns)})")
        values[columns[key].field] = _convert(key, value, columns[key], fail)
    text, as_of = values.pop("source", None), values.pop("as_of", None)
    unverified = raw.get("unverified", False)
    if not isinstance(unverified, bool):
        raise fail("unverified", "unverified must be true or false")
    if as_of is not None:
        _check_date("as_of", as_of, fail)
    source = None if text is None and as_of is None else Source(text or "", as_of or "", not unverified)
    caveats = raw.get("caveats", {})
    if not isinstance(caveats, dict) or not all(isinstance(reason, str) and reason for reason in caveats.values()):
        raise fail("caveats", "caveats must be a table of texts")
    return CatalogRow(values, _read_sources(raw.get("sources", []), raw, columns, fail), source, caveats)


def _convert(key: str, value: object, column: Column, fail: Fail) -> object:
    if column.flag:
        if not isinstance(value, bool):
            raise fail(key, f"{key} must be true or false, got {value!r}")
        return value
    if column.scale is None:
        if not isinstance(value, str) or not value.strip():
            raise fail(key, f"{key} must be a text, got {value!r}")
        if column.choices and value not in column.choices:
            raise fail(key, f"{key} must be one of {', '.join(column.choices)}, got {value!r:.80}")
        if column.field == "compute_capability":
            if not re.fullmatch(r"\d{1,2}\.\d", value, re.ASCII):
                raise fail(key, f'{key} must look like "9.0", got {value!r}')
            return tuple(int(part) for part in value.split("."))
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise fail(key, f"{key} must be a number, got {value!r}")
    if not column.low <= value <= column.high:
        raise fail(key, f"{key} = {str(value)[:40]} is out of range ({column.low:g} to {column.high:g})")
    scaled = value * column.scale
    if column.whole:
        if column.scale == 1 and value != int(value):
            raise fail(key, f"{key} must be a whole number, got {value!r}")
        return round(scaled)
    return float(scaled)


def _read_sources(raw: object, row: Mapping[str, object], columns: Mapping[str, Column], fail: Fail) -> dict[str, Source]:
    """`sources = [{ figures = [...], source = "...", as_of = "...", unverified = true }]` by field name."""
    keys = {"figures", "source", "as_of", "unverified"}
    sources: dict[str, Source] = {}
    for entry in raw if isinstance(raw, list) else [None]:
        if not isinstance(entry, dict) or set(entry) - keys or not {"figures", "source", "as_of"} <= set(entry):
            raise fail("sources", "sources must be a list of { figures = [...], source = ..., as_of = ... }")
        figures, text, unverified = entry["figures"], entry["source"], entry.get("unverified", False)
        if not isinstance(figures, list) or not isinstance(text, str) or not isinstance(unverified, bool):
            raise fail("sources", "figures must be a list, source a text, unverified true or false")
        _check_date("sources", entry["as_of"], fail)
        for figure in figures:
            if not isinstance(figure, str) or figure not in row or figure not in columns:
                raise fail("sources", f"a source is given for {figure!r}, which is no figure of this row")
            sources[columns[figure].field] = Source(text, entry["as_of"], not unverified)
    return sources


_DAY = r"(?:19|20)\d\d(?:-(?:0[1-9]|1[0-2])(?:-\d\d)?)?"


def _check_date(key: str, value: object, fail: Fail) -> None:
    if not (isinstance(value, str) and re.fullmatch(rf"{_DAY}(\.\.{_DAY})?", value, re.ASCII) and _exists(value)):
        raise fail(key, f'a date looks like "2026", "2026-07", "2026-07-20" or a range "2025-12..2026", got {value!r}')


def _exists(as_of: str) -> bool:
    """False for the 31st of a shorter month."""
    try:
        latest_day(as_of)
    except ValueError:
        return False
    return True


def latest_day(as_of: str) -> date | None:
    """The last day that a date or range can mean; None when it is not stated."""
    year, month, day = ([int(part) for part in as_of.split("..")[-1].split("-") if part] + [0, 0, 0])[:3]
    if not year:
        return None
    month = month or 12
    return date(year, month, day or monthrange(year, month)[1])
