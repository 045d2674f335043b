"""The child process that fits a classical job on ever more of its rows.

    python -m gpuwise.measure.fits_worker (requests and answers as gpuwise.measure.child has them)

Request: {"job": "path.py:name", "samples": rows of the full fit or null, "limit_s": seconds, "memory_bytes": or null}.
Answers: {"other": text} where the name is no ClassicalJob; else {"job": {...}}, then {"begins": rows} and {"fit": {...}} by
turns. The last one is {"ended": "limit" or "rows"}, {"out_of_memory": rows}, or {"failed": {...}} for the user's mistakes.
"""

from __future__ import annotations

import math
import resource
import sys
import time
import warnings
from contextlib import suppress
from functools import partial
from statistics import median

import numpy as np

from gpuwise.errors import GpuwiseError, JobError, message_of
from gpuwise.job.classical import ClassicalJob, Table, rows_at, rows_of
from gpuwise.job.user_file import file_object
from gpuwise.measure.child import WorkerConnection
from gpuwise.measure.process_meter import Used, metered

FEWEST_ROWS = 100  # of the smallest size
ALL_MAY_RAISE = 5_000  # rows up to which an estimator may raise for want of rows: clusters, folds, components
TIMES, FEW_TIMES = 4, 2  # rows of a size in those of the one before; the latter where there are few rows
FEW_ROWS = 6_400
AGAIN_SHARE, MOST_FITS = 0.005, 5  # short fits are repeated, up to this share of the limit a size
WORTH_IT = 1.3  # times the rows of the last size: what one that fills the limit must have
SEED = 0  # of the rows that are drawn


def main() -> None:
    child = WorkerConnection()
    _end_before_others()
    try:
        _fit_all(child, **child.request)
    except GpuwiseError as error:
        child.send(failed=error.to_dict()["error"])
    except MemoryError:
        child.send(out_of_memory=0)


def _fit_all(child: WorkerConnection, job: str, samples: int | None, limit_s: float, memory_bytes: int | None) -> None:
    named = file_object(job, {})
    classical = named.value
    if not isinstance(classical, ClassicalJob):
        child.send(other=named.subject, has_fit=hasattr(classical, "fit"))
        return
    warnings.simplefilter("ignore")  # of libraries, about fits that do not converge
    _limit_memory(memory_bytes)
    rows = FittedRows(classical, samples)
    kind = type(classical.new_estimator()).__name__
    child.send(job={"name": classical.name or named.name, "samples": rows.samples, "estimator": kind})
    ends_s = time.perf_counter() + limit_s
    seconds: dict[int, float] = {}  # of one fit with its data, by rows
    largest = min(rows.samples, rows.available)
    coming, ended = sizes(largest), "rows"
    while coming:
        count, left_s = coming[0], ends_s - time.perf_counter()
        if len(seconds) > 1 and _expected_s(seconds, count) > left_s:
            count = _most_within(seconds, left_s)
            if count < WORTH_IT * max(seconds):
                ended = "limit"
                break
        # A size that ends sooner than expected leaves time for another one.
        coming = [size for size in coming if size > count and (size >= WORTH_IT * count or size == largest)]
        child.send(begins=count)
        began_s = time.perf_counter()
        try:
            used = _fitted(classical, rows.first(count), warm=not seconds, again_s=AGAIN_SHARE * limit_s)
        except MemoryError:
            child.send(out_of_memory=count)
            return
        except GpuwiseError:
            raise
        except Exception as error:  # the estimator's own
            if seconds or count >= min(largest, ALL_MAY_RAISE):
                raise JobError(
                    f"the estimator's fit on {count:,} rows raised: {type(error).__name__}: {message_of(error)}.",
                    ["fit it on as many rows by itself to see where"],
                ) from error
            continue
        seconds[count] = (time.perf_counter() - began_s) / (len(used) + (not seconds))
        middle = {name: median(getattr(one, name) for one in used) for name in ("seconds", "cpu_s")}
        peaks = [one.peak_bytes for one in used if one.peak_bytes is not None]
        child.send(fit={"samples": count, **middle, "peak_bytes": max(peaks, default=None), "fits": len(used)})
    child.send(ended=ended)


def sizes(largest: int) -> list[int]:
    """Numbers of rows, each four times the one before, up to all of them: 156, 625, ..., 10,000. Of few rows each is twice."""
    parts, times = [largest], TIMES if largest >= FEW_ROWS else FEW_TIMES
    while parts[-1] // times >= FEWEST_ROWS:
        parts.append(parts[-1] // times)
    return parts[::-1]


class FittedRows:
    """Rows of a classical job, as many as requested: made by its function, or drawn at random from its tables.

    Attributes:
        samples: rows of the full fit.
        available: rows that can be had; no limit where a function makes them.
    """

    def __init__(self, job: ClassicalJob, samples: int | None):
        self._job, self._tables = job, () if job.makes_rows else job.tables()
        self.available = rows_of(self._tables[0]) if self._tables else sys.maxsize
        self.samples = samples or job.samples or self.available
        if self.available < 1:
            raise JobError("the classical job's data has no rows.")

    def first(self, count: int) -> tuple[Table, ...]:
        if not self._tables:
            return self._job.tables(count)
        if count >= self.available:
            return self._tables
        indices = np.sort(np.random.default_rng(SEED).choice(self.available, count, replace=False))
        return tuple(rows_at(table, indices) for table in self._tables)


def _fitted(job: ClassicalJob, tables: tuple[Table, ...], *, warm: bool, again_s: float) -> list[Used]:
    """Fits new estimators.

    Arguments:
        warm: whether a first one is not counted.
        again_s: seconds up to which fits are repeated.
    """
    used: list[Used] = []
    while warm or not used or (len(used) < MOST_FITS and sum(one.seconds for one in used) < again_s):
        once = metered(partial(job.new_estimator().fit, *tables))
        used += [] if warm else [once]
        warm = False
    return used


def _expected_s(seconds: dict[int, float], count: int) -> float:
    """Of the next size: grown as from the size before the last to the last, and at least in proportion to the rows."""
    last, last_s = list(seconds.items())[-1]
    return last_s * (count / last) ** _growth(seconds)


def _most_within(seconds: dict[int, float], left_s: float) -> int:
    """The most rows whose fit is expected to end within the seconds left."""
    last, last_s = list(seconds.items())[-1]
    return int(last * max(0.0, left_s / last_s) ** (1 / _growth(seconds)))


def _growth(seconds: dict[int, float]) -> float:
    """The exponent between the last two sizes, at least 1."""
    (before, before_s), (last, last_s) = list(seconds.items())[-2:]
    return max(1.0, math.log(last_s / before_s) / math.log(last / before))


def _limit_memory(available_bytes: int | None) -> None:
    """An allocation beyond the available memory raises MemoryError, before the system has to end a process (Linux)."""
    if available_bytes is None or not sys.platform.startswith("linux"):
        return
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (available_bytes, most))


def _end_before_others() -> None:
    """Makes Linux kill this process first when memory runs out, not its parent (proc(5), oom_score_adj)."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


if __name__ == "__main__":
    main()
