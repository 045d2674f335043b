"""DecodingBatch: sequences that each write one token an iteration, counted without a step for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, isinf, sqrt


@dataclass(frozen=True)
class _Member:
    """A sequence of the batch.

    Attributes:
        number: how many joined before it, which tells it from an earlier stay of the same request.
        start: tokens in the cache when it joined, less the batch's iterations then.
        joined: the batch's iterations when it joined.
    """

    number: int
    start: int
    joined: int


class DecodingBatch:
    """The sequences that decode.

    Each iteration adds a token to each of them, so its tokens are a constant of its own and the number of iterations: sums and
    remainders over the batch follow without a look at its members.

    Arguments:
        block_tokens: tokens of a block of the cache; a sequence takes a new one whenever its blocks are full.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._iterations = 0
        self._members: dict[int, _Member] = {}  # by request
        self._starts = 0  # summed over members
        self._remainders = [0] * block_tokens  # members by the remainder of their start
        self._ends: list[tuple[int, int, int]] = []  # heap: iterations at the end, number, request
        self._joined = 0

    def __len__(self) -> int:
        return len(self._members)

    @property
    def past_tokens(self) -> int:
        """Tokens that the next iteration reads from the cache."""
        return self._starts + len(self._members) * self._iterations

    @property
    def blocks_needed(self) -> int:
        """Blocks that the next iteration takes."""
        return self._remainders[-self._iterations % self._block]

    @property
    def until_leaving(self) -> int:
        """Iterations until the first sequence ends."""
        self._drop_former()
        return self._ends[0][0] - self._iterations

    def join(self, request: int, *, tokens: int, left: int) -> None:
        """A sequence with so many tokens in the cache, and so many left to write."""
        member = _Member(self._joined, tokens - self._iterations, self._iterations)
        self._joined += 1
        self._members[request] = member
        self._starts += member.start
        self._remainders[member.start % self._block] += 1
        heappush(self._ends, (self._iterations + left, member.number, request))

    def leave(self, request: int) -> int | None:
        """Takes a sequence out. Its tokens in the cache; None where it does not decode."""
        member = self._members.pop(request, None)
        if member is None:
            return None
        self._starts -= member.start
        self._remainders[member.start % self._block] -= 1
        return member.start + self._iterations

    def written(self, request: int) -> int:
        """Tokens that a sequence has written here; 0 where it does not decode."""
        member = self._members.get(request)
        return 0 if member is None else self._iterations - member.joined

    def until_full(self, free_blocks: int) -> int:
        """Iterations for which the free blocks suffice, at least 1."""
        rounds, free = divmod(free_blocks, len(self._members))
        for i in range(self._block):
            free -= self._remainders[-(self._iterations + i) % self._block]
            if free < 0:
                return max(1, rounds * self._block + i)
        return (rounds + 1) * self._block

    def advance(self, iterations: int) -> int:
        """Counts iterations that ran; the blocks that they took."""
        rounds, rest = divmod(iterations, self._block)
        blocks = rounds * len(self._members)
        blocks += sum(self._remainders[-(self._iterations + i) % self._block] for i in range(rest))
        self._iterations += iterations
        return blocks

    def finished(self) -> list[int]:
        """Requests whose last token is written; they are to leave."""
        ended = []
        self._drop_former()
        while self._ends and self._ends[0][0] <= self._iterations:
            ended.append(heappop(self._ends)[2])
            self._drop_former()
        return ended

    def _drop_former(self) -> None:
        """Drops ends of sequences that left before."""
        while self._ends:
            _, number, request = self._ends[0]
            member = self._members.get(request)
            if member is not None and member.number == number:
                return
            heappop(self._ends)


def iterations_until(gap_s: float, first_s: float, growth_s: float) -> int:
    """The fewest iterations, at least 1, that take `gap_s`, where each takes `growth_s` longer than the one before."""
    if gap_s <= first_s:
        return 1
    base = first_s - growth_s / 2
    root = base * base + 2 * growth_s * gap_s
    if isinf(gap_s) or root < 0:
        return 1 << 60
    # The stable form of the quadratic's root: growth_s may be 0.
    return max(1, ceil(2 * gap_s / (base + sqrt(root)) - 1e-9))
