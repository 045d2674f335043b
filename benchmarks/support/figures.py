"""Figures of cost/data/efficiency.toml read and changed in place, and errors in one line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import numpy as np


def get(data: dict[str, Any], key: str) -> float:
    for part in key.split("."):
        data = data[part]
    return float(data)  # type: ignore[arg-type]


def put(data: dict[str, Any], key: str, value: float) -> None:
    *path, last = key.split(".")
    for part in path:
        data = data[part]
    data[last] = value


def error_line(errors: np.ndarray) -> str:
    if not len(errors):
        return "no rows"
    size = np.abs(np.expm1(-errors))
    bias = np.expm1(np.median(-errors))
    worse = np.quantile(size, 0.9)
    return f"{len(errors)} rows, median error {np.median(size):.1%}, 90th percentile {worse:.1%}, bias {bias:+.1%}"


def write_figures(text: str, figures: Mapping[str, float | tuple[float, float]]) -> str:
    """The data file with these figures changed in place, comments kept."""
    for key, value in figures.items():
        section, _, name = key.rpartition(".")
        start = text.index(f"[{section}]\n") if section else 0
        end = text.find("\n[", start + 1)
        body = text[start : end if end >= 0 else None]
        shown = f"[{value[0]:.2g}, {value[1]:.2g}]" if isinstance(value, tuple) else f"{value:.3g}"
        changed, count = re.subn(rf"(?m)^{re.escape(name)} = .*$", f"{name} = {shown}", body)
        if count != 1:
            raise ValueError(f"{key} stands {count} times in the data file")
        text = text[:start] + changed + (text[end:] if end >= 0 else "")
    return text


def write_evidence(text: str, evidence: dict[str, dict[str, str]]) -> str:
    """The data file with its [evidence] tables (the last of the file) replaced for these pieces."""
    head, _, tail = text.partition("\n# What each fitted figure")
    known = tomllib.loads("# What each fitted figure" + tail).get("evidence", {}) if tail else {}
    known.update(evidence)
    lines = ["", "# What each fitted figure was fitted on, and what is left: of rows seen, and of rows kept out."]
    for name, entry in known.items():
        lines += [f'[evidence."{name}"]', *(f'{key} = "{value}"' for key, value in entry.items()), ""]
    return head.rstrip("\n") + "\n" + "\n".join(lines).rstrip("\n") + "\n"
