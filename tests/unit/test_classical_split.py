"""The constants of plan/cpu/growth.py are set on other estimators and other data than those that docs/cpu-enough.md reports."""

from __future__ import annotations

import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
from benchmarks import classical_jobs, classical_tuning


def classes(kinds: dict) -> set[str]:
    names = set()
    for make, *_ in kinds.values():
        estimator = make()
        steps = getattr(estimator, "steps", None)
        names.add(type(steps[-1][1] if steps else estimator).__name__)
    return names


def test_no_class_is_in_both():
    reported, tuned = classes(classical_jobs.KINDS), classes(classical_tuning.KINDS)
    assert len(reported) >= 18
    assert len(tuned) >= 18
    assert not reported & tuned


def test_no_generator_of_data_is_in_both():
    reported, tuned = (
        {kind[1].__module__ for kind in kinds.values()} for kinds in (classical_jobs.KINDS, classical_tuning.KINDS)
    )
    assert not reported & tuned


def test_each_kind_has_two_shapes_of_data():
    assert len(classical_jobs.JOBS) == 2 * len(classical_jobs.KINDS)
