"""Whether the parts of a plan agree: one that was edited by hand promises the time and money of another training."""

from __future__ import annotations

from dataclasses import fields

from gpuwise.errors import FileFormatError
from gpuwise.plan.types import Plan
from gpuwise.step_settings import job_word


def check_agrees(plan: Plan) -> None:
    """Raises FileFormatError naming the first part that differs from the one that the forecast and the money are for."""
    for what, present, priced in _pairs(plan):
        if present != priced:
            raise FileFormatError(
                f"the plan was edited by hand: {what} is {present}, and its time, memory and money are for {priced}.",
                [f"plan again: gpuwise plan {job_word(plan.job_argument)} -o plan.toml, with flags for what is to differ"],
            )


def _pairs(plan: Plan) -> list[tuple[str, object, object]]:
    """Names, values, and what the values must be."""
    strategy, forecast = plan.strategy, plan.forecast
    pairs: list[tuple[str, object, object]] = [
        (f.name, getattr(strategy, f.name), getattr(forecast.strategy, f.name)) for f in fields(strategy)
    ]
    pairs += [("device", plan.device, forecast.device), ("the offer's chip", plan.offer.chip_id, plan.device)]
    if plan.count >= 1:  # a part of a device is forecast as a device of its own
        pairs += [("count", plan.count, forecast.count), ("the mesh's number of devices", strategy.mesh.devices, plan.count)]
        pairs.append(("the rest of devices over machines", plan.count % plan.machines, 0))
    batch = strategy.global_batch
    pairs.append(("the number of steps", plan.steps, -(-plan.samples // batch)))
    return pairs
