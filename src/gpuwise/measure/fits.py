"""Times fits of a classical job on ever more of its rows, in a child process, within a limit of time and memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from gpuwise.errors import DoesNotFitError, GpuwiseError, JobError
from gpuwise.hardware.waiting import idle_threads_asleep
from gpuwise.measure.child import ChildDiedError, answers
from gpuwise.measure.fit_ladder import FEWEST_FITS, FEWEST_SIZES
from gpuwise.notes import Note
from gpuwise.notes import classical as notes
from gpuwise.results.fits import TimedFit
from gpuwise.units import format_duration

CHILD = "gpuwise.measure.fits_worker"
# A fit that was to end within the limit may take this much longer before it is ended.
PATIENCE_S = 5.0
SHARED_CLOCK = 10  # clock seconds for each of the processor's, at most, where other programs run


@dataclass(frozen=True)
class TimedFits:
    """The fits of one classical job.

    Attributes:
        job: name of the job.
        estimator: class of the estimator.
        samples: rows of the full fit.
        fits: the sizes that were fitted, smallest first.
        few_rounds: sizes that were fitted with few rounds, by rows and then by rounds.
        round_limit: most rounds of the full fit; None where the estimator has no such parameter.
        ended: why larger sizes were not fitted; None where all rows that there are were.
    """

    job: str
    estimator: str
    samples: int
    fits: tuple[TimedFit, ...]
    ended: Note | None
    few_rounds: tuple[TimedFit, ...] = ()
    round_limit: int | None = None

    @property
    def largest(self) -> TimedFit:
        """The fit of the user's rounds on most rows; where there is none, that of few rounds."""
        return (self.fits or self.few_rounds)[-1]

    @property
    def measured(self) -> bool:
        """Whether all rows were fitted."""
        return bool(self.fits) and self.fits[-1].samples == self.samples


def time_fits(
    job: str,
    *,
    samples: int | None = None,
    limit_s: float = 60.0,
    available_bytes: int | None = None,
    of_processors: bool = False,
    begins: Callable[[int], None] = lambda _: None,
) -> TimedFits | None:
    """Fits a classical job on ever more rows, as `FitLadder` has it, until the next size would pass the limit.

    Arguments:
        job: "path.py:name".
        samples: rows of the full fit; None takes the job's.
        limit_s: seconds for all fits together.
        available_bytes: memory that the child may use; None for no limit.
        of_processors: whether the limit is one of processor seconds of fits alone, which other programs hardly disturb.
        begins: called with the rows of each size before it is fitted.

    None where the name is no ClassicalJob. Raises JobError for the user's mistakes and where fewer than three fits, or on fewer
    than two sizes, ended within the limit; DoesNotFitError where fewer fit in memory.
    """
    request = {
        "job": job,
        "samples": samples,
        "limit_s": limit_s,
        "memory_bytes": available_bytes,
        "of_processors": of_processors,
    }
    about: dict[str, str] | None = None
    round_limit: int | None = None
    fits: list[TimedFit] = []
    few_rounds: list[TimedFit] = []
    size, ended = 0, None
    silence_s = (limit_s + PATIENCE_S) * (SHARED_CLOCK if of_processors else 1)
    messages = answers(CHILD, request, silence_s=silence_s, purpose="fit", environment=idle_threads_asleep())
    try:
        with closing(messages):
            for answer in messages:
                if "other" in answer:
                    if answer["has_fit"]:
                        raise _bare_estimator(job, answer["other"])
                    return None
                if "failed" in answer:
                    raise JobError(answer["failed"]["message"], answer["failed"]["ways_out"])
                if "job" in answer:
                    about, round_limit = answer["job"], answer["round_limit"]
                elif "begins" in answer:
                    size = answer["begins"]
                    begins(size)
                elif "fit" in answer:
                    fit = TimedFit(**answer["fit"])
                    (fits if fit.whole else few_rounds).append(fit)
                elif "out_of_memory" in answer:
                    ended = notes.fits_ended_by_memory(samples=size, available_bytes=available_bytes)
                elif answer["ended"] == "limit":
                    ended = notes.fits_ended_by_limit(limit_s=limit_s)
    except ChildDiedError as death:
        if about is None:
            raise JobError(f"{job}: {death.what}", ["run the file by itself to see where", "--trial-limit 10min"]) from death
        ended = _cause(death, size, limit_s, available_bytes)
    if about is None:
        raise DoesNotFitError(f"{job}: its data does not fit in the available memory.", ["make the data smaller"])
    name, estimator, rows = about["name"], about["estimator"], int(about["samples"])
    timed = TimedFits(name, estimator, rows, tuple(fits), ended, tuple(few_rounds), round_limit)
    parts = [*fits, *few_rounds]
    if not timed.measured and (len(parts) < FEWEST_FITS or len({fit.samples for fit in parts}) < FEWEST_SIZES):
        raise _too_few(timed, limit_s)
    return timed


def _cause(death: ChildDiedError, samples: int, limit_s: float, available_bytes: int | None) -> Note:
    """Why a child ended while it fitted."""
    if death.likely_out_of_memory:
        return notes.fits_ended_by_memory(samples=samples, available_bytes=available_bytes)
    if death.silent:
        return notes.fit_took_too_long(samples=samples, limit_s=limit_s)
    return notes.fit_died(samples=samples, cause=death.what.rstrip("."))


def _too_few(timed: TimedFits, limit_s: float) -> GpuwiseError:
    done = (
        ", ".join(f"{fit.samples:,} rows in {format_duration(fit.seconds)}" for fit in (timed.fits or timed.few_rounds))
        or "no size"
    )
    cause = "" if timed.ended is None else f": {timed.ended}"
    what = f"{timed.job}: too few sizes were fitted to extrapolate from ({done}){cause}."
    if timed.ended is not None and timed.ended.kind == "fits-ended-by-memory":
        return DoesNotFitError(what, ["close other programs", "--samples with fewer rows"])
    if timed.ended is None:
        return JobError(what, ["let data have 400 rows or more"])
    return JobError(
        what, [f"--trial-limit {format_duration(10 * limit_s).replace(' ', '')}", "fit less at once: fewer candidates or folds"]
    )


def _bare_estimator(job: str, subject: str) -> JobError:
    name = job.rpartition(":")[2]
    return JobError(
        f"{job}: {subject} an estimator without data.",
        [f"job = ClassicalJob(estimator={name}, data=(X, y)), with from gpuwise import ClassicalJob"],
    )
