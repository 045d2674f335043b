"""docs/launch.md has the targets and their settings as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.launch.target import TARGETS, target

DOCS = Path(__file__).parents[2] / "docs" / "launch.md"
BEGIN, END = "<!-- launch-targets: begin -->\n", "<!-- launch-targets: end -->"


def table() -> str:
    """The targets with their clients, and a row for each setting. To write both: python tests/unit/test_launch_docs.py."""
    rows = ["| `--to` | starts with |", "| --- | --- |"]
    rows += [f"| `{name}` | `{target(name).client}` |" for name in TARGETS]
    rows += ["", "| `--set` | of | meaning |", "| --- | --- | --- |"]
    targets_of: dict[tuple[str, str], list[str]] = {}  # of a setting and its meaning, which several targets may share
    for name in TARGETS:
        for key, setting in target(name).settings.items():
            meaning = _sentence(setting.help) + " (needed)" * setting.required
            targets_of.setdefault((f"{key}={setting.example}", meaning), []).append(name)
    rows += [f"| `{text}` | {', '.join(names)} | {meaning} |" for (text, meaning), names in targets_of.items()]
    return "\n".join(rows) + "\n"


def _sentence(text: str) -> str:
    return text[0].lower() + text[1:].rstrip(".")


@pytest.mark.skipif(not DOCS.exists(), reason="not run from the source tree")
def test_the_table_of_targets_is_that_of_the_code():
    assert DOCS.read_text().partition(BEGIN)[2].partition(END)[0] == table()


if __name__ == "__main__":
    before, _, rest = DOCS.read_text().partition(BEGIN)
    DOCS.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
