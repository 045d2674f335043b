"""RunRanks: the ranks of a run for its loop, with the pulse that watches them and the words that a failure leaves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import torch.distributed as dist

from gpuwise.runtime.ranks.failure import end_process, last_words
from gpuwise.runtime.ranks.last_words import LastWords
from gpuwise.runtime.ranks.pulse import Pulse, RankStatus
from gpuwise.runtime.ranks.ranks import ALONE, Ranks

END_S = 600.0  # for the other ranks at the end of a run


class RunRanks:
    """The ranks of a run, from the moment in which they have met until its end.

    Arguments:
        own: the ranks, of which this process is one.
        initialise: initialises torch.distributed, which then ends with the run; None where that is done.

    Attributes:
        pulse: watches the other ranks; it does nothing in a process alone.
    """

    def __init__(self, own: Ranks, *, initialise: Callable[[], None] | None = None):
        self.own, self._initialise, self._has_group = own, initialise, False
        self._on_failure: Callable[[LastWords], None] = lambda words: None
        self.pulse = Pulse(own if not own.several else own.cloned(), RankStatus, end=self._end)

    def start(self) -> RunRanks:
        """Starts the pulse."""
        self.pulse.__enter__()
        return self

    def connect(self) -> None:
        """Lets PyTorch connect the ranks. Before that, a step of several devices can be recorded in this process."""
        if self._initialise is not None and not self._has_group:
            self._initialise()
            self._has_group = True

    def speaking(self) -> AbstractContextManager[object]:
        """A context that leaves the error it ends with as this rank's last words."""
        return last_words(self.own, self.pulse) if self.own.several else nullcontext()

    def on_failure(self, call: Callable[[LastWords], None]) -> None:
        """Sets what is called with the last words before this process is ended in a collective; in the pulse's thread."""
        self._on_failure = call

    def done(self) -> None:
        """The end of a run that has not failed: rank 0, and the store that it may keep, outlive the others."""
        if not self.own.several:
            return
        self.own.of_first("ended", lambda: True)
        self.own.post("done", None)
        if self.own.leads:
            self.own.collected("done", within_s=END_S)
        self.pulse.__exit__()
        if self._has_group:
            dist.destroy_process_group()

    def _end(self, words: LastWords, own: bool) -> None:
        with suppress(Exception):  # the process ends in any case
            self._on_failure(words)
        end_process(words, own, without_store=self.pulse.store_lost)


ALONE_IN_RUN = RunRanks(ALONE)
