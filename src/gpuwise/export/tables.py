"""The tables of docs/export.md, made from the targets: python -m gpuwise.export.tables docs/export.md writes them again."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuwise.export.cells import EXACTLY, AnyCell, Cell, Refused, Row
from gpuwise.export.target import ExportTarget
from gpuwise.export.targets import all_targets
from gpuwise.json_types import Json

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def tables() -> str:
    """A section with a table for each target: field, value, its translation, how the peer differs."""
    return "\n".join(f"{_section(target)}" for target in all_targets())


def with_tables(page: str) -> str:
    """A page with its tables as the targets have them now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.partition(END)[2]}"


def _section(target: ExportTarget) -> str:
    lines = [f"### {target.title} ({target.peer})", ""]
    lines += [
        "| field | value | how | keys, or what your script sets | how it differs, or why not |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in target.rows:
        lines += [f"| {' | '.join(cells)} |" for cells in _rows(row)]
    return "\n".join([*lines, ""])


def _rows(row: Row) -> Iterator[tuple[str, ...]]:
    names = ", ".join(f"`{name}`" for name in row.fields)
    for value, cell in _joined(row.cases()):
        yield names, value, *_cells(cell)
        names = ""


def _joined(cases: list[tuple[str, AnyCell]]) -> Iterator[tuple[str, AnyCell]]:
    """Cases with neighbours of the same translation in one line."""
    groups: list[tuple[list[str], AnyCell]] = []
    for value, cell in cases:
        same = next((values for values, other in groups if other == cell), None)
        if same is None:
            groups.append(([value], cell))
        else:
            same.append(value)
    return ((", ".join(values), cell) for values, cell in groups)


def _cells(cell: AnyCell) -> tuple[str, str, str]:
    if isinstance(cell, Refused):
        return "refused", "", _plain(f"the plan {cell.reason}")
    keys = [f"`{name} = {_shown(value)}`" for name, value in cell.keys.items()]
    script = [f"`{cell.script}`"] if cell.script else []
    return (
        cell.status if cell != Cell() else EXACTLY,
        _plain("; ".join([*keys, *script]) or "nothing"),
        _plain(cell.differs),
    )


def _shown(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
