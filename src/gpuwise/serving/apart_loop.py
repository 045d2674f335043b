"""A fixed number of clients of instances that read prompts and others that write answers (gpuwise.serving.apart).

A client sends its next request when it has the answer to the last one, so what writers do decides when readers get work: all
instances run side by side. The one whose next iteration begins first goes on, up to where another one's begins; what that
one sends arrives no sooner. Requests go to the instance with the fewest unfinished ones, as routers send them (NVIDIA Dynamo,
vLLM's production stack).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from gpuwise.serving.apart import ApartInstances, answers_of, prompts_of
from gpuwise.serving.continuous import BatchingEngine
from gpuwise.serving.instance import Instance
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served


def served_to_clients(instances: ApartInstances, load: Requests, clients: int) -> Served:
    """The outcome of a closed loop. The arrivals of the load are not read; those of the result are the ones clients made."""
    return _Loop(instances, load, clients).run()


class _Worker(BatchingEngine):
    """An instance that other instances or clients send requests to.

    Arguments:
        load: of all instances, one of which this one gets some.
        ended: called with each request and the second of its last token.
    """

    def __init__(self, instance: Instance, load: Requests, ended: Callable[[int, float], None]) -> None:
        def stop(index: int, first_s: float, end_s: float) -> bool:
            self.unfinished -= 1
            ended(index, end_s)
            return False

        super().__init__(load, instance.iteration_s, instance.policy, None, stop)
        self.coming.clear()
        self.unfinished = 0

    @property
    def next_s(self) -> float:
        """When the next iteration begins; inf without work."""
        if self.running or self.waiting:
            return self.clock_s
        return max(self.clock_s, self.coming[0][0]) if self.coming else inf

    def holds(self, index: int) -> bool:
        """Whether the cache holds the request."""
        return self.policy.blocks_of(self.inputs[index] + self.outputs[index]) <= self.policy.blocks

    def send(self, index: int, at_s: float) -> None:
        """A request arrives."""
        insort(self.coming, (at_s + self.policy.request_s, index))
        self.unfinished += 1


class _Loop:
    def __init__(self, instances: ApartInstances, load: Requests, clients: int) -> None:
        self.load, self.transfer = load, instances.transfer
        self.link_s = instances.transfer.seconds(load.input_tokens).tolist()
        count = len(load)
        self.arrival_s, self.first_s, self.end_s = (np.full(count, np.nan) for _ in range(3))
        further = replace(load, output_tokens=np.maximum(load.output_tokens, 2))  # writers never get answers of one token
        answers = answers_of(further, np.arange(count), np.zeros(count))
        prompts = prompts_of(replace(load, arrival_s=np.zeros(count)))
        self.free_s = [0.0] * instances.readers  # when each reader's link has sent what it has
        self.readers = [
            _Worker(instances.reads, prompts, lambda index, at_s, i=i: self._read(index, at_s, reader=i))  # type: ignore[misc]
            for i in range(instances.readers)
        ]
        self.writers = [_Worker(instances.writes, answers, self._answered) for _ in range(instances.writers)]
        self.unsent = 0
        for _ in range(min(clients, count)):
            self._send_next(0.0)

    def run(self) -> Served:
        workers = [*self.readers, *self.writers]
        while True:
            times_s = [worker.next_s for worker in workers]
            first = int(np.argmin(times_s))
            if times_s[first] == inf:
                break
            workers[first].advance(until_s=min((s for i, s in enumerate(times_s) if i != first), default=inf))
        order = np.argsort(self.arrival_s, kind="stable")
        load = replace(self.load.of(order), arrival_s=self.arrival_s[order])
        iterations, preemptions = (sum(getattr(each, name) for each in workers) for name in ("iterations", "preemptions"))
        busy_s = sum(worker.busy_s for worker in workers)
        return Served(load, self.first_s[order], self.end_s[order], iterations, busy_s, preemptions)

    def _send_next(self, at_s: float) -> None:
        """A client sends the next request; those that no instance can hold are turned away at once."""
        while self.unsent < len(self.load):
            index, self.unsent = self.unsent, self.unsent + 1
            self.arrival_s[index] = at_s
            if self.readers[0].holds(index) and self.writers[0].holds(index):
                _least(self.readers).send(index, at_s)
                return

    def _read(self, index: int, at_s: float, *, reader: int) -> None:
        """A prompt is read: its keys and values leave after those that left before."""
        self.free_s[reader] = max(self.free_s[reader], at_s) + self.link_s[index]
        self.first_s[index] = moved_s = self.free_s[reader] + self.transfer.latency_s
        if self.load.output_tokens[index] > 1:
            _least(self.writers).send(index, moved_s)
        else:
            self._answered(index, moved_s)

    def _answered(self, index: int, at_s: float) -> None:
        self.end_s[index] = at_s
        self._send_next(at_s)


def _least(workers: Sequence[_Worker]) -> _Worker:
    """The worker with the fewest unfinished requests."""
    return min(workers, key=lambda worker: worker.unfinished)
