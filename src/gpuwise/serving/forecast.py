"""ServingForecast: what serving a model takes on each of some devices."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite

from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.printed import Printed
from gpuwise.serving.api_price import ApiPrice
from gpuwise.serving.fleets import Fleet, RateRange
from gpuwise.serving.profile import PassProfile
from gpuwise.serving.rows import ServingRow
from gpuwise.serving.saturation import Limits


@dataclass(frozen=True)
class PlanTiming:
    """Passes that were timed on this machine before the plan was made.

    Attributes:
        profile: of the model's passes.
        untimed: this machine's row from the passes as forecast.
    """

    profile: PassProfile
    untimed: ServingRow

    def to_dict(self) -> dict[str, object]:
        return {**self.profile.to_dict(), "forecast_without_timing": self.untimed.to_dict()}


@dataclass(frozen=True, repr=False)
class ServingForecast(Printed):
    """What serving takes, cheapest first; devices without an answer last.

    Attributes:
        job: name of the job.
        engine: name of the engine, with the versions its figures are of.
        precision: of activations and cache.
        weights: format of the weights, or their precision.
        rate_per_s: requests a second of all users, the mean over a day.
        lengths: of prompts and answers.
        rows: one a device.
        budget_usd_per_month: most dollars a month; None (default) without a budget.
        by_rate: the cheapest of the rows by rate, from 0 to some times this one.
        api: price of an API to compare with; None (default) without one.
        api_usd_per_month: what it would cost for the same requests.
        model: the id or folder of the model's weights in the launch lines, "MODEL" where the user must know it.
        arrivals: how requests come. In a closed loop, of so many "clients", rate_per_s is what the first row reaches.
        fleets: those that by_rate chooses from.
        generates: whether the job generates tokens; else a request is one sample of a forward pass. True by default.
        remark_notes: whether this machine is enough, where it is among the rows.
        timing: of this machine's passes, on which its row rests; None (default) where none were timed.
    """

    job: str
    engine: str
    precision: str
    weights: str
    rate_per_s: float
    lengths: dict[str, object]
    limits: Limits
    rows: tuple[ServingRow, ...]
    assumption_notes: tuple[Note, ...] = ()
    budget_usd_per_month: float | None = None
    by_rate: tuple[RateRange, ...] = ()
    api: ApiPrice | None = None
    api_usd_per_month: float | None = None
    model: str = ""
    arrivals: dict[str, object] = field(default_factory=dict)
    fleets: tuple[Fleet, ...] = ()
    generates: bool = True
    remark_notes: tuple[Note, ...] = ()
    timing: PlanTiming | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """The remarks as sentences."""
        return sentences(self.remark_notes)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as sentences."""
        return sentences(self.assumption_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise serve-plan --json`."""
        limits = {name: value if isfinite(value) else None for name, value in asdict(self.limits).items()}
        return {
            "job": self.job,
            "engine": self.engine,
            "precision": self.precision,
            "weights": self.weights,
            "rate_per_s": self.rate_per_s,
            "lengths": self.lengths,
            "limits": limits,
            "rows": [row.to_dict() for row in self.rows],
            "budget_usd_per_month": self.budget_usd_per_month,
            "by_rate": [asdict(each) for each in self.by_rate],
            "api": None if self.api is None else {**asdict(self.api), "usd_per_month": self.api_usd_per_month},
            "model": self.model,
            "arrivals": self.arrivals,
            "generates": self.generates,
            "remarks": list(self.remarks),
            "remark_notes": to_dicts(self.remark_notes),
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
            "timing": None if self.timing is None else self.timing.to_dict(),
        }
