"""docs/parallel-truth.md is made of the results beside it, and every case there trains as one process does."""

from __future__ import annotations

import json

from benchmarks.parallel_truth import FAMILIES, PAGE, RESULTS, page


def test_the_page_is_that_of_its_results():
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(rows)
    assert [row["name"] for row in rows if not row.get("equal")] == []


def test_results_are_of_cases_that_exist():
    cases = {(family, case.name, str(case.strategy.mesh)) for family, cases in FAMILIES.items() for case in cases}
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {(row["family"], row["name"], row["mesh"]) for row in rows} <= cases
    assert len(cases) == sum(len(cases) for cases in FAMILIES.values())
