"""Notes on fits of a classical job, and on whether this machine's CPU is enough for it."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_bytes, format_duration, format_usd


@kind_of_note(flag="--trial-limit")
def fits_ended_by_limit(*, limit_s: float) -> str:
    """The next size would have passed the limit of time."""
    return f"larger parts were not fitted: the next would pass {format_duration(limit_s)}; --trial-limit changes it"


@kind_of_note(flag="--trial-limit")
def fit_took_too_long(*, samples: int, limit_s: float) -> str:
    """A fit was ended because it took longer than the sizes before let expect."""
    return f"the fit on {samples:,} rows was ended after {format_duration(limit_s)}; --trial-limit changes it"


@kind_of_note()
def fits_ended_by_memory(*, samples: int, available_bytes: int | None) -> str:
    """A fit needed more memory than this machine had left."""
    left = "" if available_bytes is None else f", of which {format_bytes(available_bytes)} was left"
    return f"the fit on {samples:,} rows ran out of memory{left}"


@kind_of_note()
def fit_died(*, samples: int, cause: str) -> str:
    """The process of a fit ended by itself."""
    return f"the fit on {samples:,} rows ended early: {cause}"


@kind_of_note(flag="--samples")
def extrapolated_from(*, samples: int, share: float) -> str:
    """The part of the rows that the largest fit had."""
    return f"extrapolated from fits on up to {samples:,} rows, {share:.2g} of all" if share < 1 else f"of {samples:,} rows"


@kind_of_note(flag="--trial-limit")
def few_rounds_timed(*, samples: int, rounds: int) -> str:
    """Fits of few trees or iterations, from which the time of one is taken. samples: most rows of such a fit; rounds: there."""
    return f"{rounds:,} rounds (trees or iterations) were timed on up to {samples:,} rows, and a full fit's taken from these"


@kind_of_note()
def timed_beside_others(*, share: float) -> str:
    """Other programs used the processors while the fits were timed. share: of all processors."""
    return f"other programs used {share:.0%} of the processors meanwhile: a fit may take less without them"


@kind_of_note()
def fit_is_enough(*, samples: int, time_s: float, low_s: float, high_s: float, limit: str) -> str:
    """This machine fits a classical job in time and memory. limit: which may be passed, in words; empty."""
    return f"your CPU is enough: {_a_fit(samples, time_s, low_s, high_s)}{limit}"


@kind_of_note()
def fit_may_be_enough(*, samples: int, time_s: float, low_s: float, high_s: float, limit: str) -> str:
    """The interval of time or memory ends beyond a limit. limit: in words."""
    return f"your CPU may be enough: {_a_fit(samples, time_s, low_s, high_s)}; it may be that {limit}"


@kind_of_note()
def fit_is_not_enough(*, samples: int, time_s: float, low_s: float, high_s: float, limit: str) -> str:
    """This machine has too little time or memory for a classical job. limit: which, in words."""
    return f"your CPU is not enough: {_a_fit(samples, time_s, low_s, high_s)}, and {limit}"


def _a_fit(samples: int, time_s: float, low_s: float, high_s: float) -> str:
    span = f" ({format_duration(low_s)} to {format_duration(high_s)})" if low_s < high_s else ""
    return f"a fit on {samples:,} rows takes {format_duration(time_s)}{span} here"


@kind_of_note()
def rows_in_time(*, samples: int, limit_s: float) -> str:
    """How many rows are fitted within a limit of time."""
    return f"{samples:,} rows are fitted within {format_duration(limit_s)}"


@kind_of_note()
def machine_with_memory(*, provider: str, instance: str, memory_bytes: int, usd_per_hour: float) -> str:
    """The cheapest rented CPU with enough memory."""
    return (
        f"a rented CPU with the memory: {instance} at {provider}, {format_bytes(memory_bytes)}, "
        f"{format_usd(usd_per_hour)}/h; its time is not forecast"
    )


@kind_of_note()
def growth_of_time(*, growth: float) -> str:
    """How the time of a fit grows with its rows. growth: exponent at the full size."""
    return f"twice the rows take {2**growth:.2g} × the time"


@kind_of_note()
def one_core_busy(*, cores: float, processors: int) -> str:
    """A fit leaves most processors of this machine idle."""
    return f"a fit keeps {cores:.1f} of {processors} processors busy: n_jobs=-1 or more threads may be faster"
