"""The comparison of forecasts with ranks over gloo: its strategies can be forecast, and its page says what was measured."""

from __future__ import annotations

import pytest
from benchmarks import gloo_forecasts
from benchmarks.support.gloo_steps import ALONE, STRATEGIES, job_of

from gpuwise.strategy import StepFacts, check_techniques

ROWS = [
    {"name": ALONE, "ranks": 1, "seconds": 0.1, "low": 0.09, "high": 0.11, "rounds_s": [0.1, 0.3]},
    {"name": "replicas", "ranks": 2, "seconds": 0.2, "low": 0.1, "high": 0.4, "rounds_s": [0.24, 0.25, 0.26]},
    {"name": "tensor", "ranks": 2, "seconds": 0.3, "low": 0.25, "high": 0.4, "rounds_s": [0.2, 0.19, 0.4]},
]


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_strategy_excludes_itself(name: str):
    step = STRATEGIES[name]
    check_techniques(step.strategy, StepFacts(str(job_of(step).name)))
    assert step.strategy.mesh.devices in (1, 2, 4)


def test_ten_ways_to_share_the_work_are_compared():
    assert len(STRATEGIES) > 10
    axes = {
        axis
        for step in STRATEGIES.values()
        for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
        if getattr(step.strategy.mesh, axis) > 1
    }
    assert axes == {"dp_replicate", "dp_shard", "tp", "pp", "cp", "ep"}


def test_errors_are_of_medians_and_one_rank_is_no_strategy():
    assert gloo_forecasts.error(ROWS[1]) == pytest.approx(0.2 / 0.25 - 1)
    text = gloo_forecasts.summary(ROWS)
    assert text.startswith("2 strategies: median error 35.0%")
    assert "largest 50.0%; 1 measured steps lie inside" in text


def test_page_names_the_machine_its_load_and_every_row():
    page = gloo_forecasts.page(
        {"machine": "A CPU, 2 cores", "load": 0.2, "load_after": 3.1, "date": "2026-11-23", "rows": ROWS}
    )
    assert "A CPU, 2 cores; load 0.2 before and 3.1 at the end" in page
    assert "| replicas | 2 | 200 ms | 250 ms | -20.0% | 240 to 260 ms |" in page
