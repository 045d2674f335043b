"""docs/train.md has the table of benchmarks.shared_cpu as the results have it."""

import json

from benchmarks.shared_cpu import CONTESTANTS, PAGE, RESULTS, with_table


def test_the_page_is_made_of_the_results():
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, json.loads(RESULTS.read_text(encoding="utf-8"))) == page


def test_threads_that_wait_passively_are_faster_beside_another_program():
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    assert all(set(row) == set(CONTESTANTS) for row in rows.values())
    assert all(min(row["passive"]) > max(row["active"]) for rival, row in rows.items() if rival != "nothing")
