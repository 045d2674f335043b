"""Pages that stand alone: one HTML file, nothing from elsewhere, no scripts, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """:root { color-scheme: light dark; --page: #fff; --ink: #222; --dim: #6b6b6b; --rule: #ddd; --panel: #f6f7f9 }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181c; --ink: #e6e6e6; --dim: #9a9fa8; --rule: #343840; --panel: #1e2127 } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: var(--ink);
       background: var(--page) }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .25em .8em; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top }
th { border-bottom: 2px solid var(--dim) } .right { text-align: right; font-variant-numeric: tabular-nums }
h1 { font-size: 1.6em; margin-bottom: .2em } h2 { font-size: 1.2em; margin-top: 2em } .dim { color: var(--dim) }"""


def page(title: str, body: Sequence[str], *, style: str = "") -> str:
    """A whole document. title: plain text; body: HTML; style: CSS beyond STYLE."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n{style}\n</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Plain text in cells. right: headers of columns of numbers."""
    classes = [' class="right"' if header in right else "" for header in headers]
    lines = ["".join(f"<th{css_class}>{escape(header)}</th>" for header, css_class in zip(headers, classes, strict=True))]
    lines += [
        "".join(f"<td{css_class}>{escape(cell)}</td>" for cell, css_class in zip(cells, classes, strict=True)) for cells in rows
    ]
    return "<table>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>"


def bullets(lines: Sequence[str]) -> str:
    """Plain text, one line each."""
    return "<ul>\n" + "\n".join(f"<li>{escape(line)}</li>" for line in lines) + "\n</ul>"
