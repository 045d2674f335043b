"""docs/accuracy.md is generated: it says so, its figures exist, and it carries nothing it must not."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = "python -m benchmarks.accuracy_report --reference FOLDER --cache FOLDER"
PAGE = (DOCS / "accuracy.md").read_text(encoding="utf-8")


def test_header_says_that_the_page_is_generated_and_by_what():
    first, title, *rest = PAGE.splitlines()
    assert first.startswith("<!-- Generated.")
    assert COMMAND in first
    assert title.startswith("# ")
    assert any("generated" in line and COMMAND in line for line in rest[:3])


def test_every_figure_exists_and_is_a_drawing():
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE)
    assert "figures/step-time.svg" in figures
    for name in figures:
        text = (DOCS / name).read_text(encoding="utf-8")
        assert text.lstrip().startswith("<?xml")
        assert "</svg>" in text
    drawn = {path.name for path in (DOCS / "figures").glob("*.svg")}
    of_other_pages = {"memory.svg", "measured-here.svg", "train-panel.svg", "scaling.svg"}
    assert drawn == {Path(name).name for name in figures} | of_other_pages


TITLES = (
    "How rows were split",
    "What was asked, and what was reached",
    "By group",
    "Intervals",
    "Known biases",
    "Kernels",
    "Memory",
    "What others report",
    "Catalog",
    "Sources",
)


@pytest.mark.parametrize("title", TITLES)
def test_parts_are_there(title):
    assert re.search(rf"^##+ {title}$", PAGE, flags=re.MULTILINE)


def test_every_group_says_how_it_was_split_and_how_many_rows_it_has():
    rows = re.findall(
        r"^\| (vision|language|cpu) \| (fitted|unseen models|unseen device) \| ([\d,]+) \|", PAGE, flags=re.MULTILINE
    )
    assert {(models, split) for models, split, _ in rows} >= {
        (models, split) for models in ("vision", "language", "cpu") for split in ("fitted", "unseen models", "unseen device")
    }
    assert all(int(count.replace(",", "")) > 0 for _, _, count in rows)


def test_no_fitted_row_is_reported_as_a_test():
    goals = PAGE.split("## What was asked")[1].split("\n## ")[0]
    assert "fitted" not in goals.replace("kept out of the fit that forecast them", "").lower()


def test_tables_are_whole():
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE, flags=re.MULTILINE):
        head, ruler, *lines = block.splitlines()
        assert re.fullmatch(r"[|: -]+", ruler)
        assert lines, head
        assert {line.count("|") for line in lines} == {head.count("|")}


def test_no_path_of_the_machine_that_made_it_and_no_missing_number():
    assert not re.search(r"(?:^|[\s`(\"])/(?:work|tmp|home|root)/|\bnan\b|\{[a-z_]+\}", PAGE)
