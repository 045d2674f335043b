"""The memory of a rank's real step on gloo, against its recording: of the schedule whose ranks keep most of what they send."""

from __future__ import annotations

import pytest
from benchmarks.rank_memory import GOAL, STRATEGIES, compare, error


@pytest.mark.slow
def test_what_a_rank_has_sent_counts_until_its_schedule_lets_go_of_it() -> None:
    rows = compare(STRATEGIES["pipeline, interleaved"])
    assert [row["rank"] for row in rows] == [0, 1]
    assert max(abs(error(row["peak"])) for row in rows) <= GOAL
