"""What ranks other than 0 report while a run goes on, and how rank 0 shows it: notes, waits, the slowest rank."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO, cast

from gpuwise.json_types import Json
from gpuwise.runtime.health import StallWatch
from gpuwise.runtime.ranks import Ranks
from gpuwise.runtime.ranks.pulse import Pulse, RankStatus
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.reporter import Reporter
from gpuwise.runtime.show import Display
from gpuwise.runtime.show.update import SlowestRank

MOST_NOTES = 20  # that a rank passes on: a fault that repeats on thousands of ranks must not fill a screen
LOG_EVERY_S = 30.0  # between two records of all ranks in the log
LEAST_SPREAD = 0.1  # between the waits of the slowest rank and of the others, as a share of the time
_SCHEDSTAT = "/proc/self/task/{}/schedstat"  # ns on a processor, ns in its queue (kernel: scheduler/sched-stats)


class Relay(Display):
    """The display of a rank other than 0: its notes are passed on, and nothing is drawn."""

    def __init__(self, ranks: Ranks, stream: TextIO | None = None):
        super().__init__(stream)
        self._ranks, self.count = ranks, 0

    def note(self, text: str) -> None:
        if self.count < MOST_NOTES:
            self._ranks.tell_rank_0(f"note/{self._ranks.rank}/{self.count}", text)
            self.count += 1


class Busy(NamedTuple):
    """Times of the main thread since the process began, in seconds. None: the system does not tell."""

    now_s: float
    waited_for_data_s: float
    paused_s: float
    on_processor_s: float | None


class RankReporter:
    """This rank's status for its pulse, and on rank 0 the notes and waits of all.

    Arguments:
        relay: display of this rank; None on rank 0.
        host_works: whether this process computes itself (a CPU). Then the time in which its main thread neither computes nor
            waits for data is that in which it waits for other ranks.
    """

    def __init__(
        self,
        ranks: Ranks,
        pulse: Pulse,
        *,
        meter: Meter,
        stall: StallWatch,
        reporter: Reporter,
        relay: Relay | None,
        host_works: bool,
    ):
        self._ranks, self._pulse, self._meter, self._stall = ranks, pulse, meter, stall
        self._reporter, self._relay = reporter, relay
        main = threading.main_thread().native_id if host_works else None
        self._schedstat = None if main is None else Path(_SCHEDSTAT.format(main))
        self._before = self._busy()
        self._shares: tuple[float, float | None] = (0.0, None)
        self._shown: dict[int, int] = {}
        self._texts: set[str] = set()
        self._log_due_s = -math.inf

    def status(self) -> RankStatus:
        """Called by the pulse's thread."""
        now, before = self._busy(), self._before
        elapsed_s = now.now_s - before.now_s - (now.paused_s - before.paused_s)
        if elapsed_s > 0.5:
            self._before = now
            data_s = now.waited_for_data_s - before.waited_for_data_s
            waits: float | None = None
            if now.on_processor_s is not None and before.on_processor_s is not None:
                waits = max(0.0, elapsed_s - data_s - (now.on_processor_s - before.on_processor_s)) / elapsed_s
            self._shares = min(1.0, data_s / elapsed_s), waits
        notes = 0 if self._relay is None else self._relay.count
        return RankStatus(self._meter.step, self._stall.phase, *self._shares, notes)

    def look(self) -> None:
        """On rank 0: shows and logs notes of other ranks that are not its own, too, and logs what each rank waits for."""
        self._texts.update(note.text for note in self._reporter.notes)
        for rank, status in sorted(self._pulse.statuses.items()):
            for number in range(self._shown.get(rank, 0), status.notes):
                text = str(self._ranks.told_by_rank(f"note/{rank}/{number}"))
                if text not in self._texts:
                    self._texts.add(text)
                    self._reporter.tell(f"rank {rank} on {self._ranks.hosts[rank]}: {text}", "rank", rank=rank)
            self._shown[rank] = status.notes
        if len(self._pulse.statuses) == self._ranks.size and self._meter.now_s >= self._log_due_s:
            self._log_due_s = self._meter.now_s + LOG_EVERY_S
            slowest = str(self.slowest() or "no rank is noticeably slower than the others")
            record = {"kind": "ranks", "text": slowest, "step": self._meter.step, "ranks": self.records()}
            self._reporter.log.write("event", record)

    def slowest(self) -> SlowestRank | None:
        """The rank that the others wait for; None where they hardly wait."""
        return slowest_of(self._pulse.statuses, self._ranks.hosts)

    def records(self) -> list[Json]:
        """The latest status of each rank, for the log."""
        return [
            cast(Json, {"rank": rank, "host": self._ranks.hosts[rank], **status._asdict()})
            for rank, status in sorted(self._pulse.statuses.items())
        ]

    def _busy(self) -> Busy:
        on_processor_s = None
        if self._schedstat is not None:
            with suppress(OSError, ValueError):
                running_ns, queued_ns, *_ = self._schedstat.read_text().split()
                on_processor_s = (int(running_ns) + int(queued_ns)) / 1e9
        waited_s, paused_s = self._meter.waits
        return Busy(time.perf_counter(), waited_s, paused_s, on_processor_s)


def slowest_of(statuses: Mapping[int, RankStatus], hosts: list[str]) -> SlowestRank | None:
    """The rank that waits least for others, if those wait noticeably longer; of GPUs, the one that waits most for its data."""
    if len(statuses) < 2:
        return None
    waits = {rank: status.wait_share for rank, status in statuses.items() if status.wait_share is not None}
    if len(waits) == len(statuses):
        rank = min(waits, key=waits.__getitem__)
        others = [wait for other, wait in waits.items() if other != rank]
        mean = sum(others) / len(others)
        if mean - waits[rank] < LEAST_SPREAD:
            return None
        return SlowestRank(rank, hosts[rank], statuses[rank].data_share, mean)
    rank = max(statuses, key=lambda rank: statuses[rank].data_share)
    if statuses[rank].data_share < LEAST_SPREAD:
        return None
    return SlowestRank(rank, hosts[rank], statuses[rank].data_share, None)
