"""ClassicalJob: an estimator with `fit` and its data, for machine learning without a network."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from gpuwise.errors import GpuwiseError, JobError, message_of, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Of the user's libraries, which gpuwise does not import: an array, a sparse matrix, a data frame, a list.
Table: TypeAlias = object


class Estimator(Protocol):
    """Anything with `fit(X, y)`, or `fit(X)`."""

    def fit(self, *tables: Table) -> object: ...


@dataclass(frozen=True)
class ClassicalJob:
    """An estimator of scikit-learn, XGBoost, LightGBM or one's own, and the data to fit it on.

    Arguments:
        estimator: a function that makes an unfitted estimator, or the estimator itself, which is copied before each fit:
            anything with `fit(X, y)`, or `fit(X)` where there is no y. A Pipeline or a GridSearchCV is one, too.
        data: a function n -> (X, y) with n rows; or a function without arguments, or the tables themselves, of which random
            rows are taken: (X, y), or X alone. Arrays, sparse matrices, data frames and lists are tables.
        samples: rows of the full fit. None (the default): as many as the tables have; required with a function of n.
        name: what reports call the job. Default "", which becomes the name in the file.

    Raises JobError when a field makes no sense.
    """

    estimator: Estimator | Callable[[], Estimator]
    data: Table
    samples: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.estimator, type):
            raise JobError(
                f"a classical job's estimator is the class {self.estimator.__name__} itself.",
                [f"write estimator=lambda: {self.estimator.__name__}(...)"],
            )
        if not callable(self.estimator) and not hasattr(self.estimator, "fit"):
            raise JobError(
                f"a classical job's estimator must have a fit method, a {type(self.estimator).__name__} has none.",
                ["write estimator=lambda: LogisticRegression()"],
            )
        if self.data is None:
            raise JobError("a classical job needs data.", ["write data=lambda n: (X, y) with n rows", "write data=(X, y)"])
        samples = self.samples
        if samples is not None and (not isinstance(samples, int) or isinstance(samples, bool) or samples < 1):
            raise JobError(f"a classical job's samples must be a whole number above zero, got {shown(samples)}.")
        if samples is None and self.makes_rows:
            raise JobError(
                "a classical job with a function of n as its data needs samples: how many rows the full fit has.",
                ["write samples=1_000_000", "write data=lambda: (X, y), without n: then all rows are counted"],
            )

    @property
    def makes_rows(self) -> bool:
        """Whether `data` is a function of the number of rows."""
        if not callable(self.data):
            return False
        try:
            inspect.signature(self.data).bind(1)
        except (TypeError, ValueError):
            return False
        return True

    def new_estimator(self) -> Estimator:
        """An unfitted estimator. Raises JobError with what the user's function raised."""
        if hasattr(self.estimator, "fit"):
            return copy.deepcopy(cast(Estimator, self.estimator))
        assert callable(self.estimator)
        estimator = _called("estimator", self.estimator)
        if not hasattr(estimator, "fit"):
            raise JobError(f"the job's estimator function must return something with fit, got {_kind(estimator)}.")
        return cast(Estimator, estimator)

    def tables(self, rows: int | None = None) -> tuple[Table, ...]:
        """(X, y) or (X,), all rows or as many as requested of a function of n. Raises JobError."""
        data = self.data
        if callable(self.data):
            data = _called("data", self.data, *(() if rows is None else (rows,)))
        parts = data if isinstance(data, tuple) else (data,)
        if not 1 <= len(parts) <= 2 or any(part is None for part in parts):
            raise JobError(f"a classical job's data is (X, y) or X, got a tuple of {len(parts)}.", ["return X, y"])
        lengths = [rows_of(part) for part in parts]
        if len(set(lengths)) > 1:
            raise JobError(f"the X of a classical job has {lengths[0]:,} rows and its y {lengths[1]:,}.")
        if rows is not None and lengths[0] != rows:
            raise JobError(
                f"the job's data function returned {lengths[0]:,} rows for n = {rows:,}.",
                ["make as many rows as n says", "take no n: rows of the whole data are then drawn"],
            )
        return parts


def rows_of(table: Table) -> int:
    """The rows of a table. Raises JobError where it has none."""
    shape = getattr(table, "shape", None)
    if isinstance(shape, Sequence) and shape:
        return int(shape[0])
    try:
        return len(table)  # type: ignore[arg-type]
    except TypeError:
        raise JobError(
            f"a classical job's data must be a table with rows, got {_kind(table)}.",
            ["return arrays, data frames, sparse matrices or lists"],
        ) from None


def rows_at(table: Table, indices: NDArray[np.intp]) -> Table:
    """These rows of a table, as a table of the same kind."""
    if hasattr(table, "iloc"):
        return table.iloc[indices]  # data frames of pandas
    if isinstance(table, list | tuple):
        return [table[index] for index in indices]
    return table[indices]  # type: ignore[index]


def _called(field: str, function: Callable[..., object], *arguments: int) -> object:
    try:
        return function(*arguments)
    except (GpuwiseError, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:
        raise JobError(
            f"the job's {field} function raised: {type(error).__name__}: {message_of(error)}.",
            ["call it by itself in Python to see where"],
        ) from error


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
