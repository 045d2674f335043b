"""CSV documents as rows by column name. Files order their columns differently and may lack some."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from gpuwise.refresh.listed import MOST_ROWS, unreadable


def csv_rows(data: bytes, source: str, *, needed: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV document with a header. Raises PriceListError.

    Arguments:
        source: of the list, in words.
        needed: columns that must be there, wherever they stand.
    """
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise unreadable(source, "it is not UTF-8 text") from None
    if content.lstrip()[:1] == "<":
        raise unreadable(source, "it is a page of HTML or XML")
    rows: list[dict[str, str]] = []
    try:
        table = csv.reader(io.StringIO(content), strict=True)
        header = next(table, [])
        if missing := [name for name in needed if name not in header]:
            raise unreadable(source, f"it has no column {', '.join(missing)}")
        if len(set(header)) < len(header):
            raise unreadable(source, "two of its columns have one name")
        for cells in table:
            if not cells:
                continue
            if len(cells) != len(header):
                raise unreadable(source, f"line {table.line_num} has {len(cells)} cells instead of {len(header)}")
            rows.append(dict(zip(header, cells, strict=True)))
            if len(rows) > MOST_ROWS:
                raise unreadable(source, f"it has more than {MOST_ROWS:,} rows")
    except csv.Error as error:
        raise unreadable(source, f"it is not CSV ({error})") from None
    return rows
