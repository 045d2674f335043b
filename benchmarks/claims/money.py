"""Figures of lists of offers and of plans, by the words that claims.toml has for them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

# Pairs of provider and chip.
_GROUPS: dict[str, Callable[[str, str], bool]] = {
    "all": lambda provider, chip: True,
    "aws": lambda provider, chip: provider == "aws",
    "tpu": lambda provider, chip: chip.startswith("tpu"),
    "gcp_gpu": lambda provider, chip: provider == "gcp" and not chip.startswith("tpu"),
    "nebius": lambda provider, chip: provider == "nebius",
    "others": lambda provider, chip: provider in ("hyperstack", "runpod", "coreweave"),
}
_SUMMARIES: dict[str, Callable[[Iterable[float]], float]] = {
    "least": min,
    "most": max,
    "median": statistics.median,
    "count": lambda values: float(len(list(values))),
    "inside": lambda values: float(sum(0.595 <= saving <= 0.905 for saving in values)),
}


def savings(offers: Any) -> dict[tuple[str, str], float]:
    """Provider and chip -> median saving of spot over on-demand, of a machine in a region; stale prices are left out."""
    by_machine: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for o in offers:
        if not o.stale:
            by_machine[o.provider, o.chip_id, o.instance, o.region][o.terms] = o.usd_per_hour
    by_pair: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (provider, chip, *_), prices in by_machine.items():
        if "spot" in prices and "on-demand" in prices:
            by_pair[provider, chip].append(1 - prices["spot"] / prices["on-demand"])
    return {key: statistics.median(values) for key, values in by_pair.items()}


def _cheapest(offers: Any, terms: str, single: str = "") -> float:
    """Dollars an hour and device of the cheapest offer under these terms."""
    return float(min(o.usd_per_device_hour for o in offers if o.terms == terms and (o.count == 1 or not single)))


def _saving(offers: Any, group: str, summary: str) -> float:
    return _SUMMARIES[summary]([saving for pair, saving in savings(offers).items() if _GROUPS[group](*pair)])


def _plan(result: Any, terms: str, provider: str) -> Any:
    return next(p for p in result.plans if p.offer.terms == terms and p.offer.provider == provider and p.count == 1)


def _cost(result: Any, *terms_and_provider: str) -> float:
    return float(_plan(result, *terms_and_provider).usd.value)


def _hourly(result: Any, *terms_and_provider: str) -> float:
    plan = _plan(result, *terms_and_provider)
    return float(plan.usd.value / plan.hours)


READERS: dict[str, Callable[..., float]] = {"cheapest": _cheapest, "saving": _saving, "cost": _cost, "hourly": _hourly}
