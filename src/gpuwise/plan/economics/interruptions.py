"""The expected time of runs that are interrupted, and the work between two checkpoints that makes it least; arrays throughout.

A run has n equal parts of work and saves a checkpoint after each but the last. An interruption loses the part it falls in;
training goes on `restart_s` later on another machine, which may be interrupted, too. A cluster lives as long as each of its
machines. The probability that it lives longer than t is

    S(t) = exp(-λ t) · B(t)^m,  B(t) = 1 - A (1 - exp(-t / τ1) + exp((t - b) / τ2)) below 24 h, 0 from there

with λ the rate of interruptions at constant hazard, and m the number of machines of which the provider takes each after at
most 24 h. B has the bathtub shape that J. Kadupitiya, V. Jadhao, P. Sharma, "Modeling the temporally constrained preemptions
of transient cloud VMs" (HPDC 2020) fit to 1,500 preemptions of Google's machines: many in the first hours, few after, the rest
toward the limit. A, τ1, τ2 and b are assumed, of that shape; the study's own fits could not be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from gpuwise.plan.economics.terms import HOUR_S

Array = npt.NDArray[np.float64]

DAY_S = 24 * HOUR_S
BATHTUB_A, BATHTUB_TAU1_S, BATHTUB_TAU2_S, BATHTUB_B_S = 0.45, 1.0 * HOUR_S, 0.8 * HOUR_S, 24 * HOUR_S
LEAST_INTERVAL_S = 1.0
_EXACT_PARTS = 64  # of a run on machines of 24 hours; longer runs go on at the steady rate of renewals
_NEWTON_STEPS = 12
_GRID = np.geomspace(60.0, DAY_S, 36)
_AGES_S = np.linspace(0.0, DAY_S, 1441)


@dataclass(frozen=True, eq=False)
class InterruptionColumns:
    """How runs are interrupted and saved, an array each.

    Attributes:
        per_day: interruptions a day of the whole cluster at constant hazard, λ.
        day_machines: machines that live at most 24 hours, m; 0 for none.
        save_s: seconds to save a checkpoint.
        restart_s: seconds from an interruption until training goes on.
    """

    per_day: Array
    day_machines: Array
    save_s: Array
    restart_s: Array

    def __post_init__(self) -> None:
        for name in ("per_day", "day_machines", "save_s", "restart_s"):
            object.__setattr__(self, name, np.atleast_1d(np.asarray(getattr(self, name), dtype=float)))

    def rows(self, chosen: npt.NDArray[np.bool_]) -> InterruptionColumns:
        """Some of the rows."""
        return InterruptionColumns(self.per_day[chosen], self.day_machines[chosen], self.save_s[chosen], self.restart_s[chosen])

    def repeated(self, times: int) -> InterruptionColumns:
        """All rows, this many times one after the other."""
        columns = (self.per_day, self.day_machines, self.save_s, self.restart_s)
        return InterruptionColumns(*(np.tile(column, times) for column in columns))

    @property
    def mean_s(self) -> Array:
        """Mean time between interruptions of a cluster that never stops; infinite without any."""
        with np.errstate(divide="ignore"):
            mean = DAY_S / self.per_day
        return np.where(self.day_machines > 0, self.lived_s(np.full(len(mean), DAY_S)), mean)

    @cached_property
    def _lived(self) -> tuple[npt.NDArray[np.intp], Array]:
        """The row of each machine in a table of _lived_table, and that table."""
        laws, rows = np.unique(np.stack([self.per_day, self.day_machines]), axis=1, return_inverse=True)
        return rows.reshape(-1), np.stack([_lived_table(*law) for law in laws.T.tolist()])

    def lived_s(self, limit_s: Array) -> Array:
        """The mean of min(lifetime, limit_s), for machines of 24 hours; limit_s has a row for each, and any axes."""
        row, tables = self._lived
        row = row.reshape(-1, *(1,) * (limit_s.ndim - 1))
        minutes = np.minimum(limit_s, DAY_S) / _AGES_S[1]
        index = np.minimum(minutes.astype(int), len(_AGES_S) - 2)
        start = tables[row, index]
        return start + (minutes - index) * (tables[row, index + 1] - start)

    def survival(self, age_s: Array) -> Array:
        """S(age_s); age_s has a row for each of these, and any further axes."""
        more = (slice(None),) + (None,) * (age_s.ndim - 1)
        return _survival(age_s, self.per_day[more], self.day_machines[more])


def _survival(age_s: Array, per_day: npt.ArrayLike, day_machines: npt.ArrayLike) -> Array:
    alive = np.exp(-np.asarray(per_day) * age_s / DAY_S)
    young = np.minimum(age_s, DAY_S)
    bathtub = 1 - BATHTUB_A * (1 - np.exp(-young / BATHTUB_TAU1_S) + np.exp((young - BATHTUB_B_S) / BATHTUB_TAU2_S))
    bathtub = np.where(age_s < DAY_S, np.clip(bathtub, 0.0, 1.0), 0.0)
    result: Array = alive * np.where(np.asarray(day_machines) > 0, bathtub ** np.asarray(day_machines), 1.0)
    return result


@lru_cache(maxsize=4096)
def _lived_table(per_day: float, day_machines: float) -> Array:
    """The mean of min(lifetime, limit) by limit, of _AGES_S: the integral of S, by trapezia of a minute."""
    alive = _survival(_AGES_S, per_day, day_machines)
    alive[-1] = alive[-2]  # S falls to 0 there at once
    return np.concatenate([[0.0], np.cumsum((alive[1:] + alive[:-1]) / 2 * np.diff(_AGES_S))])


def daly_s(save_s: Array, between_s: Array) -> Array:
    """Daly's higher-order optimum of the work between checkpoints; see gpuwise.plan.economics.spot."""
    x = np.sqrt(save_s / (2 * between_s))
    best = np.sqrt(2 * save_s * between_s) * (1 + x / 3 + x * x / 9) - save_s
    return np.where(save_s >= 2 * between_s, between_s, np.maximum(best, LEAST_INTERVAL_S))


def best_interval_s(how: InterruptionColumns) -> Array:
    """The work between two checkpoints that makes a long run shortest; infinite where nothing interrupts.

    At constant hazard the optimum solves τ / M + exp(-(τ + δ) / M) = 1: Newton's method from Daly's interval. On machines of
    24 hours it is found on a grid of the steady rate of renewals, then on a finer one around its best.
    """
    interval = np.full(how.per_day.shape, np.inf)
    plain = (how.day_machines == 0) & (how.per_day > 0)
    if plain.any():
        between, save = DAY_S / how.per_day[plain], how.save_s[plain]
        tau = daly_s(save, between)
        for _ in range(_NEWTON_STEPS):
            left = np.exp(-(tau + save) / between)
            tau = np.maximum(tau - between * (tau / between + left - 1) / np.maximum(1 - left, 1e-12), LEAST_INTERVAL_S)
        interval[plain] = tau
    day = how.day_machines > 0
    if day.any():
        interval[day] = _best_of_day(how.rows(day))
    return interval


def _best_of_day(how: InterruptionColumns) -> Array:
    rows = np.stack([how.per_day, how.day_machines, how.save_s, how.restart_s], axis=1)
    return np.array([_best_of_machines(*row) for row in rows.tolist()])


@lru_cache(maxsize=4096)
def _best_of_machines(per_day: float, day_machines: float, save_s: float, restart_s: float) -> float:
    """The best work between checkpoints for one kind of cluster with machines of 24 hours."""

    def best_of(intervals: Array) -> float:
        rows = np.ones(len(intervals))
        how = InterruptionColumns(per_day * rows, day_machines * rows, save_s * rows, restart_s * rows)
        return float(intervals[np.argmin(steady_factor(intervals, how))])

    best = best_of(_GRID)
    for width in (_GRID[1] / _GRID[0] - 1, 0.03):
        best = best_of(best * np.linspace(1 - width, 1 + width, 11))
    return best


def steady_factor(interval_s: Array, how: InterruptionColumns) -> Array:
    """Calendar time over work of a run without end: the mean lifetime over the work that a lifetime saves.

    A machine that lives x saves floor((x - restart) / (interval + save)) parts, so that the mean number is the sum over k of
    S(restart + k (interval + save)): renewal reward.
    """
    cycle = interval_s + how.save_s
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        between = DAY_S / how.per_day
        result = between * np.exp(how.restart_s / between) * np.expm1(cycle / between) / interval_s
        result = np.where(how.per_day > 0, result, cycle / interval_s)
    day = how.day_machines > 0
    if day.any():
        rows, of_day = how.rows(day), cycle[day]
        ends = rows.restart_s[:, None] + of_day[:, None] * np.arange(1, int(DAY_S / of_day.min()) + 2)
        parts = rows.survival(ends).sum(axis=1)
        with np.errstate(divide="ignore"):
            result[day] = rows.mean_s / (interval_s[day] * parts)
    return result


def expected_s(work_s: Array, interval_s: Array, how: InterruptionColumns) -> tuple[Array, Array]:
    """The expected time of runs with about interval_s of work between checkpoints, and their interruptions; infinite where a
    run never ends.

    At constant hazard each part of work p takes M exp(R / M) (exp((p + δ) / M) - 1): exact (Daly 2006). On machines of 24
    hours the expectation over renewals is computed part by part: exact up to 64 parts, then at the steady rate.
    """
    with np.errstate(invalid="ignore"):
        parts = np.maximum(1.0, np.round(np.where(np.isfinite(interval_s), work_s / interval_s, 1.0)))
    total, count = work_s.astype(float).copy(), np.zeros(work_s.shape)
    plain = (how.day_machines == 0) & (how.per_day > 0)
    with np.errstate(over="ignore", invalid="ignore"):
        between = DAY_S / how.per_day[plain]
        n, save = parts[plain], how.save_s[plain]
        part = work_s[plain] / n
        grown = np.where(n > 1, (n - 1) * np.expm1((part + save) / between), 0.0) + np.expm1(part / between)
        total[plain] = between * np.exp(how.restart_s[plain] / between) * grown
        count[plain] = total[plain] / between
    day = how.day_machines > 0
    if day.any():
        rows = how.rows(day)
        total[day] = _expected_of_day(work_s[day], parts[day], rows)
        count[day] = total[day] / rows.mean_s
    return total, count


def _expected_of_day(work_s: Array, parts: Array, how: InterruptionColumns) -> Array:
    """Renewals by the number of parts that are left: with k left, a machine saves j < k of them and passes k - j on, or ends
    the run."""
    most = int(min(parts.max(), _EXACT_PARTS))
    cycle = (work_s / parts + how.save_s)[:, None]
    counts = np.arange(most + 1)
    ends = cycle * counts  # of part j with its save, from the first part on
    till = np.maximum(ends - how.save_s[:, None], 0.0)  # the end of a run of k parts
    restart = how.restart_s[:, None]
    first, again = (_Machines.of(how, ends + start, till + start) for start in (0.0, restart))
    left = np.zeros((len(parts), most + 1))
    result = np.full(len(parts), np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        for k in range(1, most + 1):
            none, rest = again.step(k, left)
            left[:, k] = np.where(none < 1, (again.lived_s[:, k] + rest) / (1 - none), np.inf)
            ending = parts == k
            if ending.any():
                none, rest = first.step(k, left)
                whole = first.lived_s[:, k] + rest + np.where(none > 0, none * left[:, k], 0.0)
                result[ending] = whole[ending]
        beyond = parts > most
        if beyond.any():
            rows, part_s = how.rows(beyond), (work_s / parts)[beyond]
            rate = steady_factor(part_s, rows) * part_s
            result[beyond] = left[beyond, most] + (parts[beyond] - most) * rate - rows.restart_s
    return result


@dataclass(frozen=True, eq=False)
class _Machines:
    """What machines do, a row each, that begin with k parts left, a column each.

    Attributes:
        saved: the chance to live until part j is saved.
        ended: the chance to end a run of k parts.
        lived_s: mean time of the machine.
    """

    saved: Array
    ended: Array
    lived_s: Array

    @classmethod
    def of(cls, how: InterruptionColumns, saved_s: Array, ended_s: Array) -> _Machines:
        saved = how.survival(saved_s)
        saved[:, 0] = 1.0
        return cls(saved, how.survival(ended_s), how.lived_s(ended_s))

    def step(self, k: int, left: Array) -> tuple[Array, Array]:
        """With k parts left: the chance to save none, and the mean time of the machines after one that saves some."""
        after = np.concatenate([self.saved[:, 1:k], self.ended[:, k : k + 1]], axis=1)
        chances = self.saved[:, :k] - after
        rest = np.where(chances[:, 1:] > 0, chances[:, 1:] * left[:, k - 1 : 0 : -1], 0.0).sum(axis=1)
        return chances[:, 0], rest
