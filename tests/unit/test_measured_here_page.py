"""docs/measured-here.md is what its script makes of the results beside it."""

import json

from benchmarks.measured_here import COMMAND, FIGURE, PAGE, RESULTS, page

DATA = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_page_is_that_of_the_results():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(DATA)
    assert COMMAND in text.splitlines()[0]
    assert FIGURE.read_text(encoding="utf-8").rstrip().endswith("</svg>")


def test_every_job_of_the_suite_is_there_and_was_measured():
    trials = DATA["validation"]["trials"]
    assert len(trials) == DATA["validation"]["summary"]["measured"] == 12
    assert all(abs(trial["memory_error"]) < 0.01 for trial in trials)
