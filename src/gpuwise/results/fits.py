"""What `plan` and `forecast` return for a classical job: fits on parts of its rows, and the forecast of the full fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gpuwise.cost.forecast import Interval
from gpuwise.json_types import Json
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.plan.cpu.enough import CpuEnough
from gpuwise.printed import Printed


@dataclass(frozen=True)
class TimedFit:
    """One size that was fitted: the least where it was fitted several times.

    Attributes:
        samples: rows.
        seconds: by the clock.
        cpu_s: of processors, over all threads and processes.
        peak_bytes: largest resident memory of the processes, data included; None where the system does not tell.
        fits: how often it was fitted.
        rounds: trees, boosting rounds or iterations that it made; None where the estimator does not tell.
        round_limit: the most that it was to make; None where the estimator has no such parameter.
        whole: whether that is the user's own limit, not a lowered one.
    """

    samples: int
    seconds: float
    cpu_s: float
    peak_bytes: int | None = None
    fits: int = 1
    rounds: int | None = None
    round_limit: int | None = None
    whole: bool = True

    def to_dict(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True, repr=False)
class FitForecast(Printed):
    """One fit of a classical job on all of its rows, on this machine.

    Attributes:
        job: name of the job.
        estimator: class of the estimator.
        samples: rows of the full fit.
        time_s: its seconds, with their 90 % interval; of a measured fit all three are the measured seconds.
        cores: processors that it keeps busy.
        growth: exponent g of the growth at the full size: twice the rows take 2^g of the time.
        memory_bytes: peak resident memory of the process, data included; None where the system does not tell.
        capacity_bytes: memory of this machine; None where unknown.
        measured: whether all rows were fitted within the limit, so that nothing is extrapolated.
        fits: the fits on parts of the rows, smallest first.
        machine: this machine in words.
        cpu_enough: whether this machine is enough, with the figures.
        note_list: how the sizes ended, and what was assumed.
        few_rounds: the fits with fewer rounds than the user's, by rows.
    """

    job: str
    estimator: str
    samples: int
    time_s: Interval
    cores: float
    growth: float
    memory_bytes: Interval | None
    capacity_bytes: int | None
    measured: bool
    fits: tuple[TimedFit, ...]
    machine: str
    cpu_enough: CpuEnough
    note_list: tuple[Note, ...] = ()
    few_rounds: tuple[TimedFit, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return sentences(self.note_list)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json` and `gpuwise forecast --json` for a classical job."""
        names = ("job", "estimator", "samples", "cores", "growth", "capacity_bytes", "measured", "machine")
        return {
            **{name: getattr(self, name) for name in names},
            "time_s": _interval(self.time_s),
            "memory_bytes": None if self.memory_bytes is None else _interval(self.memory_bytes),
            "fits": [fit.to_dict() for fit in self.fits],
            "few_rounds": [fit.to_dict() for fit in self.few_rounds],
            "cpu_enough": self.cpu_enough.to_dict(),
            "notes": list(self.notes),
            "typed_notes": to_dicts(self.note_list),
        }


def _interval(interval: Interval) -> Mapping[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
