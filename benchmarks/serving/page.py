"""Tables into docs/serving.md, between two comments."""

from __future__ import annotations

from pathlib import Path

PAGE = Path("docs/serving.md")


def put(text: str, begin: str, end: str) -> None:
    """Replaces what stands between two lines of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(begin)[0], page.split(end)[1]
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
