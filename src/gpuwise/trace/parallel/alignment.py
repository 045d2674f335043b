"""Two lists that differ by one period: how a list with more periods follows from them, and the numbers of blocks in paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

_STARRED = re.compile(r"\*(\d+)\+(\d+)")


class NotPeriodicError(Exception):
    """The two recordings do not differ by one period."""


@dataclass(frozen=True)
class Alignment:
    """Two lists that differ by one period: `at` entries, then the period of the longer list, then the others.

    Attributes:
        at: how many entries come before the period that the longer list has more.
        length: entries of the period; 0: the lists have the same entries.
        copies: how often the period is to be there.
    """

    at: int
    length: int
    copies: int

    def choose(self, short: Sequence[Hashable], long: Sequence[Hashable]) -> list[Hashable]:
        """The entries of the result."""
        period = list(long[self.at : self.at + self.length])
        return [*short[: self.at], *period * self.copies, *short[self.at :]]

    def extend(self, short: Sequence[int], long: Sequence[int], allowed: Callable[[np.ndarray], bool]) -> np.ndarray:
        """Numbers of the result's entries, affine in the number of copies. allowed: which slopes are those of a period."""
        a, b = np.array(short, dtype=np.int64), np.array(long, dtype=np.int64)
        at, end, copies = self.at, self.at + self.length, self.copies
        before, after = b[:at] - a[:at], b[end:] - a[at:]
        along, grows = b[at:end] - b[at - self.length : at], before[at - self.length :] if self.length else before[:0]
        if not all(map(allowed, (before, after, along))):
            raise NotPeriodicError
        period = b[at:end] + np.arange(copies)[:, None] * along + (copies - 1) * grows
        return np.concatenate([a[:at] + before * copies, period.ravel(), a[at:] + after * copies])


def aligned(
    short: Sequence[Hashable], long: Sequence[Hashable], loose: tuple[Sequence[Hashable], Sequence[Hashable]], copies: int
) -> Alignment:
    """How two lists differ by one period. loose: the same without the numbers that may grow with the blocks."""
    length = len(long) - len(short)
    if length == 0:
        if list(loose[0]) != list(loose[1]):
            raise NotPeriodicError
        return Alignment(len(short), 0, copies)
    # The period may lie anywhere between the first entry after which both end alike and the last until which both begin alike.
    last = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), min(len(short), len(long)))
    alike_ends = zip(reversed(loose[0]), reversed(loose[1]), strict=False)
    first = len(short) - next((i for i, (a, b) in enumerate(alike_ends) if a != b), min(len(short), len(long)))
    # In the middle; after a long beginning, in the middle of where the period before it is no part of that.
    for earliest in (max(first, length), min(first + length, last)):
        at = (earliest + last) // 2
        if length > 0 and max(first, length) <= at <= last and list(long[at : at + length]) == list(long[at - length : at]):
            return Alignment(at, length, copies)
    raise NotPeriodicError


def runs_over_blocks(paths: list[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    """Lists of paths in each of which the numbers of blocks only grow."""
    runs: list[list[tuple[str, int]]] = [[]]
    last = -1
    for path, number in paths:
        if 0 <= number < last:
            runs.append([])
        last = number if number >= 0 else last
        runs[-1].append((path, number))
    return runs


def without_number(path: str, container: str, period: int) -> tuple[str, int]:
    """A path without the number of its block, and the number of its period; the path and -1 outside the blocks.

    Of blocks that are alike again after four, "layers.7.norm" is "layers.*4+3.norm" and 1.

    Arguments:
        container: path of the module whose children the blocks are.
        period: after how many blocks they are alike again.
    """
    prefix = f"{container}." if container else ""
    number, dot, rest = path.removeprefix(prefix).partition(".")
    if not path.startswith(prefix) or not number.isdigit():
        return path, -1
    return f"{prefix}*{period}+{int(number) % period}{dot}{rest}", int(number) // period


def with_number(path: str, number: int) -> str:
    """The path of a block in the period of this number; the path itself for -1."""
    return path if number < 0 else _STARRED.sub(lambda match: str(number * int(match[1]) + int(match[2])), path, count=1)


def by_one(slopes: np.ndarray) -> bool:
    """Whether numbers of periods go up or down by one, or stay."""
    return bool((np.abs(slopes) <= 1).all())
