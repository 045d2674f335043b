"""ClassicalJob: what counts as an estimator and as data, and what its errors say."""

from __future__ import annotations

import numpy as np
import pytest

import gpuwise
from gpuwise.errors import JobError
from gpuwise.job.classical import ClassicalJob, rows_at, rows_of


class Mean:
    """The smallest estimator."""

    def fit(self, X, y=None):
        self.mean = np.mean(X)
        return self


def test_the_estimator_is_copied_or_made():
    one = Mean()
    assert ClassicalJob(one, data=[1, 2]).new_estimator() is not one
    assert isinstance(ClassicalJob(lambda: Mean(), data=[1, 2]).new_estimator(), Mean)
    assert gpuwise.ClassicalJob is ClassicalJob


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": 3, "data": [1]}, "must have a fit method, a int has none"),
        ({"estimator": Mean, "data": [1]}, "is the class Mean itself"),
        ({"estimator": Mean(), "data": None}, "needs data"),
        ({"estimator": Mean(), "data": lambda n: [1] * n}, "needs samples"),
        ({"estimator": Mean(), "data": [1], "samples": 0}, "whole number above zero"),
        ({"estimator": Mean(), "data": [1], "samples": 1.5}, "whole number above zero"),
    ],
)
def test_senseless_fields_are_refused(arguments: dict[str, object], message: str):
    with pytest.raises(JobError, match=message):
        ClassicalJob(**arguments)


@pytest.mark.parametrize(
    ("data", "rows", "message"),
    [
        (lambda n: [1], 5, "returned 1 rows for n = 5"),
        (lambda n: 1 / 0, 5, "data function raised: ZeroDivisionError"),
        (lambda: ([1, 2], [1]), None, "X of a classical job has 2 rows and its y 1"),
        (lambda: 7, None, "must be a table with rows, got a int"),
        (lambda: ([1], [1], [1]), None, "got a tuple of 3"),
        (lambda: ([1], None), None, "is \\(X, y\\) or X"),
    ],
)
def test_senseless_data_is_refused(data: object, rows: int | None, message: str):
    job = ClassicalJob(Mean(), data=data, samples=5)
    with pytest.raises(JobError, match=message):
        job.tables(rows)


def test_an_estimator_function_that_makes_none():
    with pytest.raises(JobError, match="must return something with fit, got a int"):
        ClassicalJob(lambda: 3, data=[1]).new_estimator()


def test_rows_of_each_kind_of_table():
    import pandas
    import scipy.sparse

    X = np.arange(12).reshape(6, 2)
    indices = np.array([0, 2, 5])
    for table in (X, X.tolist(), pandas.DataFrame(X), scipy.sparse.csr_matrix(X)):
        part = rows_at(table, indices)
        assert rows_of(table) == 6
        assert rows_of(part) == 3
        dense = part.toarray() if hasattr(part, "toarray") else np.array(part)
        assert (dense == X[indices]).all()
    labels = pandas.Series(list("abcdef"), index=range(10, 16))
    assert list(rows_at(labels, indices)) == ["a", "c", "f"]
