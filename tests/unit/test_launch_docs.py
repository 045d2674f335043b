"""docs/launch.md has the targets and their settings as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.launch.target import TARGETS, target

DOCS = Path(__file__).parents[2] / "docs" / "launch.md"
BEGIN, END = "<!-- launch-targets: begin -->\n", "<!-- launch-targets: end -->"


def table() -> str:
    """The targets' table. To write it: python tests/unit/test_launch_docs.py."""
    rows = ["| `--to` | starts with | `--set` |", "| --- | --- | --- |"]
    for name in TARGETS:
        one = target(name)
        settings = [f"`{key}={s.example}` {_sentence(s.help)}{' (needed)' * s.required}" for key, s in one.settings.items()]
        rows.append(f"| `{name}` | `{one.client}` | {'; '.join(settings)} |")
    return "\n".join(rows) + "\n"


def _sentence(text: str) -> str:
    return text[0].lower() + text[1:].rstrip(".")


@pytest.mark.skipif(not DOCS.exists(), reason="not run from the source tree")
def test_the_table_of_targets_is_that_of_the_code():
    assert DOCS.read_text().partition(BEGIN)[2].partition(END)[0] == table()


if __name__ == "__main__":
    before, _, rest = DOCS.read_text().partition(BEGIN)
    DOCS.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
