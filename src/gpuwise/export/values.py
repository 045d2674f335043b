"""The fields of a plan as one flat table: what every target has to write, and what reading a peer's file gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TypeAlias

from gpuwise.errors import InputError
from gpuwise.plan.types import Plan
from gpuwise.strategy import HostSettings, Mesh, Parallelism, Strategy

Value: TypeAlias = bool | int | float | str | None
Values: TypeAlias = Mapping[str, Value]

AXES = tuple(f.name for f in fields(Mesh))
PARALLEL = tuple(f.name for f in fields(Parallelism))
HOST = tuple(f.name for f in fields(HostSettings))
OF_A_STEP = tuple(f.name for f in fields(Strategy) if f.name not in ("mesh", "parallelism"))
SIZES = ("seq_len", "image_size")
# Of a run: optimizer steps in all, and between two checkpoints.
RUN = ("steps", "checkpoint_steps")
FIELDS = (*OF_A_STEP, *AXES, *PARALLEL, *HOST, *SIZES, *RUN)
# What has an effect only where an axis has several devices, or with another field.
BESIDE = {
    "tp": ("sequence_parallel", "loss_parallel"),
    "cp": ("context",),
    "pp": ("pipeline_schedule", "stages_per_rank"),
    "dp_shard": ("shard",),
}


def layout_of(values: Values) -> str:
    """How the devices that read their own samples share the parameters, in one word.

    one-device | replicas | shards-WHAT | replicas-of-shards-WHAT, where WHAT is of gpuwise.strategy.parallelism.SHARDS.
    """
    replicas, shards = number_of(values, "dp_replicate") > 1, number_of(values, "dp_shard") > 1
    if not shards:
        return "replicas" if replicas else "one-device"
    return f"{'replicas-of-' if replicas else ''}shards-{values['shard']}"


def number_of(values: Values, name: str) -> int:
    """A field that is a whole number."""
    value = values[name]
    assert isinstance(value, int)
    return value


def defaults() -> dict[str, Value]:
    """Every field of FIELDS with its default; None where the plan leaves it open."""
    plain = (Strategy(), Mesh(), Parallelism(), HostSettings())
    values = {f.name: getattr(part, f.name) for part in plain for f in fields(part) if f.name in FIELDS}
    return {**values, **dict.fromkeys((*SIZES, *RUN))}


def values_of_strategy(strategy: Strategy, host: HostSettings | None = None) -> dict[str, Value]:
    """A strategy's fields, without those that have no effect in it."""
    values = defaults()
    for part in (strategy, strategy.mesh, strategy.parallelism, host or HostSettings()):
        values |= {f.name: getattr(part, f.name) for f in fields(part) if f.name in values}
    plain = defaults()
    for axis, names in BESIDE.items():
        if values[axis] == 1:
            values |= {name: plain[name] for name in names}
    if strategy.adapter == "none":
        values["adapter_rank"] = plain["adapter_rank"]
    if strategy.mesh.devices == 1:
        values["compress_gradients"] = False
    return values


def values_of_plan(plan: Plan) -> dict[str, Value]:
    """A plan's fields. checkpoint_steps: its seconds between checkpoints in steps of its forecast.

    Raises InputError for a plan of a part of a device, or whose mesh has not the devices of its machines.
    """
    if plan.count != plan.strategy.mesh.devices:
        raise InputError(
            f"the plan trains on {plan.count:g} devices, and its mesh {plan.strategy.mesh} has {plan.strategy.mesh.devices}.",
            ["plan again with -o"],
        )
    step_s, interval_s = plan.forecast.step_time_s.value, plan.checkpoint_interval_s
    every = None if interval_s is None or step_s <= 0 else max(1, min(round(interval_s / step_s), plan.steps))
    return {
        **values_of_strategy(plan.strategy, plan.host),
        **{name: plan.sizes.get(name) for name in SIZES},
        "steps": plan.steps,
        "checkpoint_steps": every,
    }


def strategy_of_values(values: Values) -> Strategy:
    """The Strategy of these fields. Raises InputError for values out of range."""
    fields_of_step = {name: values[name] for name in OF_A_STEP}
    parts = {"mesh": {name: values[name] for name in AXES}, "parallelism": {name: values[name] for name in PARALLEL}}
    return Strategy.from_dict({**fields_of_step, **parts})


def devices_of(values: Values) -> int:
    """Devices of the mesh."""
    return strategy_of_values({**defaults(), **{name: values[name] for name in AXES}}).mesh.devices
