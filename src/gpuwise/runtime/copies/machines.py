"""Machines: how the machines of a run share the work of a copy. Each copies the files that its own ranks have written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import cast

from gpuwise.runtime.checkpoint.manifest import FileName
from gpuwise.runtime.ranks import Ranks

SLOWEST_POLL_S = 1.0  # of a machine that has nothing to copy
OVER = -1  # instead of a step: nothing is copied any more


class Machines:
    """The lowest rank of each machine copies for it; rank 0 leads, and copies what is of no single rank.

    Rank 0 orders the copy of a step, does its own part and waits for the answers of the others. Everything goes through the
    store of the ranks, in a thread.

    Arguments:
        ranks: this rank among them, with a connection of its own.
    """

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._leader_of = [ranks.hosts.index(host) for host in ranks.hosts]
        self._orders = 0

    @property
    def several(self) -> bool:
        return any(self._leader_of)

    @property
    def copies(self) -> bool:
        """Whether this rank copies the files of its machine."""
        return self._leader_of[self._ranks.rank] == self._ranks.rank

    def share(self, names: Iterable[str]) -> list[str]:
        """The files of a checkpoint that this machine copies."""
        return [name for name in sorted(names) if self.copies and self._copier_of(name) == self._ranks.rank]

    def order(self, step: int) -> None:
        """On rank 0: has the others copy their files of a checkpoint; OVER ends their work."""
        self._orders += 1
        if self.several:
            self._ranks.first_of(f"copy/{self._orders}", step)

    def ordered(self, *, until: Callable[[], bool]) -> int | None:
        """On another machine: waits for the next step that rank 0 orders; None where `until` became true before."""
        pause_s = 0.01
        while (step := self._ranks.first_of(f"copy/{self._orders + 1}", None)) is None:
            if until():
                return None
            time.sleep(pause_s)
            pause_s = min(SLOWEST_POLL_S, 1.5 * pause_s)
        self._orders += 1
        return cast(int, step)

    def answer(self, problem: str | None) -> None:
        """On another machine: its files are copied, or why not."""
        self._ranks.tell_rank_0(f"copied/{self._orders}/{self._ranks.rank}", {"problem": problem})

    def problems(self, *, progress: Callable[[], None]) -> list[str]:
        """On rank 0: waits for the answers of the other machines, and returns what kept them from copying.

        Raises what `progress` raises, and OtherRankError when a rank has failed.
        """
        problems = []
        for leader in sorted({*self._leader_of} - {0}):
            pause_s = 0.01
            while (answer := self._ranks.left_by_rank(f"copied/{self._orders}/{leader}")) is None:
                self._ranks.check()
                progress()
                time.sleep(pause_s)
                pause_s = min(SLOWEST_POLL_S, 1.5 * pause_s)
            problem = cast("dict[str, str | None]", answer)["problem"]
            if problem is not None:
                problems.append(f"rank {leader} on {self._ranks.hosts[leader]}: {problem}")
        return problems

    def _copier_of(self, name: str) -> int:
        """A rank; a checkpoint of more ranks than there are now has its files spread over them."""
        file = FileName.parse(name)
        rank = 0 if file is None or file.rank is None else file.rank
        return self._leader_of[rank % len(self._leader_of)]
