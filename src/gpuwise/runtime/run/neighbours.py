"""Other programs on the processors of a run: noticed while it goes, and counted when it is compared with its forecast."""

from __future__ import annotations

from collections.abc import Callable

from gpuwise.hardware.disturbances import Shares, shares
from gpuwise.hardware.load import LoadSnapshot, processor_times
from gpuwise.hardware.waiting import SETTING, waiting_is_set
from gpuwise.notes import Note
from gpuwise.notes.training import processors_shared

LOOK_EVERY_S = 5.0
LEAST_S = 1.0  # the system counts in hundredths of a second: what is shorter tells nothing
LEAST_LOST = 0.15  # of the processor time that the run's threads want: less is a system's own work


class Neighbours:
    """Compares the processors' times now and then with those at the start.

    Arguments:
        threads: that compute. now: a snapshot, see gpuwise.hardware.load.processor_times.
    """

    def __init__(self, threads: int, now: Callable[[], LoadSnapshot] = processor_times):
        self._threads, self._now = threads, now
        self._first = self._last = now()
        self._warned = False

    def look(self, now_s: float) -> Note | None:
        """A note when others first take more than LEAST_LOST of what the run could use; else None.

        Arguments:
            now_s: on the monotonic clock. Within LOOK_EVERY_S of the last look nothing is done.
        """
        if self._warned or now_s - self._last.taken_s < LOOK_EVERY_S:
            return None
        before, self._last = self._last, self._now()
        usage = shares(before, self._last)
        if usage is None or self._available(usage, self._last.processors) > 1 - LEAST_LOST:
            return None
        self._warned = True
        return self._note(usage, self._last.processors)

    def available(self) -> float:
        """The share of the processor time that the run's threads want which others left them, from the start until now; 1
        where the system does not tell, or hardly less."""
        last = self._now()
        usage = shares(self._first, last) if last.taken_s - self._first.taken_s >= LEAST_S else None
        share = 1.0 if usage is None else self._available(usage, last.processors)
        return share if share <= 1 - LEAST_LOST else 1.0

    def _available(self, usage: Shares, processors: int) -> float:
        return min(1.0, _left(usage) * processors / self._threads)

    def _note(self, usage: Shares, processors: int) -> Note:
        room = max(1, round(_left(usage) * processors))
        return processors_shared(
            share=usage.others + usage.stolen,
            room=room if room < self._threads else None,
            setting="" if waiting_is_set() else SETTING,
        )


def _left(usage: Shares) -> float:
    return 1 - usage.others - usage.stolen
