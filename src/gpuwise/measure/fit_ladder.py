"""The sizes at which a classical job is fitted within a limit of time: ever more rows, in two ways.

Fits as the user wrote them begin with few rows. Where an estimator has many rounds (trees, iterations), those end
with a part of the limit. Fits of a few rounds follow, on up to all rows: two on the same rows have the time of a round there,
and of what all rounds share. What is left of the limit goes to one more fit as the user wrote it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from gpuwise.errors import GpuwiseError, JobError, message_of
from gpuwise.job.classical import Estimator, Table
from gpuwise.job.rounds import RoundLimit, round_limit_of
from gpuwise.measure.process_meter import Used, metered
from gpuwise.results.fits import TimedFit

FEWEST_ROWS = 100  # of the smallest size
ALL_MAY_RAISE = 5_000  # rows up to which an estimator may raise for want of rows: clusters, folds, components
TIMES, FEW_TIMES = 4, 2  # rows of a size in those of the one before; the latter where there are few rows
FEW_ROWS = 6_400
AGAIN_SHARE, MOST_FITS = 0.02, 5  # short fits are repeated, up to this share of the limit a size
WORTH_IT = 1.3  # times the rows of the last size: what one that fills the limit must have
FEWEST_SIZES, FEWEST_FITS = 2, 3  # from which a full fit is extrapolated
SECOND_SHARE = 0.4  # of what the first size leaves, for the second: the third is larger
FIRST_SHARE = 0.35  # of the limit, for fits of all rounds before those of few
FEWEST_ROUNDS = 12  # from which fits of few rounds are worth their time
PAIR_SHARE = 0.12  # of the limit, for a pair of fits of few rounds
LAST_SHARE = 0.2  # of what is left, beyond which a pair would take too much from the last one
FLATTEST = 0.6  # power of the rows: boosters' pairs grow slowly at first
MOST_SHARE = 1 / 8  # of all rounds, for the fit of a pair that has more
FEWER = 4  # times the rounds of one fit of a pair are those of the other


class FitLadder:
    """Fits within a limit of time.

    Attributes:
        rows: of the size that was begun last.
    """

    def __init__(
        self,
        new_estimator: Callable[[], Estimator],
        tables: Callable[[int], tuple[Table, ...]],
        *,
        largest: int,
        limit_s: float,
        of_processors: bool,
        begins: Callable[[int], None],
        fitted: Callable[[TimedFit], None],
    ):
        """Arguments:

        tables: X and y with so many rows.
        largest: most rows.
        limit_s: seconds for all fits and their data together.
        of_processors: whether the limit is one of processor seconds, of fits alone.
        begins, fitted: called before and after each size.
        """
        self.rows = 0
        self._new, self._tables, self._begins, self._fitted = new_estimator, tables, begins, fitted
        self._largest, self._limit_s, self._of_processors = largest, limit_s, of_processors
        self._began_s, self._used_s = time.perf_counter(), 0.0
        self._coming = sizes(largest)
        self._whole: dict[int, float] = {}  # seconds of a fit with its data, by rows
        self._rounds: int | None = None  # of the largest such fit
        self._is_warm = False

    def climb(self) -> str:
        """Fits all sizes. "rows" where all rows were fitted, else "limit". Raises MemoryError, JobError."""
        limit = round_limit_of(self._new())
        if limit is None:
            return self._climb_whole(None, self._limit_s)
        trees = (limit.most or 0) if limit.trees else 0
        if trees >= FEWEST_ROUNDS:
            round_s = self._round_s(limit)
            if trees * round_s > FIRST_SHARE * self._limit_s and self._climb_pairs(limit, trees, self._coming[0], round_s):
                return "limit"
        ended = self._climb_whole(limit, self._limit_s * FIRST_SHARE)
        if ended == "rows":
            return ended
        rounds = self._rounds or trees
        if rounds >= FEWEST_ROUNDS:
            count = max(self._whole)
            self._climb_pairs(limit, rounds, count, self._whole[count] / rounds)
        return self._climb_whole(limit, self._limit_s)

    def _round_s(self, limit: RoundLimit) -> float:
        """Processor seconds of a round on the fewest rows, by fits of 1 and 3 that are not counted; 0 where they raise."""
        with suppress(Exception):  # an error shows in the fits of all rounds
            tables = self._tables(self._coming[0])
            self._warm_up(tables, limit)
            once, thrice = (metered(partial(limit.lowered(self._new(), few).fit, *tables)).cpu_s for few in (1, 3))
            return (thrice - once) / 2 if thrice > once else thrice / 3
        return 0.0

    def _climb_whole(self, limit: RoundLimit | None, limit_s: float) -> str:
        """Fits as the user wrote them."""
        while self._coming:
            count = self._coming[0]
            if len(self._whole) > (limit is None):
                count = _next(self._whole, count, limit_s - self._spent_s())
                if not count:
                    return "limit"
            # A size that ends sooner than expected leaves time for another one.
            largest = self._largest
            self._coming = [size for size in self._coming if size > count and (size >= WORTH_IT * count or size == largest)]
            try:
                self._whole[count], self._rounds = self._fit(count, limit)
            except (GpuwiseError, MemoryError):
                raise
            except Exception as error:  # the estimator's own
                if self._whole or count >= min(largest, ALL_MAY_RAISE):
                    raise JobError(
                        f"the estimator's fit on {count:,} rows raised: {type(error).__name__}: {message_of(error)}.",
                        ["fit it on as many rows by itself to see where"],
                    ) from error
        return "rows"

    def _climb_pairs(self, limit: RoundLimit, rounds: int, count: int, round_s: float) -> bool:
        """Fits of few of `rounds`, in pairs, from `count` rows, where one takes about `round_s`, to as many rows as can be.

        Seconds are expected to grow as from the pair before the last to the last. False where the estimator raises.
        """
        pairs_s, shared_s = dict[int, float](), 0.0
        most = max(2, int(MOST_SHARE * rounds))
        try:
            while True:
                affordable = (PAIR_SHARE * self._limit_s - 2 * shared_s) / (1 + 1 / FEWER) / round_s
                more = max(2, min(most, int(max(affordable, shared_s / round_s))))
                fewer = max(1, more // FEWER)
                (fewer_s, _), (more_s, _) = (self._fit(count, limit, few) for few in (fewer, more))
                if more_s > fewer_s:
                    round_s = (more_s - fewer_s) / (more - fewer)
                shared_s = max(0.0, fewer_s - fewer * round_s)
                pairs_s[count] = 2 * shared_s + 3 * round_s  # of the shortest pair
                left_s = self._limit_s - self._spent_s()
                power = _power(pairs_s, FLATTEST)
                larger = min(self._largest, TIMES * count)
                if pairs_s[count] * (larger / count) ** power > LAST_SHARE * left_s:
                    larger = min(self._largest, int(count * max(0.0, left_s / (pairs_s[count] + shared_s)) ** (1 / power)))
                if larger < WORTH_IT * count:
                    return True
                times = (larger / count) ** power
                count, shared_s, round_s = larger, times * shared_s, times * round_s
        except (GpuwiseError, MemoryError):
            raise
        except Exception:  # an estimator that takes no fewer rounds
            return False

    def _fit(self, count: int, limit: RoundLimit | None, few: int | None = None) -> tuple[float, int | None]:
        """Fits one size: seconds of one fit with its data, and its rounds."""
        self.rows = count
        self._begins(count)
        began_s = time.perf_counter()
        tables, used, rounds = self._tables(count), list[Used](), None
        warm_up = not self._is_warm  # loads what the library loads late
        if warm_up:
            self._warm_up(tables, limit)
        again_s = AGAIN_SHARE * self._limit_s
        while not used or (len(used) < MOST_FITS and sum(one.seconds for one in used) < again_s):
            estimator = self._new()
            if few is not None and limit is not None:
                estimator = limit.lowered(estimator, few)
            used.append(metered(partial(estimator.fit, *tables)))
            self._used_s += used[-1].cpu_s
            rounds = None if limit is None else limit.rounds_of(estimator)
        least_s, cpu_s = (min(getattr(one, name) for one in used) for name in ("seconds", "cpu_s"))
        peaks = [one.peak_bytes for one in used if one.peak_bytes is not None]
        most = few if few is not None or limit is None else limit.most
        self._fitted(TimedFit(count, least_s, cpu_s, max(peaks, default=None), len(used), rounds, most, few is None))
        fits = len(used) + (warm_up and limit is None)
        return (cpu_s if self._of_processors else (time.perf_counter() - began_s) / fits), rounds

    def _warm_up(self, tables: tuple[Table, ...], limit: RoundLimit | None) -> None:
        """A fit that is not counted, nor its processor seconds, of one round where the estimator takes it."""
        self._is_warm = True
        if limit is None:
            self._new().fit(*tables)
            return
        with suppress(Exception):  # an error shows in the fit that follows
            limit.lowered(self._new(), 1).fit(*tables)

    def _spent_s(self) -> float:
        return self._used_s if self._of_processors else time.perf_counter() - self._began_s


def sizes(largest: int) -> list[int]:
    """Numbers of rows, each four times the one before, up to all of them: 156, 625, ..., 10,000. Of few rows each is twice."""
    parts, times = [largest], TIMES if largest >= FEW_ROWS else FEW_TIMES
    while parts[-1] // times >= FEWEST_ROWS:
        parts.append(parts[-1] // times)
    return parts[::-1]


def _next(seconds: dict[int, float], count: int, left_s: float) -> int:
    """The next size: `count` rows or as many as are expected to end within the seconds left; 0 where that is hardly more.

    Seconds grow as from the size before the last to the last, and at least in proportion to the rows.
    """
    last, last_s = list(seconds.items())[-1]
    power = _power(seconds, 1.0)
    if len(seconds) < FEWEST_FITS - 1:
        left_s *= SECOND_SHARE
    if last_s * (count / last) ** power <= left_s:
        return count
    most = int(last * max(0.0, left_s / last_s) ** (1 / power))
    return most if most >= WORTH_IT * last else 0


def _power(seconds: dict[int, float], least: float) -> float:
    """The power of the rows by which seconds grew from the size before the last to the last; 1 for a single size."""
    (last, last_s), *before = reversed(seconds.items())
    if not before:
        return 1.0
    first, first_s = before[0]
    return max(least, math.log(last_s / first_s) / math.log(last / first))
