"""docs/measured-here.md is what its script makes of the results beside it."""

import json

from benchmarks.measured_here import COMMAND, FIGURE, PAGE, RESULTS, page
from benchmarks.support.small_passes_page import RESULTS as SMALL_PASSES
from benchmarks.support.small_passes_page import section

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


def test_passes_of_small_models_are_below_with_errors_over_their_median():
    row = {"model": "tiny", "samples": 1, "low_s": 9e-4, "high_s": 2e-3}
    rows = [
        {**row, "median_s": 1e-3, "forecasts": {"shipped figures": 2e-3, "measured": 1.1e-3}, "inside": True},
        {**row, "median_s": 1e-3, "forecasts": {"shipped figures": 3e-3, "measured": 0.7e-3}, "inside": False},
    ]
    text = section({"machine": "Z80", "torch": "2.13", "date": "2026-01-01", "rounds": 3, "rows": rows})
    assert "| shipped figures | 150.0 % | 190.0 % | +150.0 % |" in text
    assert "| measured | 20.0 % | 28.0 % | -10.0 % |" in text
    assert "| tiny | 1 | 1 ms (0.9 ms to 2 ms) | 2 ms (+100 %) | 1.1 ms (+10 %) |" in text
    assert "1 of 2 are inside" in text
    assert section(json.loads(SMALL_PASSES.read_text(encoding="utf-8"))) in PAGE.read_text(encoding="utf-8")
