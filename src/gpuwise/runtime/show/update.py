"""ProgressUpdate: the state of a run for displays, with texts for its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.cost.forecast import Interval
from gpuwise.report.parts import memory_of, percent, rate
from gpuwise.units import format_duration, format_usd

_DATA_SHARE_SHOWN = 0.005  # share of the time from which waiting for data is shown


@dataclass(frozen=True)
class LastCheckpoint:
    """The newest complete checkpoint.

    Attributes:
        step: step of the checkpoint.
        age_s: seconds since its completion.
    """

    step: int
    age_s: float


@dataclass(frozen=True)
class SlowestRank:
    """The rank of a run that the others wait for.

    Attributes:
        rank: its number.
        host: its machine.
        data_share: share of its time spent waiting for its data.
        wait_share: mean share of the others' time spent waiting for it; None if unknown.
    """

    rank: int
    host: str
    data_share: float
    wait_share: float | None

    def __str__(self) -> str:
        """'slowest: rank 3 on node7, 12% waiting for data; the others wait 30%'"""
        data = f", {percent(self.data_share)} waiting for data" if self.data_share >= _DATA_SHARE_SHOWN else ""
        waits = "" if self.wait_share is None else f"; the others wait {percent(self.wait_share)}"
        return f"slowest: rank {self.rank} on {self.host}{data}{waits}"


@dataclass(frozen=True, kw_only=True)
class ProgressUpdate:
    """A run after `step` of `steps` optimizer steps. None stands for an unknown value.

    Attributes:
        step: optimizer steps so far.
        steps: optimizer steps of the whole run.
        samples: samples so far.
        loss: latest loss.
        step_time_s: median seconds of the latest steps, without data loading.
        samples_per_s: samples per second, with data loading.
        remaining_s: estimated seconds to the end.
        learning_rate: current learning rate.
        mfu: model FLOP/s as a share of the device's peak.
        memory_bytes: memory in use.
        memory_capacity_bytes: memory of the device.
        data_share: share of the time spent waiting for data.
        usd_spent: US dollars spent, by the price of the machine.
        usd_left: estimated US dollars to the end.
        forecast: forecast of the step time.
        checkpoint: latest complete checkpoint.
        checkpoint_problem: error of the latest save.
        metrics: metrics of the latest evaluation.
        slowest: the rank that others wait for; None without one.
    """

    step: int
    steps: int
    samples: int
    loss: float
    step_time_s: float
    samples_per_s: float
    remaining_s: float | None = None
    learning_rate: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    memory_capacity_bytes: int | None = None
    data_share: float = 0.0
    usd_spent: float | None = None
    usd_left: float | None = None
    forecast: Interval | None = None
    checkpoint: LastCheckpoint | None = None
    checkpoint_problem: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    slowest: SlowestRank | None = None

    def far(self) -> str:
        """'step 41/100'"""
        return f"step {self.step:,}/{self.steps:,}"

    def loss_words(self) -> list[str]:
        lr = [] if self.learning_rate is None else [f"lr {self.learning_rate:.3g}"]
        return [f"{self.loss:.4g}", *lr]

    def pace_words(self) -> list[str]:
        mfu = [] if self.mfu is None else [f"MFU {percent(self.mfu)}"]
        waits = [f"{percent(self.data_share)} waiting for data"] if self.data_share >= _DATA_SHARE_SHOWN else []
        slowest = [] if self.slowest is None else [str(self.slowest)]
        return [rate(self.samples_per_s, "samples"), *mfu, *waits, *slowest]

    def time_words(self) -> list[str]:
        """The remaining time; empty once the run is over."""
        return [] if self._over or self.remaining_s is None else [f"{format_duration(self.remaining_s)} left"]

    def money_words(self) -> list[str]:
        left = "" if self._over or self.usd_left is None else f", {format_usd(self.usd_left)} left"
        return [] if self.usd_spent is None else [f"{format_usd(self.usd_spent)} spent{left}"]

    def memory_words(self) -> list[str]:
        return [] if self.memory_bytes is None else [memory_of(self.memory_bytes, self.memory_capacity_bytes)]

    def checkpoint_words(self) -> list[str]:
        saved = []
        if self.checkpoint is not None:
            saved = [f"step {self.checkpoint.step:,} saved {format_duration(self.checkpoint.age_s)} ago"]
        return saved + ([f"not saved: {self.checkpoint_problem}"] if self.checkpoint_problem else [])

    def metric_words(self) -> list[str]:
        return [f"{name} {value:.4g}" for name, value in self.metrics.items()]

    @property
    def _over(self) -> bool:
        return self.step >= self.steps


def beside(step_time_s: float, forecast: Interval | None) -> str:
    """'step 41 ms; forecast 38 ms (31 to 52)'"""
    return f"step {'; '.join(beside_words(step_time_s, forecast))}"


def beside_words(step_time_s: float, forecast: Interval | None) -> list[str]:
    """The measured and the forecast step time in the same unit: '41 ms', 'forecast 38 ms (31 to 52)'."""
    if forecast is None:
        return [format_duration(step_time_s)]
    scale, unit = next(((s, u) for s, u in ((60, "min"), (1, "s"), (1e-3, "ms")) if step_time_s >= s), (1e-6, "µs"))
    number = [
        f"{v / scale:.3g}" if v < 1000 * scale else f"{v / scale:,.0f}"
        for v in (step_time_s, forecast.value, forecast.low, forecast.high)
    ]
    return [f"{number[0]} {unit}", f"forecast {number[1]} {unit} ({number[2]} to {number[3]})"]
