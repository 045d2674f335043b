"""ServeCheck: what was forecast of a load beside what was measured when it was served on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.json_types import finite
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.printed import Printed
from gpuwise.serving.instance import PERCENTILES, latencies
from gpuwise.serving.profile import PassProfile
from gpuwise.serving.saturation import Limits
from gpuwise.serving.served import Served

LATENCIES = ("ttft_s", "tpot_s", "latency_s")


@dataclass(frozen=True)
class CheckedFigure:
    """A figure as forecast, with its 90 % interval, and as measured; NaN where no request has it, None where not measured."""

    forecast: Interval
    measured: float | None

    @property
    def error(self) -> float | None:
        """Forecast over measured, less 1; None where either is missing or nothing was measured."""
        if self.measured is None or not (isfinite(self.measured) and isfinite(self.forecast.value) and self.measured > 0):
            return None
        return self.forecast.value / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measured figure lies in the interval; None where there is none."""
        if self.measured is None or not isfinite(self.measured):
            return None
        return self.forecast.low <= self.measured <= self.forecast.high

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "error": self.error, "inside": self.inside}


@dataclass(frozen=True)
class CheckedGroup:
    """Batches of one number of requests: how often they ran, and the mean seconds of one, without waiting."""

    requests: int
    count: int
    seconds: CheckedFigure

    def to_dict(self) -> dict[str, object]:
        return {"requests": self.requests, "count": self.count, "seconds": self.seconds.to_dict()}


@dataclass(frozen=True)
class CheckTiming:
    """What was timed before the load, and what would have been forecast without it.

    Attributes:
        profile: of the model's passes.
        latency, capacity, saturation_rate: as in ServeCheck, from the passes as forecast.
    """

    profile: PassProfile
    latency: Mapping[str, Mapping[int, CheckedFigure]]
    capacity: CheckedFigure
    saturation_rate: Interval

    def to_dict(self) -> dict[str, object]:
        return {
            **self.profile.to_dict(),
            "forecast_without_timing": {
                "latency": latency_dict(self.latency),
                "capacity": self.capacity.to_dict(),
                "saturation_rate": asdict(self.saturation_rate),
            },
        }


@dataclass(frozen=True)
class RequestCounts:
    """Requests of a load by how they ended.

    Attributes:
        sent: those that arrived; of an interrupted load those whose end is in the figures.
        answered: with all their tokens.
        turned_away: met a full queue.
        left: given up by their clients before they started.
        forecast_answered: answered by the forecast, of those sent.
    """

    sent: int
    answered: int
    turned_away: int
    left: int
    forecast_answered: int


@dataclass(frozen=True, repr=False)
class ServeCheck(Printed):
    """A load, served for real on this machine and as forecast.

    Attributes:
        job: name of the job.
        device: id of this machine's chip.
        precision: of weights and arithmetic.
        generates: whether the job generates tokens; else a request is one sample of a forward pass.
        settings: "batch", "window_s", "queue", "patience_s", "seed", "seq_len" and the like, as they were used.
        rate_per_s: requests a second; infinite where all came at once.
        lengths: mean tokens of prompts and answers, and their spread; empty for a model without a cache.
        limits: what users accept.
        latency: by name ("ttft_s", "tpot_s", "latency_s") and percentile (50, 90, 99).
        share_within: share of requests within the limits, those turned away or given up included.
        capacity: requests a second that are served while others always wait; measured only where that was requested.
        saturation_rate: highest rate within the limits as forecast, requests a second; the capacity where there are none.
        utilisation: share of the time in which the model ran.
        groups: batches by their requests.
        counts: how requests ended.
        latencies_s: measured and forecast latencies of answered requests.
        late_s: longest delay of a client behind the arrival that it was to send.
        interrupted: whether Ctrl-C ended it early; the figures are then of what had ended.
        timing: of passes before the load, on which the forecast rests; None (default) where none were timed.
    """

    job: str
    device: str
    precision: str
    generates: bool
    settings: Mapping[str, object]
    rate_per_s: float
    lengths: Mapping[str, float]
    limits: Limits
    latency: Mapping[str, Mapping[int, CheckedFigure]]
    share_within: CheckedFigure
    capacity: CheckedFigure
    saturation_rate: Interval
    utilisation: CheckedFigure
    groups: tuple[CheckedGroup, ...]
    counts: RequestCounts
    latencies_s: Mapping[str, tuple[float, ...]]
    late_s: float
    interrupted: bool = False
    assumption_notes: tuple[Note, ...] = ()
    remark_notes: tuple[Note, ...] = ()
    timing: CheckTiming | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as sentences."""
        return sentences(self.assumption_notes)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The remarks as sentences."""
        return sentences(self.remark_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise serve-check --json`."""
        data = {
            "job": self.job,
            "device": self.device,
            "precision": self.precision,
            "generates": self.generates,
            "settings": dict(self.settings),
            "rate_per_s": self.rate_per_s,
            "lengths": dict(self.lengths),
            "limits": asdict(self.limits),
            "latency": latency_dict(self.latency),
            "share_within": self.share_within.to_dict(),
            "capacity": self.capacity.to_dict(),
            "saturation_rate": asdict(self.saturation_rate),
            "utilisation": self.utilisation.to_dict(),
            "groups": [group.to_dict() for group in self.groups],
            "counts": asdict(self.counts),
            "latencies_s": {name: list(values) for name, values in self.latencies_s.items()},
            "late_s": self.late_s,
            "interrupted": self.interrupted,
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
            "remarks": list(self.remarks),
            "remark_notes": to_dicts(self.remark_notes),
            "timing": None if self.timing is None else self.timing.to_dict(),
        }
        plain = finite(data)
        assert isinstance(plain, dict)
        return plain


def latency_dict(latency: Mapping[str, Mapping[int, CheckedFigure]]) -> dict[str, object]:
    """Latencies as JSON has them, by name and "p50" and the like."""
    return {name: {f"p{percent}": figure.to_dict() for percent, figure in figures.items()} for name, figures in latency.items()}


def checked_latencies(forecasts: Sequence[Served], measured: Served) -> dict[str, dict[int, CheckedFigure]]:
    """Percentiles of each latency that some request has.

    forecasts: as forecast, with faster and with slower passes.
    """
    expected = latencies(forecasts)
    results: dict[str, dict[int, CheckedFigure]] = {}
    for name in LATENCIES:
        values = getattr(measured, name)
        values = values[~np.isnan(values)]
        figures = {}
        for percent in PERCENTILES:
            interval: Interval = getattr(expected[name], f"p{percent}")
            figures[percent] = CheckedFigure(interval, float(np.percentile(values, percent)) if len(values) else float("nan"))
        if len(values) or isfinite(figures[50].forecast.value):
            results[name] = figures
    return results


def checked_share(forecasts: Sequence[Served], measured: Served, limits: Limits) -> CheckedFigure:
    """The share of requests within the limits."""
    value, *ends = (limits.share_of(served) for served in forecasts)
    return CheckedFigure(Interval(value, min(value, *ends), max(value, *ends)), limits.share_of(measured))


def checked_utilisation(forecasts: Sequence[Served], measured: Served) -> CheckedFigure:
    """The share of the time in which the model ran."""
    value, *ends = (served.utilisation for served in forecasts)
    return CheckedFigure(Interval(value, min(value, *ends), max(value, *ends)), measured.utilisation)
