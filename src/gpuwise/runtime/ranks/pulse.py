"""Pulse: each rank shows that it is alive, and notices when another is not, or has failed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from gpuwise.errors import RankLostError
from gpuwise.runtime.ranks.last_words import LastWords
from gpuwise.runtime.ranks.ranks import Ranks

PULSE_S = 2.0
# A rank whose pulse does not change for so long does not answer: it was stopped, its machine has gone, or the network. The
# main thread may be busy for hours meanwhile; only code that holds Python's lock all the time would look the same.
SILENT_S = 25.0
SILENT_START_S = 40.0  # before the first step, in which models are loaded
GRACE_S = 5.0  # for the main thread to end by itself once a rank has failed


class RankStatus(NamedTuple):
    """What a rank says of itself with its pulse.

    Attributes:
        step: optimizer steps so far.
        phase: phase of the run, as of gpuwise.runtime.health.StallWatch.
        data_share: share of the time since the last pulse that it waited for its data.
        wait_share: share of that time that it waited for other ranks; None if unknown.
        notes: notes that it has posted so far.
    """

    step: int = 0
    phase: str = "start"
    data_share: float = 0.0
    wait_share: float | None = None
    notes: int = 0


class Pulse:
    """A context in which a thread posts this rank's status every PULSE_S and looks for failed and silent ranks.

    Rank 0 watches all ranks, the others watch rank 0 and the failures that are told. Where one does not answer, last words are
    left in its name. Once there are last words, the main thread has GRACE_S to end by itself; then `end` is called. Another
    thread calls it when the store does not answer at all: the machine that keeps it may go without closing connections.

    Collectives need no timeout of their own for ranks that are lost: `end` ends a process within one.

    Arguments:
        status: this rank's status; called in the thread.
        end: ends the process; called in a thread, with the last words and whether this rank was the one to leave them.
        clock: a clock in seconds.
        wait: sleeps for the given seconds and returns true to end the thread; for tests.

    Attributes:
        statuses: the latest status of each rank, on rank 0; empty on the others.
        status: as the argument, which is replaced once the run has begun.
        store_lost: whether the store has gone, so that nobody hears of last words.
    """

    def __init__(
        self,
        ranks: Ranks,
        status: Callable[[], RankStatus],
        *,
        end: Callable[[LastWords, bool], None],
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.statuses: dict[int, RankStatus] = {}
        self.status = status
        self.store_lost = False
        self._ranks, self._on_end, self._clock = ranks, end, clock
        self._count = 0
        self._changed: dict[int, tuple[int, float]] = {}  # rank -> count of its latest pulse, and when that was new
        self._began_s: float | None = None  # a rank may be stopped before its first pulse
        self._looked_s: float | None = None
        self._looks, self._looks_seen, self._turns_without = 0, 0, 0
        self._failed_s: float | None = None
        self._own_words = False
        self._store_lost_s: float | None = None
        self._end = threading.Event()
        self._wait = wait or self._end.wait
        self._thread = threading.Thread(target=self._run, name="gpuwise-pulse", daemon=True)
        self._guard = threading.Thread(target=self._run_guard, name="gpuwise-pulse-guard", daemon=True)

    def __enter__(self) -> Pulse:
        if self._ranks.several:
            self._thread.start()
            self._guard.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(PULSE_S)

    def look(self) -> LastWords | None:
        """One pulse, and one look at the others. Returns last words once the main thread's time is over."""
        now_s = self._clock()
        self._forgive(now_s)
        try:
            self._beat()
            words = self._ranks.failure() or self._silent(now_s)
            self._store_lost_s = None
        except RuntimeError:  # of the store; dist.DistError is one
            self._store_lost_s = self._store_lost_s or now_s
            if now_s - self._store_lost_s < 2 * PULSE_S:
                return None
            words = self.without_store()
        if words is None:
            return None
        self._failed_s = self._failed_s or now_s
        return words if now_s - self._failed_s >= GRACE_S else None

    def is_stuck(self) -> bool:
        """Whether a look has lasted for SILENT_S. To be called every PULSE_S: the time of a stopped process does not count."""
        self._turns_without = self._turns_without + 1 if self._looks == self._looks_seen else 0
        self._looks_seen = self._looks
        return self._turns_without * PULSE_S > SILENT_S

    def silent_ranks(self, *, since_s: float) -> list[int]:
        """Ranks whose pulse has not changed for `since_s` seconds, by this rank's own observation."""
        now_s = self._clock()
        self._observe(range(self._ranks.size), now_s)
        return [rank for rank, (_, changed_s) in self._changed.items() if now_s - changed_s > since_s]

    def _run(self) -> None:
        while not self._wait(PULSE_S):
            try:
                words = self.look()
            except Exception as error:  # a watch that ends in silence would let the run hang
                words = LastWords.of(error, rank=self._ranks.rank, host=self._ranks.host)
                with suppress(RuntimeError):  # of the store
                    words = self._ranks.leave(words)
            if words is not None:
                self._on_end(words, self._own_words)
                return
            self._looks += 1

    def _run_guard(self) -> None:
        while not self._end.wait(PULSE_S):
            if self.is_stuck():
                self._on_end(self.without_store(), True)
                return

    def _forgive(self, now_s: float) -> None:
        """Adds to every rank's time what this one has missed: a run whose ranks were all stopped goes on when they do."""
        if self._looked_s is not None and (missed_s := now_s - self._looked_s - PULSE_S) > PULSE_S:
            self._changed = {rank: (count, changed_s + missed_s) for rank, (count, changed_s) in self._changed.items()}
            self._began_s = None if self._began_s is None else self._began_s + missed_s
        self._looked_s = now_s

    def _beat(self) -> None:
        self._count += 1
        self._ranks.set_pulse(json.dumps([self._count, *self.status()]))

    def _silent(self, now_s: float) -> LastWords | None:
        """Last words of a rank that does not answer."""
        watched = range(self._ranks.size) if self._ranks.leads else range(1)
        self._observe(watched, now_s)
        self._began_s = now_s if self._began_s is None else self._began_s
        started = self.status().step > 0
        longest_s = SILENT_S if started else SILENT_START_S
        for rank in watched:
            _, changed_s = self._changed.get(rank, (0, self._began_s))
            silent_s = now_s - changed_s
            if rank != self._ranks.rank and silent_s > longest_s:
                return self._leave(rank, f"has not answered for {silent_s:.0f} s")
        return None

    def _observe(self, watched: range, now_s: float) -> None:
        for rank, text in self._ranks.pulses(watched).items():
            count, *values = json.loads(text)
            if count != self._changed.get(rank, (0, 0.0))[0]:
                self._changed[rank] = count, now_s
            if self._ranks.leads:
                self.statuses[rank] = RankStatus(*values)

    def _leave(self, rank: int, what: str) -> LastWords:
        status = self.statuses.get(rank)
        where = f", after step {status.step:,} (phase {status.phase!r})" if status is not None and status.step else ""
        host = self._ranks.hosts[rank]
        error = RankLostError(
            f"rank {rank} on {host} {what}{where}: it was stopped, its machine is gone, or the network between.",
            ["see whether that machine runs", "start again: the run goes on from its last checkpoint"],
        )
        words = LastWords.of(error, rank=rank, host=host)
        first = self._ranks.leave(words)
        self._own_words = first == words
        return first

    def without_store(self) -> LastWords:
        """Words for a store that has gone, and with it the process that kept it: nobody else can tell the user."""
        self._own_words = self.store_lost = True
        lost = RankLostError(
            f"rank {self._ranks.rank} on {self._ranks.host} has lost the launcher, or rank 0, that the ranks met at.",
            ["see what ended it", "start again: the run goes on from its last checkpoint"],
        )
        return LastWords.of(lost, rank=self._ranks.rank, host=self._ranks.host)
