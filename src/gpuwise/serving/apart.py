"""Apart: instances that read prompts, and others that write answers, with keys and values moved in between.

Reading is a queue of its own: each prompt ends with its first token. Its keys and values then leave over the network, one
request after the other, and the first token reaches its user with them. Writing is continuous batching of sequences whose
prompts need no reading (DistServe, arXiv:2401.09670; Splitwise, arXiv:2311.18677).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnsupportedError
from gpuwise.serving.instance import COUNT, Instance, LoadShape, steady
from gpuwise.serving.requests import Requests
from gpuwise.serving.saturation import Limits
from gpuwise.serving.served import Served

MOST_COUNT = 10 * COUNT  # requests of a simulated load of many instances
TRIES = 24  # numbers of instances that are simulated before the answer is that none suffice


@dataclass(frozen=True)
class Transfer:
    """How keys and values move.

    Attributes:
        name: of the link.
        bytes_per_s: bandwidth from one instance to another.
        latency_s: of a message.
        token_bytes, sequence_bytes: bytes that a token of a prompt adds, and of each request.
    """

    name: str
    bytes_per_s: float
    latency_s: float
    token_bytes: int
    sequence_bytes: int = 0

    def seconds(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds of the link for prompts of so many tokens."""
        return (tokens * self.token_bytes + self.sequence_bytes) / self.bytes_per_s

    def moved_s(self, ready_s: NDArray[np.float64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """When each prompt has arrived, where they leave one after the other in the order of `ready_s`; NaN stays."""
        moved_s = np.full(len(ready_s), np.nan)
        free_s, link_s = 0.0, self.seconds(tokens)
        for index in np.argsort(ready_s, kind="stable").tolist():
            if np.isnan(ready_s[index]):
                continue
            free_s = max(free_s, float(ready_s[index])) + float(link_s[index])
            moved_s[index] = free_s + self.latency_s
        return moved_s


@dataclass(frozen=True)
class ApartInstances:
    """Instances of both kinds, which users and prompts reach in turn.

    Attributes:
        reads, writes: one instance of each kind. Policies of those that write have `brought` set.
        transfer: between them.
        readers, writers: how many there are.
    """

    reads: Instance
    writes: Instance
    transfer: Transfer
    readers: int
    writers: int

    @property
    def requests(self) -> int:
        """Requests of a simulated load: as many as one instance is simulated with, for each of a kind."""
        return min(MOST_COUNT, COUNT * max(self.readers, self.writers))

    def served(self, load: Requests, *, factor: float = 1.0) -> Served:
        """The outcome of a load, where every iteration takes `factor` times its forecast."""
        count = len(load)
        ready_s, moved_s, end_s = (np.full(count, np.nan) for _ in range(3))
        iterations, busy_s, preemptions = 0, 0.0, 0
        for i in range(min(self.readers, count)):
            part = np.arange(i, count, self.readers)
            read = self.reads.served(prompts_of(load.of(part)), factor=factor)
            ready_s[part] = read.end_s
            moved_s[part] = self.transfer.moved_s(read.end_s, load.input_tokens[part])
            iterations, busy_s = iterations + read.iterations, busy_s + read.busy_s
        more = load.output_tokens > 1
        end_s[~more] = moved_s[~more]
        order = np.argsort(moved_s, kind="stable")
        order = order[more[order] & ~np.isnan(moved_s[order])]
        for j in range(min(self.writers, len(order))):
            part = order[j :: self.writers]
            written = self.writes.served(answers_of(load, part, moved_s[part]), factor=factor)
            end_s[part] = written.end_s
            iterations, busy_s = iterations + written.iterations, busy_s + written.busy_s
            preemptions += written.preemptions
        return Served(load, np.where(np.isnan(end_s), np.nan, moved_s), end_s, iterations, busy_s, preemptions)

    def outcomes(self, load: Requests) -> tuple[Served, Served, Served]:
        """As Instance.outcomes."""
        low, high = self.reads.spread
        first, fast, slow = (steady(self.served(load, factor=factor)) for factor in (1.0, low, high))
        return first, fast, slow


def prompts_of(load: Requests) -> Requests:
    """The load of instances that read: each request ends with its first token."""
    return replace(load, output_tokens=np.ones(len(load), dtype=np.int64))


def answers_of(load: Requests, chosen: NDArray[np.int64], arrival_s: NDArray[np.float64]) -> Requests:
    """The load of instances that write some of its answers: prompts are in the cache, and the first token is there.

    arrival_s: when each of the chosen ones arrives.
    """
    read, written = load.input_tokens[chosen], load.output_tokens[chosen]
    return Requests(arrival_s, read + 1, written - 1, read)


@dataclass(frozen=True)
class PromptLoad(LoadShape):
    """The prompts of a load at any rate."""

    def at(self, rate_per_s: float, *, count: int = COUNT) -> Requests:
        """The requests at a rate."""
        return prompts_of(super().at(rate_per_s, count=count))


@dataclass(frozen=True)
class AnswerLoad(LoadShape):
    """The answers of a load at any rate, as if their prompts ended evenly at random."""

    def at(self, rate_per_s: float, *, count: int = COUNT) -> Requests:
        """The requests at a rate."""
        load = super().at(rate_per_s, count=count)
        chosen = np.flatnonzero(load.output_tokens > 1)
        return answers_of(load, chosen, load.arrival_s[chosen])


def fewest(
    start: ApartInstances,
    limits: Limits,
    load_of: Callable[[int], Requests],
    *,
    usd: tuple[float, float],
) -> tuple[ApartInstances, Served]:
    """The numbers of instances at least cost with which the limits hold, and the outcome.

    Arguments:
        start: with the numbers that each kind needs by itself: fewer of either do not suffice.
        load_of: the load at the rate, of so many requests.
        usd: dollars an hour of one instance of each kind, which decide where both would help; equal where unknown.

    Numbers are simulated from the cheapest on. More writers do not mend late first tokens, nor more readers late further ones.
    Raises UnsupportedError where TRIES numbers do not suffice.
    """
    waiting = [(0.0, start.readers, start.writers)]
    seen = {waiting[0][1:]}
    for _ in range(TRIES):
        _, readers, writers = heappop(waiting)
        instances = replace(start, readers=readers, writers=writers)
        served = steady(instances.served(load_of(instances.requests)))
        if limits.hold(served):
            return instances, served
        first_late = served.share_within(ttft_s=limits.ttft_s) < limits.share
        others_late = served.share_within(tpot_s=limits.tpot_s) < limits.share
        more = [(readers + 1, writers)] if first_late or not others_late else []
        more += [(readers, writers + 1)] if others_late or not first_late else []
        for counts in more:
            if counts not in seen:
                seen.add(counts)
                heappush(waiting, (counts[0] * usd[0] + counts[1] * usd[1], *counts))
    raise UnsupportedError(
        f"the limits do not hold with {readers:,} instances that read prompts and {writers:,} that write answers"
    )


@dataclass(frozen=True)
class PromptsApart:
    """Instances that read prompts for those of a row.

    Attributes:
        device: devices of one that reads.
        readers: how many there are.
        reads_per_s: prompts a second that one reads within the limits.
        link: name of the network between both kinds.
        link_bytes_per_s: bandwidth from one instance to another.
        transfer_s: time that the mean prompt's keys and values take.
        launch: the command that starts one that reads, "" where none is known.
        usd_per_hour: of all that read; None without a price.
    """

    device: str
    readers: int
    reads_per_s: float
    link: str
    link_bytes_per_s: float
    transfer_s: float
    launch: str
    usd_per_hour: float | None

    @property
    def words(self) -> str:
        """A sentence for the report."""
        return (
            f"{self.readers:,} x {self.device} read prompts, {self.reads_per_s:.3g}/s each; their keys and values take "
            f"{1e3 * self.transfer_s:.3g} ms over {self.link}"
        )
