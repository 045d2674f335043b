"""The regret of ranking plans by forecasts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from benchmarks.support.composed_steps import composed
from benchmarks.support.regret import explained, regret_of, regret_of_spread, regrets, spread_of, summary, with_batch


def plans(**columns: object) -> pd.DataFrame:
    """Rows as benchmarks.megatron has them."""
    same = {
        "group": "several machines",
        "kept_out": False,
        "model": "8x2",
        "heads": 2,
        "devices": 8,
        "tp": 1,
        "pp": 1,
        "peer_s": np.nan,
    }
    rows = pd.DataFrame({**same, **columns})
    return with_batch(rows.assign(log_error=np.log(rows.seconds / rows.forecast)))


def test_regret_is_what_the_plan_ranked_first_took_beyond_the_best() -> None:
    measured = np.array([10.0, 12.0, 11.0, 20.0])
    right = regret_of(2 * measured, measured)
    assert right.regret == 0
    assert right.correlation == pytest.approx(1)
    assert right.by_chance == pytest.approx(13.25 / 10 - 1)
    wrong = regret_of(-measured, measured)
    assert wrong.regret == pytest.approx(1)
    assert wrong.correlation == pytest.approx(-1)


def test_groups_have_the_same_model_devices_and_batch() -> None:
    groups = regrets(
        plans(
            model=["a"] * 4 + ["b"] * 3,
            dp=[1, 2, 4, 8, 1, 2, 4],
            micro_batch=1,
            accumulation=[8, 4, 2, 1, 4, 4, 1],
            forecast=[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0],
            seconds=[1.1, 1.0, 3.0, 4.0, 1.0, 1.0, 1.0],
            peer_s=[2.0, 1.0, 3.0, 4.0, 1.0, 1.0, 1.0],
        )
    )
    assert groups.plans.tolist() == [4]
    assert groups.regret[0] == pytest.approx(0.1)
    assert groups.peer[0] == 0
    assert "within 1 % in 0%" in summary(groups)


def test_runs_of_a_plan_count_once_by_their_mean() -> None:
    rows = plans(
        dp=[1, 1, 1, 2, 4],
        micro_batch=1,
        accumulation=[4, 4, 4, 2, 1],
        forecast=[1.0, 1.0, 1.0, 2.0, 3.0],
        seconds=[1.1, 1.3, 1.3, 1.0, 3.0],  # the second of the two equal runs is one listed twice
    )
    groups = regrets(rows)
    assert groups.plans.tolist() == [3]
    assert groups.regret[0] == pytest.approx(0.2)
    assert groups.spread[0] == pytest.approx(np.std(np.log([1.1, 1.3]), ddof=1))


def test_spread_without_repeated_plans_is_that_of_micro_batches() -> None:
    rows = plans(dp=[1, 1, 2], micro_batch=[1, 2, 1], accumulation=[4, 2, 2], forecast=[1.0, 1.0, 1.0], seconds=[1.0, 1.1, 2.0])
    assert spread_of(rows) == pytest.approx(np.log(1.1) / np.sqrt(2))
    assert np.isnan(spread_of(rows[rows.micro_batch == 1]))


def test_spread_explains_the_regret_of_plans_that_are_close() -> None:
    assert regret_of_spread(np.array([1.0, 1.001]), 0.05) == pytest.approx(0.028, abs=0.002)  # half of E|a - b|
    assert regret_of_spread(np.array([1.0, 2.0]), 0.05) == pytest.approx(0, abs=1e-6)
    groups = pd.DataFrame({"regret": [0.10, 0.02], "of_spread": [0.03, 0.05]})
    assert explained(groups) == pytest.approx(0.05 / 0.12)


def test_composed_steps_are_lines_in_micro_batches_and_in_layers() -> None:
    rows = pd.DataFrame(
        [
            {
                "model": f"8x{layers}",
                "tp": 1,
                "pp": 1,
                "dp": 1,
                "micro_batch": 1,
                "accumulation": n,
                "seconds": 2.0 + n * (layers + 1),
            }
            for layers in (1, 2, 4)
            for n in (1, 2, 4)
        ]
    )
    exact = composed(rows)
    assert (exact.rows, exact.layers, exact.lines) == (9, 1, 3)
    assert exact.off_s == pytest.approx(0, abs=1e-9)
    assert exact.layers_off_s == pytest.approx(0, abs=1e-9)
    rows.loc[1, "seconds"] += 0.3
    assert composed(rows).off_s > 0.1
