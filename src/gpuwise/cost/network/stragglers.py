"""Slow machines among many: a synchronous step lasts as long as the slowest of them computes.

MegaScale (Jiang et al., NSDI 2024, on stragglers) found that about 0.5 % of the machines of a cluster of more than 10,000 GPUs
ran the same computation 10 % slower. Published steps on 512 GPUs are forecast no worse than those on 8 and 64
(docs/accuracy-megatron.md): a benchmark's machines are picked. So the value of a forecast is that of equal machines, and its
interval allows for a slow one.
"""

from __future__ import annotations

from math import erf, exp, log, sqrt

from gpuwise.cost.forecast import Interval
from gpuwise.notes import Note
from gpuwise.notes.parallel import slow_machines

SLOW_SHARE = 0.005  # of machines
SLOWER_BY = 0.10  # of their computation
_TAIL = 0.05  # beyond either end of a 90 % interval
_DEVIATIONS = 1.645  # of a normal distribution, to its 95th percentile
_STEPS = 40


def probability(machines: int) -> float:
    """That one of so many machines is slow."""
    return 1 - (1 - SLOW_SHARE) ** machines if machines > 1 else 0.0


def with_slow_machines(step_s: Interval, *, machines: int, computes: float) -> Interval:
    """The interval whose upper end allows for a slow machine.

    The upper end is the 95th percentile of a time that is longer by SLOWER_BY with the probability of a slow machine. Errors
    are normal in logarithms.

    Arguments:
        computes: share of the step that a slow machine makes longer.
    """
    chance, wide = probability(machines), log(step_s.high / step_s.value) if step_s.high > step_s.value else 0.0
    longer = log(1 + SLOWER_BY * computes)
    if chance == 0 or longer == 0:
        return step_s
    if wide == 0:
        return Interval(step_s.value, step_s.low, step_s.value * exp(longer)) if chance > _TAIL else step_s
    deviation, low, high = wide / _DEVIATIONS, wide, wide + longer
    for _ in range(_STEPS):
        middle = (low + high) / 2
        beyond = (1 - chance) * _beyond(middle / deviation) + chance * _beyond((middle - longer) / deviation)
        low, high = (middle, high) if beyond > _TAIL else (low, middle)
    return Interval(step_s.value, step_s.low, step_s.value * exp(high))


def notes(machines: int) -> list[Note]:
    """What the interval allows for, where a slow machine is likelier than what lies beyond the interval."""
    chance = probability(machines)
    return [slow_machines(machines=machines, chance=chance, slower_by=SLOWER_BY)] if chance > _TAIL else []


def _beyond(deviations: float) -> float:
    """Share of a normal distribution above so many deviations."""
    return (1 - erf(deviations / sqrt(2))) / 2
