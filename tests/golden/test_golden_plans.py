"""Recorded plans: a refactor must give identical ones. Shipped catalog and recordings alone, no machine's own influence.

A change that is meant to move a plan (a price, a chip's figures, the cost model) records them again, and the difference of
plans.json is read before it is committed:

    python tests/golden/test_golden_plans.py
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gpuwise.api.sources import source_of
from gpuwise.hardware import Catalog
from gpuwise.plan.no_plan import NothingInside
from gpuwise.plan.request import Request
from gpuwise.plan.search import plan
from gpuwise.plan.types import Plan

RECORDED = Path(__file__).with_name("plans.json")
DAY_S = 86400.0
TODAY = date(2026, 11, 9)  # ages of prices count from it, or from the catalog's newest price where that is younger

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3-8b, 20B tokens, $20k, 30 days": (
        "llama3-8b",
        {"tokens": 20 * 10**9, "budget_usd": 20_000.0, "deadline_s": 30 * DAY_S},
    ),
    "llama3-8b, 20B tokens, $10": ("llama3-8b", {"tokens": 20 * 10**9, "budget_usd": 10.0}),
    "bert-base, 30M samples, $200, 14 days, two RTX 4090 at hand": (
        "bert-base",
        {"samples": 30 * 10**6, "budget_usd": 200.0, "deadline_s": 14 * DAY_S, "own": (("rtx-4090", 2),)},
    ),
    "resnet50, 90 epochs, no spot": (
        "resnet50",
        {"epochs": 90.0, "samples_per_epoch": 1_281_167, "spot": False, "deadline_s": 7 * DAY_S},
    ),
    "gpt2, 2.5B tokens, spot on two chips, six interruptions a day": (
        "gpt2",
        {"tokens": 2_500_000_000, "spot": True, "on": ("h100-sxm", "a100-80gb-sxm"), "interruptions_per_day": 6.0},
    ),
    "llama3-70b, 1T tokens, $10M, 90 days, 64 machines of 8 H100": (
        "llama3-70b",
        {"tokens": 10**12, "budget_usd": 1e7, "deadline_s": 90 * DAY_S, "spot": False, "on": ("h100-sxm:8x64",)},
    ),
}


def planned(name: str) -> dict[str, Any]:
    """What is compared: the rows of the table, what was rejected, and how much was looked at."""
    job, wanted = REQUESTS[name]
    catalog = Catalog(now=TODAY)
    source = source_of(job)
    source.search_recorded()
    try:
        result = plan(source.traces(), Request(job_argument=job, **wanted), catalog.offers, catalog)
    except NothingInside as nothing:
        rejected = {reason: item.count for reason, item in nothing.rejected.items()}
        return {"cheapest": row(nothing.cheapest), "fastest": row(nothing.fastest), "rejected": rejected}
    return {
        "considered": result.considered,
        "priced": result.priced,
        "plans": [row(each) for each in result.plans],
        "rejected": {reason: item.count for reason, item in result.rejected.items()},
    }


def row(found: Plan) -> list[Any]:
    """One line a plan, so that a difference is read as one: what, where, how, hours, dollars, chance to finish."""
    strategy, offer = found.strategy, found.offer
    mesh = f"{strategy.mesh.dp_replicate}x{strategy.mesh.dp_shard}"
    if found.machines > 1:
        mesh = f"{strategy.mesh} {strategy.parallelism.pipeline_schedule}"
    how = f"{strategy.precision} {strategy.micro_batch}x{strategy.accumulation} {strategy.recompute} {mesh}"
    return [
        f"{found.count:g} {found.device}",
        f"{offer.provider} {offer.instance} {offer.region} {offer.terms}",
        how,
        digits(found.hours),
        digits(found.usd.value),
        digits(found.finish_probability),
    ]


def digits(value: float) -> float:
    return float(f"{value:.3g}")


@pytest.mark.parametrize("name", REQUESTS)
def test_plans_are_as_recorded(name: str):
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert planned(name) == recorded[name]


def test_nothing_else_is_recorded():
    assert set(json.loads(RECORDED.read_text(encoding="utf-8"))) == set(REQUESTS)


def record() -> None:
    """One line a row of a plan."""
    parts = []
    for name in REQUESTS:
        made = planned(name)
        rows = made.pop("plans", [])
        lines = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in made.items()]
        if rows:
            lines.append('    "plans": [\n      ' + ",\n      ".join(json.dumps(each) for each in rows) + "\n    ]")
        parts.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    RECORDED.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
