"""The regret of ranking plans by forecasts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from benchmarks.search_regret import regret_of, regrets, summary


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
    plans = pd.DataFrame(
        {
            "group": "several machines",
            "kept_out": False,
            "model": ["a"] * 4 + ["b"] * 3,
            "devices": 8,
            "dp": [1, 2, 4, 8, 1, 2, 4],
            "micro_batch": 1,
            "accumulation": [8, 4, 2, 1, 4, 4, 1],
            "forecast": [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0],
            "seconds": [1.1, 1.0, 3.0, 4.0, 1.0, 1.0, 1.0],
        }
    )
    groups = regrets(plans)
    assert groups.plans.tolist() == [4]
    assert groups.regret[0] == pytest.approx(0.1)
    assert "within 1 % in 0%" in summary(groups)
