"""A Validation as text, as a page, and in numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from validation_samples import BROKEN, GOOD, LARGE, OF_RANKS, SLOW, STEPS_OF_RANKS, validation

from gpuwise.errors import InputError
from gpuwise.report.validate import rank_rows, validate_report
from gpuwise.report.validate_page import save_page
from gpuwise.results.validation import MeasuredStep, Trial, Validation

ALL = validation(GOOD, SLOW, LARGE, BROKEN)


def shown(result: Validation, width: int = 160) -> str:
    text = StringIO()
    Console(file=text, width=width).print(validate_report(result))
    return text.getvalue()


def test_errors_are_shares_of_what_was_measured():
    assert GOOD.error == pytest.approx(0.1)
    assert GOOD.memory_error == pytest.approx(0.01)
    assert GOOD.inside is True
    assert GOOD.throughput == pytest.approx(800, rel=1e-3)
    assert (SLOW.error, SLOW.inside) == (pytest.approx(-0.5), False)
    assert (LARGE.error, LARGE.inside, LARGE.memory_error, LARGE.foreseen) == (None, None, None, True)
    assert BROKEN.foreseen is None


def test_the_summary_counts_outcomes_and_names_the_worst():
    answer = ALL.summary
    assert (answer["trials"], answer["measured"], answer["out_of_memory"], answer["failed"]) == (4, 2, 1, 1)
    assert answer["median_error"] == pytest.approx(0.3)
    assert answer["worst_error"] == pytest.approx(0.5)
    assert answer["inside"] == 1
    assert ALL.failed
    assert not validation(GOOD, LARGE).failed
    assert validation().summary["median_error"] is None


def test_the_json_holds_what_was_measured_and_what_was_forecast():
    answer = json.loads(json.dumps(ALL.to_dict()))
    first = answer["trials"][0]
    assert first["measured"]["step"]["median_s"] == 0.010
    assert first["measured"]["throughput"] == pytest.approx(800, rel=1e-3)
    assert first["forecast"]["step_time_s"]["value"] == 0.011
    assert answer["trials"][3]["measured"] is None
    assert answer["summary"]["measured"] == 2
    measured = {name: value for name, value in first["measured"].items() if name != "throughput"}
    assert MeasuredStep.from_dict(measured) == GOOD.measured


@pytest.mark.parametrize("width", [80, 160])
def test_several_jobs_are_a_table(width: int):
    text = shown(ALL, width)
    for word in ("tiny", "slow", "large", "broken", "10 ms", "+10.0 %", "-50.0 %", "out of memory", "over all"):
        assert word in text, word
    assert "as was forecast" in text
    assert "the sky fell. Try: mend it." in " ".join(text.split())
    assert "1 of 2 measured steps lie inside" in text


def test_a_single_job_is_told_in_full():
    text = shown(validation(GOOD))
    for word in ("800", "727 images/s", "activations and temporaries", "391 KiB", "arithmetic", "90 % interval", "inside"):
        assert word in text, word
    assert "OUTSIDE" in shown(validation(SLOW))
    assert "31 % of the processors" in shown(validation(SLOW))
    assert "out of memory, as was forecast" in shown(validation(LARGE))
    assert "the sky fell" in shown(validation(BROKEN))


def test_of_several_ranks_the_slowest_and_the_largest_count():
    measured = OF_RANKS.measured
    assert measured is not None
    assert measured.step == STEPS_OF_RANKS[1].step
    assert measured.memory_bytes == 1_000_000
    assert measured.by_category["parameter"] == 400_000
    assert [(rank.rank, rank.median_s, rank.memory_bytes) for rank in measured.ranks] == [
        (0, 0.010, 1_000_000),
        (1, 0.012, 900_000),
    ]
    assert MeasuredStep.from_dict(json.loads(json.dumps(measured.to_dict()))) == measured
    text = shown(validation(OF_RANKS))
    for word in ("step time of the slowest rank", "peak memory of the largest", "pp=2", "of each rank"):
        assert word in text, word


def test_memory_that_was_not_measured_has_no_table():
    measured = MeasuredStep.of_ranks([replace(step, memory_bytes=None, by_category={}) for step in STEPS_OF_RANKS])
    text = shown(validation(replace(OF_RANKS, measured=measured)))
    assert "memory at the peak" not in text
    assert "of each rank" in text


def test_of_many_ranks_three_are_shown():
    steps = [replace(STEPS_OF_RANKS[0], memory_bytes=1000 + (rank == 5)) for rank in range(20)]
    steps[7] = replace(steps[7], step=STEPS_OF_RANKS[1].step)
    rows = rank_rows(MeasuredStep.of_ranks(steps).ranks)
    assert [cells[0] for cells in rows] == ["0", "5", "7"]


def test_nothing_measured_and_interrupted_runs_are_said():
    assert "nothing was measured" in shown(validation(interrupted=True))
    assert "interrupted" in shown(validation(GOOD, interrupted=True))


@pytest.mark.parametrize("name", ["page.md", "page.html"])
@pytest.mark.parametrize("trials", [(GOOD, SLOW, LARGE, BROKEN), (BROKEN,), (OF_RANKS,), ()])
def test_a_page_stands_alone(tmp_path: Path, name: str, trials: tuple[Trial, ...]):
    path = save_page(validation(*trials), tmp_path / name)
    text = path.read_text()
    assert list(tmp_path.iterdir()) == [path]
    assert "://" not in text
    assert "<warning>" not in text
    for trial in trials:
        assert trial.job in text
    assert ("rank" in text) == (OF_RANKS in trials)
    if GOOD in trials:
        assert "+10.0 %" in text
        assert "activations and temporaries" in text


def test_cells_of_markdown_stay_in_their_columns(tmp_path: Path):
    text = save_page(ALL, tmp_path / "page.md").read_text()
    header = next(line for line in text.splitlines() if line.startswith("| job"))
    rows = [line for line in text.splitlines() if line.startswith(("| tiny", "| slow", "| large", "| broken"))]
    assert {row.count("|") for row in rows} == {header.count("|")}
    assert "of sorts" in text.replace("\\|", "")


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path):
    with pytest.raises(InputError, match=r"\.md or \.html"):
        save_page(ALL, tmp_path / "page.pdf")
    with pytest.raises(InputError, match="there is no folder"):
        save_page(ALL, tmp_path / "none" / "page.md")
    (tmp_path / "page.md").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        save_page(ALL, tmp_path / "page.md")
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]
