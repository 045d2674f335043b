"""The moments of a step at which a rank may hold most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpuwise.plan.compose.shallow import SECTIONS

_FORWARD, _BACKWARD = 0, 1


class Moment(NamedTuple):
    """A pass of one of a rank's sections.

    Attributes:
        section: of SECTIONS.
        turn: 0 in forward, 1 in backward.
        before, after: how many of each section the rank runs before it in forward, and behind it.
    """

    section: int
    turn: int
    before: np.ndarray
    after: np.ndarray


def moments(weights: np.ndarray) -> Iterator[Moment]:
    """The moments at which a rank with so many of each section may hold most. weights: shape (sections,)."""
    order = [section for section in range(len(SECTIONS)) for _ in range(int(min(weights[section], 3)))]
    chosen = dict.fromkeys((0, 1, 2, len(order) - 3, len(order) - 2, len(order) - 1))
    for number in sorted(index for index in chosen if 0 <= index < len(order)):
        section = order[number]
        before = np.where(np.arange(len(SECTIONS)) < section, weights, 0.0)
        after = np.where(np.arange(len(SECTIONS)) > section, weights, 0.0)
        same = [index for index, other in enumerate(order) if other == section]
        behind = len(same) - 1 - same.index(number)
        before[section] = weights[section] - 1 - behind if number != same[0] else 0.0
        after[section] = weights[section] - 1 - before[section]
        for turn in (_FORWARD, _BACKWARD):
            yield Moment(section, turn, before, after)
