"""The child process that fits a classical job on ever more of its rows.

    python -m gpuwise.measure.fits_worker (requests and answers as gpuwise.measure.child has them)

Request: {"job": "path.py:name", "samples": rows of the full fit or null, "limit_s": seconds, "memory_bytes": or null,
"of_processors": whether the limit is one of processor seconds}.
Answers: {"other": text} where the name is no ClassicalJob; else {"job": {...}}, then {"begins": rows} and {"fit": {...}} by
turns. The last one is {"ended": "limit" or "rows"}, {"out_of_memory": rows}, or {"failed": {...}} for the user's mistakes.
"""

from __future__ import annotations

import resource
import sys
import warnings
from contextlib import suppress

import numpy as np

from gpuwise.errors import GpuwiseError, JobError
from gpuwise.job.classical import ClassicalJob, Table, rows_at, rows_of
from gpuwise.job.rounds import round_limit_of
from gpuwise.job.user_file import file_object
from gpuwise.measure.child import WorkerConnection
from gpuwise.measure.fit_ladder import FitLadder

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


def _fit_all(
    child: WorkerConnection, job: str, samples: int | None, limit_s: float, memory_bytes: int | None, of_processors: bool
) -> None:
    named = file_object(job, {})
    classical = named.value
    if not isinstance(classical, ClassicalJob):
        child.send(other=named.subject, has_fit=hasattr(classical, "fit"))
        return
    warnings.simplefilter("ignore")  # of libraries, about fits that do not converge
    _limit_memory(memory_bytes)
    rows = FittedRows(classical, samples)
    estimator = classical.new_estimator()
    limit = round_limit_of(estimator)
    about = {"name": classical.name or named.name, "samples": rows.samples, "estimator": type(estimator).__name__}
    child.send(job=about, round_limit=None if limit is None else limit.most)
    ladder = FitLadder(
        classical.new_estimator,
        rows.first,
        largest=min(rows.samples, rows.available),
        limit_s=limit_s,
        of_processors=of_processors,
        begins=lambda count: child.send(begins=count),
        fitted=lambda fit: child.send(fit=fit.to_dict()),
    )
    try:
        ended = ladder.climb()
    except MemoryError:
        child.send(out_of_memory=ladder.rows)
        return
    child.send(ended=ended)


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
