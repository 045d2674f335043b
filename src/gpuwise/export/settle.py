"""From the fields that were read to the settings of a forecast: the mesh of a layout, the batch, and keywords."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwise.errors import InputError
from gpuwise.export.cells import Keys
from gpuwise.export.target import ExportTarget
from gpuwise.export.values import AXES, BESIDE, Value, Values, defaults, values_of_strategy
from gpuwise.strategy import Mesh, Strategy

_RENAMED = {"accumulation": "accumulate"}


def mesh_of_layout(values: Values, devices: int) -> dict[str, Value]:
    """The degrees of a mesh, from a layout and the degrees that were read. Raises InputError for degrees that do not fit.

    Arguments:
        values: fields that were read, with `layout`.
        devices: devices of the forecast.
    """
    degrees = {axis: _number(values.get(axis), 1) for axis in AXES}
    others = degrees["tp"] * degrees["pp"] * degrees["cp"]
    word = str(values.get("layout") or "replicas").split(" ")[0]
    if devices % others:
        raise InputError(f"tp, pp and cp take {others} devices, which do not divide the {devices} of --on.", ["other devices"])
    rest = devices // others
    shard = word.rpartition("shards-")[2] if "shards-" in word else None
    replicas = degrees["dp_replicate"] if values.get("dp_replicate") is not None else rest if shard is None else 1
    shards = _number(values.get("dp_shard"), rest // max(1, replicas)) if shard is not None else 1
    if replicas * shards != rest:
        raise InputError(
            f"dp_replicate = {replicas} and dp_shard = {shards} make {replicas * shards * others} devices with the other axes, "
            f"and --on has {devices}.",
            ["--on with as many devices"],
        )
    return {**degrees, "dp_replicate": replicas, "dp_shard": shards, "shard": shard or defaults()["shard"]}


def batch_of(target: ExportTarget, values: Values, keys: Keys) -> dict[str, Value]:
    """The micro-batch and the accumulation, where the samples of a whole step fix them. Raises InputError if they disagree."""
    whole = keys.get(target.global_batch) if target.global_batch else None
    if not isinstance(whole, int) or isinstance(whole, bool) or whole <= 0:
        return {}
    replicas = _number(values.get("dp_replicate"), 1) * _number(values.get("dp_shard"), 1)
    micro, accumulation = values.get("micro_batch"), values.get("accumulation")
    if micro is None:
        micro = whole // (replicas * _number(accumulation, 1))
    micro = max(1, _number(micro, 1))
    if accumulation is None:
        accumulation = whole // (replicas * micro)
    if micro * _number(accumulation, 1) * replicas != whole:
        raise InputError(
            f"{target.global_batch} is {whole}, and micro-batches of {micro} x {accumulation} on {replicas} devices that read "
            f"their own samples make {micro * _number(accumulation, 1) * replicas}.",
            ["--on with the devices of the file", f"another {target.global_batch}"],
        )
    return {"micro_batch": micro, "accumulation": accumulation}


def settings_of_values(values: Values) -> dict[str, object]:
    """Keywords of `forecast` for fields that were read."""
    plain = defaults()
    settings: dict[str, object] = {"mesh": Mesh(**{axis: _number(values.get(axis), 1) for axis in AXES})}
    for name, value in values.items():
        if (
            name in _without_effect(values)
            or name in AXES
            or name in ("layout", "steps", "checkpoint_steps", "mode")
            or value is None
        ):
            continue
        if value != plain.get(name) or name in ("precision", "micro_batch", "accumulation"):
            settings[_RENAMED.get(name, name)] = value
    return {**settings, **_length(values)}


def _without_effect(values: Values) -> set[str]:
    """Fields of axes that have one device."""
    return {name for axis, names in BESIDE.items() if _number(values.get(axis), 1) == 1 for name in names}


def settings_of_strategy(strategy: Strategy) -> dict[str, object]:
    """Keywords of `forecast` for a strategy."""
    return settings_of_values(values_of_strategy(strategy))


def _length(values: Values) -> Mapping[str, object]:
    """The samples of a whole run, where its steps and its batch were read."""
    steps, micro = values.get("steps"), values.get("micro_batch")
    if not isinstance(steps, int) or not isinstance(micro, int) or steps <= 0:
        return {}
    batch = micro * _number(values.get("accumulation"), 1)
    return {"samples": steps * batch * _number(values.get("dp_replicate"), 1) * _number(values.get("dp_shard"), 1)}


def _number(value: Value, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
