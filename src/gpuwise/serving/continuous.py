"""Continuous batching: requests join and leave the batch at every iteration, as in vLLM, SGLang and TensorRT-LLM.

The rules are those of vLLM's scheduler (docs.vllm.ai, "Optimization and Tuning": chunked prefill, preemption): sequences that
decode come first, then prompts that have begun, then waiting ones in order of arrival, within the iteration's tokens, the
running sequences and the blocks of the cache. Where the cache is full, the sequence that joined last gives its blocks back and
is computed again later.

Iterations that only decode are taken many at a time. Nothing joins and nobody leaves in between, so the batch is constant
and its cache grows by one token a sequence; the time of an iteration is taken as linear in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, isinf, sqrt
from typing import Protocol

import numpy as np

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


def serve(load: Requests, iteration_s: IterationTime, policy: BatchingPolicy, *, concurrency: int | None = None) -> Served:
    """Serves a load on one instance of the model.

    Arguments:
        concurrency: clients that each send their next request as soon as they have the answer to the last one; the arrivals of
            the load are then not read. None (default) sends every request at its arrival.

    Requests that the cache could not hold even alone are turned away. The time of a call grows with the requests, hardly with
    their tokens.
    """
    engine = _Engine(load, iteration_s, policy, concurrency)
    while engine.advance():
        pass
    return engine.served()


@dataclass
class _Sequence:
    """A request in the engine. Tokens already written are part of what is computed again after a preemption."""

    index: int
    prompt: int  # tokens to compute before the next one is written
    written: int = 0
    computed: int = 0  # of the prompt
    blocks: int = 0
    joined: int = 0  # decoding iterations of the engine when it began to decode
    join: int = 0  # number of this beginning among all of the engine
    decodes: bool = False
    shared_blocks: int = 0  # of the prefix cache, counted there


@dataclass
class _Engine:
    load: Requests
    iteration_s: IterationTime
    policy: BatchingPolicy
    concurrency: int | None
    clock_s: float = 0.0
    busy_s: float = 0.0
    iterations: int = 0
    preemptions: int = 0
    decoded: int = 0  # iterations with decoding sequences so far
    decoding: int = 0  # sequences
    past_base: int = 0  # tokens read from the cache, less decoding * decoded
    free_blocks: int = 0
    coming: deque[tuple[float, int]] = field(default_factory=deque)  # arrivals to come
    waiting: deque[_Sequence] = field(default_factory=deque)
    running: dict[int, _Sequence] = field(default_factory=dict)  # by request, in the order in which they joined
    prompts: dict[int, _Sequence] = field(default_factory=dict)  # of running ones, those still being read
    leaving: list[tuple[int, int, int]] = field(default_factory=list)  # heap: last of `decoded`, `join`, request
    joins: int = 0

    def __post_init__(self) -> None:
        count = len(self.load)
        self.free_blocks = self.policy.blocks
        self.inputs = self.load.input_tokens.tolist()
        self.outputs = self.load.output_tokens.tolist()
        self.cached = self.load.cached_tokens.tolist()
        self.arrival_s = np.zeros(count) if self.concurrency else np.array(self.load.arrival_s)
        self.first_s = np.full(count, np.nan)
        self.end_s = np.full(count, np.nan)
        # Sequences by the remainder of their next token's position: those that need a block at an iteration.
        self.remainders = [0] * self.policy.block_tokens
        sent = count if self.concurrency is None else min(self.concurrency, count)
        self.coming.extend(zip(self.arrival_s[:sent].tolist(), range(sent), strict=True))
        self.unsent = sent

    def served(self) -> Served:
        order = np.argsort(self.arrival_s, kind="stable")
        load = Requests(
            self.arrival_s[order],
            self.load.input_tokens[order],
            self.load.output_tokens[order],
            self.load.cached_tokens[order],
        )
        return Served(load, self.first_s[order], self.end_s[order], self.iterations, self.busy_s, self.preemptions)

    def advance(self) -> bool:
        """One iteration, or many that only decode; False once nothing is left."""
        self._receive()
        if not self.running and not self.waiting:
            if not self.coming:
                return False
            self.clock_s = self.coming[0][0]
            return True
        chunks = self._schedule()
        if chunks:
            self._iterate(chunks, decodes=self.policy.chunked and self.decoding > 0)
        else:
            self._decode_on()
        return True

    def _receive(self) -> None:
        while self.coming and self.coming[0][0] <= self.clock_s:
            _, index = self.coming.popleft()
            tokens = self.inputs[index] + self.outputs[index]
            full = self.policy.queue is not None and len(self.waiting) >= max(self.policy.queue, self._seats())
            if full or self.policy.blocks_of(tokens) > self.policy.blocks:
                self._send_next()
            else:
                self.waiting.append(_Sequence(index, self.inputs[index]))

    def _seats(self) -> int:
        """Sequences that could join at once, if their blocks fit: those in the queue do not wait for them."""
        return self.policy.sequences - len(self.running)

    def _send_next(self) -> None:
        """The client of a request that ended sends its next one."""
        if self.concurrency is not None and self.unsent < len(self.load):
            self.arrival_s[self.unsent] = self.clock_s
            self.coming.append((self.clock_s, self.unsent))
            self.unsent += 1

    def _schedule(self) -> list[tuple[_Sequence, int]]:
        """The parts of prompts of the next iteration: sequences, and their new tokens."""
        chunked = self.policy.chunked
        preempted = self._free_for_decoding()
        tokens = self.policy.batched_tokens - (self.decoding if chunked else 0)
        free = self.free_blocks - (self._blocks_needed() if chunked else 0)
        chunks: list[tuple[_Sequence, int]] = []
        for sequence in self.prompts.values():
            room = (sequence.blocks + sequence.shared_blocks + free) * self.policy.block_tokens - sequence.computed
            new = min(tokens, sequence.prompt - sequence.computed, room)
            if new > 0:
                tokens -= new
                free -= self._take(sequence, new)
                chunks.append((sequence, new))
        while self.waiting and not preempted and tokens > 0 and len(self.running) < self.policy.sequences:
            sequence = self.waiting[0]
            cached = self.cached[sequence.index]
            shared = cached // self.policy.block_tokens
            new = sequence.prompt - cached
            if new > tokens:
                if not chunked and chunks:
                    break
                new = tokens if chunked else new
            if self.policy.blocks_of(cached + new) - shared > free:
                break
            self.waiting.popleft()
            sequence.computed, sequence.shared_blocks = cached, shared
            self.running[sequence.index] = self.prompts[sequence.index] = sequence
            tokens -= new
            free -= self._take(sequence, new)
            chunks.append((sequence, new))
        return chunks

    def _take(self, sequence: _Sequence, new: int) -> int:
        """Takes the blocks of a sequence's new tokens; their number."""
        blocks = self.policy.blocks_of(sequence.computed + new) - sequence.shared_blocks - sequence.blocks
        sequence.blocks += blocks
        self.free_blocks -= blocks
        return blocks

    def _blocks_needed(self) -> int:
        """Blocks that the next decoding iteration takes."""
        return self.remainders[-self.decoded % self.policy.block_tokens] if self.decoding else 0

    def _free_for_decoding(self) -> bool:
        """Preempts sequences, the last first, until a decoding iteration has its blocks; whether any was."""
        preempted = False
        while self._blocks_needed() > self.free_blocks:
            self._preempt(next(reversed(self.running.values())))
            preempted = True
        return preempted

    def _preempt(self, sequence: _Sequence) -> None:
        self.preemptions += 1
        self._leave(sequence)
        self.waiting.appendleft(
            _Sequence(sequence.index, self.inputs[sequence.index] + self._written(sequence), written=self._written(sequence))
        )

    def _written(self, sequence: _Sequence) -> int:
        return sequence.written + (self.decoded - sequence.joined if sequence.decodes else 0)

    def _iterate(self, chunks: list[tuple[_Sequence, int]], *, decodes: bool) -> None:
        """One iteration with parts of prompts."""
        sequences = self.decoding if decodes else 0
        past = self._past() if decodes else 0
        seconds = self.iteration_s([(new, sequence.computed) for sequence, new in chunks], sequences, past)
        self._pass(seconds, iterations=1)
        if decodes:
            self._decode(1)
        for sequence, new in chunks:
            sequence.computed += new
            if sequence.computed == sequence.prompt:
                self._begin_to_decode(sequence)

    def _begin_to_decode(self, sequence: _Sequence) -> None:
        """The last token of the prompt makes the next one that is written."""
        index = sequence.index
        del self.prompts[index]
        if sequence.written == 0:
            self.first_s[index] = self.clock_s
        sequence.written += 1
        left = self.outputs[index] - sequence.written
        if left == 0:
            self._leave(sequence)
            self._end(index)
            return
        sequence.decodes, sequence.joined = True, self.decoded
        self.decoding += 1
        self.past_base += sequence.prompt - self.decoded
        self.remainders[(sequence.prompt - self.decoded) % self.policy.block_tokens] += 1
        self.joins += 1
        sequence.join = self.joins
        heappush(self.leaving, (self.decoded + left, self.joins, index))

    def _past(self) -> int:
        """Tokens that a decoding iteration reads from the cache."""
        return self.past_base + self.decoding * self.decoded

    def _decode_on(self) -> None:
        """Iterations that only decode, until someone leaves or may join, or the cache is full."""
        most = min(self._next_leaving() - self.decoded, self._until_full())
        if self.waiting and len(self.running) < self.policy.sequences:
            most = min(most, 1)  # a sequence was preempted just now, or waits for blocks that the next iteration may free
        past = self._past()
        most = max(1, min(most, int(GROWTH * past / self.decoding)))
        first_s = self.iteration_s((), self.decoding, past)
        last_s = first_s if most == 1 else self.iteration_s((), self.decoding, past + self.decoding * (most - 1))
        growth_s = 0.0 if most == 1 else (last_s - first_s) / (most - 1)
        if self.coming and not self.waiting and len(self.running) < self.policy.sequences:
            most = min(most, _iterations_until(self.coming[0][0] - self.clock_s, first_s, growth_s))
        self._pass(most * first_s + growth_s * most * (most - 1) / 2, iterations=most)
        self._decode(most)

    def _next_leaving(self) -> int:
        while True:
            decoded, join, index = self.leaving[0]
            sequence = self.running.get(index)
            if sequence is not None and sequence.join == join:
                return decoded
            heappop(self.leaving)

    def _until_full(self) -> int:
        """Decoding iterations for which the free blocks suffice, at least 1."""
        block = self.policy.block_tokens
        rounds, free = divmod(self.free_blocks, self.decoding)
        iterations = rounds * block
        for i in range(block):
            free -= self.remainders[-(self.decoded + i) % block]
            if free < 0:
                return max(1, iterations + i)
        return iterations + block

    def _decode(self, iterations: int) -> None:
        """Counts decoding iterations that ran: a token each, for every decoding sequence."""
        rounds, rest = divmod(iterations, self.policy.block_tokens)
        blocks = rounds * self.decoding
        for i in range(rest):
            blocks += self.remainders[-(self.decoded + i) % self.policy.block_tokens]
        self.free_blocks -= blocks
        self.decoded += iterations
        while self.leaving and self.leaving[0][0] <= self.decoded:
            _, join, index = heappop(self.leaving)
            sequence = self.running.get(index)
            if sequence is not None and sequence.join == join:
                self._leave(sequence)
                self._end(index)

    def _leave(self, sequence: _Sequence) -> None:
        """Gives back what a running sequence holds."""
        del self.running[sequence.index]
        self.prompts.pop(sequence.index, None)
        blocks = sequence.blocks
        if sequence.decodes:
            blocks = self.policy.blocks_of(sequence.prompt + self.decoded - sequence.joined) - sequence.shared_blocks
            self.decoding -= 1
            self.past_base -= sequence.prompt - sequence.joined
            self.remainders[(sequence.prompt - sequence.joined) % self.policy.block_tokens] -= 1
        self.free_blocks += blocks

    def _end(self, index: int) -> None:
        self.end_s[index] = self.clock_s
        self._send_next()

    def _pass(self, seconds: float, *, iterations: int) -> None:
        self.clock_s += seconds
        self.busy_s += seconds
        self.iterations += iterations


def _iterations_until(gap_s: float, first_s: float, growth_s: float) -> int:
    """The fewest iterations, at least 1, that take `gap_s`, where each takes `growth_s` longer than the one before."""
    if gap_s <= first_s:
        return 1
    base = first_s - growth_s / 2
    root = base * base + 2 * growth_s * gap_s
    if isinf(gap_s) or root < 0:
        return 1 << 60
    # The stable form of the quadratic's root: growth_s may be 0.
    return max(1, ceil(2 * gap_s / (base + sqrt(root)) - 1e-9))
