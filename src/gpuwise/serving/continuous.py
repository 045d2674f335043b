"""Continuous batching: requests join and leave the batch at every iteration, as in vLLM, SGLang and TensorRT-LLM.

The rules are those of vLLM's scheduler (docs.vllm.ai, "Optimization and Tuning": chunked prefill, preemption): sequences that
decode come first, then prompts that have begun, then waiting ones in order of arrival, within the iteration's tokens, the
running sequences and the blocks of the cache. A prompt begins once the cache has room for all of it (vLLM's default
`scheduler_reserve_full_isl`, vllm-project/vllm, pull request 37307). Where the cache is full, the sequence that joined last
gives its blocks back and is computed again later.

Iterations that only decode are taken many at a time. Nothing joins and nobody leaves in between, so the batch is constant
and its cache grows by one token a sequence; the time of an iteration is taken as linear in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

import numpy as np

from gpuwise.serving.decoding import DecodingBatch, iterations_until
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served

GROWTH = 0.1  # of the tokens read from the cache, in which the time of a decoding iteration is taken as linear


class IterationTime(Protocol):
    """Seconds of one iteration of the engine."""

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        """Seconds of an iteration.

        Arguments:
            chunks: parts of prompts: new tokens, and the tokens before them that are in the cache.
            sequences: sequences that decode one token each.
            past_tokens: tokens of the cache that those read, summed over sequences.
        """
        ...


class StopServing(Protocol):
    """Whether the rest of a load need not be served."""

    def __call__(self, index: int, first_s: float, end_s: float) -> bool:
        """After the request `index` got its first token and its last one, in seconds since the load's first second."""
        ...


def serve(
    load: Requests,
    iteration_s: IterationTime,
    policy: BatchingPolicy,
    *,
    concurrency: int | None = None,
    stop: StopServing | None = None,
) -> Served:
    """Serves a load on one instance of the model.

    Arguments:
        concurrency: clients that each send their next request as soon as they have the answer to the last one; the arrivals of
            the load are then not read. None (default) sends every request at its arrival.
        stop: called at the end of each request; once it is true, the others count as turned away. None (default): never.

    Requests that the cache could not hold even alone are turned away. A call's time grows with requests, hardly with tokens.
    """
    engine = BatchingEngine(load, iteration_s, policy, concurrency, stop)
    while not engine.stopped and engine.advance():
        pass
    return engine.served()


@dataclass
class _Sequence:
    """A request in the engine. What it has written is part of what is computed again after a preemption.

    Attributes:
        index: of the request.
        to_read: tokens to compute before the next one is written.
        written: tokens written when it was last in the queue.
        computed: of those to read.
        blocks: blocks it holds while it reads, those of the prefix cache apart.
        shared_blocks: its blocks of the prefix cache, which others hold.
    """

    index: int
    to_read: int
    written: int = 0
    computed: int = 0
    blocks: int = 0
    shared_blocks: int = 0


class BatchingEngine:
    """One instance while it serves. Arguments as for `serve`."""

    def __init__(
        self,
        load: Requests,
        iteration_s: IterationTime,
        policy: BatchingPolicy,
        concurrency: int | None,
        stop: StopServing | None,
    ) -> None:
        self.load, self.iteration_s, self.policy, self.concurrency = load, iteration_s, policy, concurrency
        self.stop, self.stopped = stop, False
        self.clock_s = self.busy_s = 0.0
        self.last_s = 0.0  # seconds of the last iteration
        self.iterations = self.preemptions = 0
        self.preempted = False  # for the iteration at hand
        self.free_blocks = policy.blocks
        self.inputs, self.outputs, self.cached = (
            column.tolist() for column in (load.input_tokens, load.output_tokens, load.cached_tokens)
        )
        count = len(load)
        self.arrival_s = np.zeros(count) if concurrency else np.array(load.arrival_s)
        self.first_s, self.end_s = np.full(count, np.nan), np.full(count, np.nan)
        self.unsent = count if concurrency is None else min(concurrency, count)  # the first request that no client has sent
        queued_s = self.arrival_s[: self.unsent] + policy.request_s
        self.coming = deque(zip(queued_s.tolist(), range(self.unsent), strict=True))
        self.waiting: deque[_Sequence] = deque()
        self.running: dict[int, _Sequence] = {}  # by request, in the order in which they joined
        self.reading: dict[int, _Sequence] = {}  # those of the running ones that do not decode yet
        self.decoding = DecodingBatch(policy.block_tokens)

    def served(self) -> Served:
        order = np.argsort(self.arrival_s, kind="stable")
        load = replace(self.load.of(order), arrival_s=self.arrival_s[order]) if self.concurrency else self.load
        order = order if self.concurrency else np.arange(len(order))
        return Served(load, self.first_s[order], self.end_s[order], self.iterations, self.busy_s, self.preemptions)

    def advance(self, *, until_s: float = inf) -> bool:
        """One iteration, or many that only decode, of which none but the first begins after `until_s`; False once nothing is
        left."""
        self._receive()
        if not self.running and not self.waiting:
            if not self.coming:
                return False
            self.clock_s = self.coming[0][0]
            return True
        chunks = self._schedule()
        if chunks:
            self._iterate(chunks)
        else:
            self._decode_on(until_s)
        return True

    def _receive(self) -> None:
        """Queues what has arrived. A full queue, or a request that the cache can never hold, turns it away."""
        # Those who join at once do not wait in the queue. Where some wait already, the cache or the iteration has no room.
        seats = 0 if self.waiting else self.policy.sequences - len(self.running)
        decided_s = self.clock_s - self.last_s if self.policy.ahead and self.running else self.clock_s
        while self.coming and self.coming[0][0] <= decided_s:
            _, index = self.coming.popleft()
            tokens = self.inputs[index] + self.outputs[index]
            full = self.policy.queue is not None and len(self.waiting) >= self.policy.queue + seats
            if full or self.policy.blocks_of(tokens) > self.policy.blocks:
                self._send_next()
            else:
                self.waiting.append(_Sequence(index, self.inputs[index]))

    def _send_next(self) -> None:
        """The client of a request that ended sends its next one."""
        if self.concurrency is not None and self.unsent < len(self.load):
            self.arrival_s[self.unsent] = self.clock_s
            self.coming.append((self.clock_s + self.policy.request_s, self.unsent))
            self.unsent += 1

    def _schedule(self) -> list[tuple[_Sequence, int]]:
        """The parts of prompts of the next iteration: sequences, and their new tokens."""
        chunked = self.policy.chunked
        splits = chunked and not self.policy.whole
        preempted = self.preempted = self._free_for_decoding()
        tokens = self.policy.batched_tokens - (len(self.decoding) if chunked else 0)
        free = self.free_blocks - (self.decoding.blocks_needed if chunked else 0)
        chunks: list[tuple[_Sequence, int]] = []
        for sequence in self.reading.values():
            room = (sequence.blocks + sequence.shared_blocks + free) * self.policy.block_tokens - sequence.computed
            new = min(tokens, sequence.to_read - sequence.computed, room)
            if new > 0:
                tokens -= new
                free -= self._take(sequence, new)
                chunks.append((sequence, new))
        free -= sum(map(self._unread_blocks, self.reading.values()))
        while self.waiting and not preempted and tokens > 0 and len(self.running) < self.policy.sequences:
            sequence = self.waiting[0]
            # A sequence that was preempted has lost what it brought.
            cached = 0 if self.policy.brought and sequence.written else self.cached[sequence.index]
            shared = 0 if self.policy.brought else cached // self.policy.block_tokens
            sequence.computed, sequence.shared_blocks = cached, shared
            new = sequence.to_read - cached
            if new > tokens and not splits and (chunks or (chunked and self.running)):
                break
            new = min(new, tokens) if splits else new
            whole = self._unread_blocks(sequence)
            if whole > free:
                break
            self.waiting.popleft()
            self.running[sequence.index] = self.reading[sequence.index] = sequence
            tokens -= new
            free -= whole
            self._take(sequence, new)
            chunks.append((sequence, new))
        return chunks

    def _unread_blocks(self, sequence: _Sequence) -> int:
        """Blocks that the rest of what a sequence reads takes."""
        return self.policy.blocks_of(sequence.to_read) - sequence.shared_blocks - sequence.blocks

    def _take(self, sequence: _Sequence, new: int) -> int:
        """Takes the blocks of a sequence's new tokens; their number."""
        blocks = self.policy.blocks_of(sequence.computed + new) - sequence.shared_blocks - sequence.blocks
        sequence.blocks += blocks
        self.free_blocks -= blocks
        return blocks

    def _free_for_decoding(self) -> bool:
        """Preempts sequences, the last first, until a decoding iteration has its blocks; whether any was."""
        preempted = False
        while self.decoding.blocks_needed > self.free_blocks:
            last = next(reversed(self.running.values()))
            written = last.written + self.decoding.written(last.index)
            self._leave(last)
            self.waiting.appendleft(_Sequence(last.index, self.inputs[last.index] + written, written=written))
            self.preemptions += 1
            preempted = True
        return preempted

    def _iterate(self, chunks: list[tuple[_Sequence, int]]) -> None:
        """One iteration with parts of prompts."""
        sequences, past = (len(self.decoding), self.decoding.past_tokens) if self.policy.chunked else (0, 0)
        self._pass(self.iteration_s([(new, sequence.computed) for sequence, new in chunks], sequences, past), iterations=1)
        if sequences:
            self._decode(1)
        for sequence, new in chunks:
            sequence.computed += new
            if sequence.computed == sequence.to_read:
                self._write_first(sequence)

    def _write_first(self, sequence: _Sequence) -> None:
        """The last token that was read makes the next one that is written; from then on the sequence decodes."""
        index = sequence.index
        del self.reading[index]
        if sequence.written == 0:
            self.first_s[index] = self.clock_s
        sequence.written += 1
        left = self.outputs[index] - sequence.written
        if left:
            self.decoding.join(index, tokens=sequence.to_read, left=left)
        else:
            self._leave(sequence)
            self._end(index)

    def _decode_on(self, until_s: float) -> None:
        """Iterations that only decode, until someone leaves or may join, the cache is full, or it is late."""
        batch, may_join = self.decoding, len(self.running) < self.policy.sequences
        most = min(batch.until_leaving, batch.until_full(self.free_blocks))
        if self.preempted and may_join:
            most = 1  # the next iteration may have room for what gave its blocks back
        past = batch.past_tokens
        most = max(1, min(most, int(GROWTH * past / len(batch))))
        first_s = self.iteration_s((), len(batch), past)
        last_s = first_s if most == 1 else self.iteration_s((), len(batch), past + len(batch) * (most - 1))
        growth_s = 0.0 if most == 1 else (last_s - first_s) / (most - 1)
        if self.coming and not self.waiting and may_join:
            until_s = min(until_s, self.coming[0][0])
        most = min(most, iterations_until(until_s - self.clock_s, first_s, growth_s))
        self._pass(most * first_s + growth_s * most * (most - 1) / 2, iterations=most)
        self.last_s = first_s + growth_s * (most - 1)
        self._decode(most)

    def _decode(self, iterations: int) -> None:
        """Decoding iterations that ran: a token each, for every decoding sequence."""
        self.free_blocks -= self.decoding.advance(iterations)
        for index in self.decoding.finished():
            self._leave(self.running[index])
            self._end(index)

    def _leave(self, sequence: _Sequence) -> None:
        """Takes a sequence out of the batch, and its blocks back."""
        del self.running[sequence.index]
        self.reading.pop(sequence.index, None)
        tokens = self.decoding.leave(sequence.index)
        blocks = sequence.blocks if tokens is None else self.policy.blocks_of(tokens) - sequence.shared_blocks
        self.free_blocks += blocks

    def _end(self, index: int) -> None:
        self.end_s[index] = self.clock_s
        if self.stop is not None and self.stop(index, self.first_s[index], self.clock_s):
            self.stopped = True
        self._send_next()

    def _pass(self, seconds: float, *, iterations: int) -> None:
        self.clock_s += seconds
        self.busy_s += seconds
        self.iterations += iterations
        self.last_s = seconds
