"""in_turn: instances of a load in bursts. Requests reach them in turn, so each gets a part of every burst."""

from __future__ import annotations

from math import ceil
from typing import Protocol

from gpuwise.serving.instance import LoadShape
from gpuwise.serving.saturation import Limits

_MOST = 4096  # instances that are tried where one alone holds the limits at no rate


class Serves(Protocol):
    """An instance, of which Instance and ForwardInstance are two kinds."""

    def serves(self, loads: LoadShape, limits: Limits, rate_per_s: float) -> bool: ...


def fewest_in_turn(
    instance: Serves, load: LoadShape, limits: Limits, *, rate_per_s: float, saturation: float, share: float
) -> int:
    """The fewest instances that serve a rate together; 0 where no number of them does.

    Arguments:
        rate_per_s: of all of them.
        saturation: of one that gets whole bursts, no more than of any other.
        share: of its own saturation rate that an instance is given at most.
    """

    def serve(count: int) -> bool:
        return instance.serves(load.dealt(count), limits, rate_per_s / count / share)

    low, high = 0, ceil(rate_per_s / (share * saturation)) if saturation else 1
    while not saturation and not serve(high):
        low, high = high, 2 * high
        if high > _MOST:
            return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if serve(middle) else (middle, high)
    return high
