"""A plan as a file of a peer: each field exactly, approximately or in the user's script, or refused by name."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from gpuwise.errors import UnsupportedError
from gpuwise.export.cells import APPROXIMATELY, IN_SCRIPT, Cell, Keys, Refused, Row, same
from gpuwise.export.target import DeviceSet, ExportTarget, Heading
from gpuwise.export.types import Exported, ExportedField
from gpuwise.export.values import FIELDS, Value, Values, defaults, devices_of, strategy_of_values, values_of_plan
from gpuwise.json_types import Json
from gpuwise.plan.types import Plan
from gpuwise.version import __version__


def exported(plan: Plan, target: ExportTarget, *, file: str, plan_sha256: str, on_cpu: bool = False) -> Exported:
    """A plan as a file of a target.

    Arguments:
        file: name of the file, for the command that runs it.
        plan_sha256: of the plan file.
        on_cpu: whether the plan's devices are CPUs.

    Raises UnsupportedError for a field that the target cannot have, and InputError for a plan of a part of a device.
    """
    if target.of_a_keras_model and not plan.job_argument.startswith("keras:"):
        raise UnsupportedError(
            f"{target.title} trains Keras models, and the plan is of {plan.job_argument or plan.job}.",
            ["plan a Keras model: gpuwise plan keras:path/to/file.py:name -o plan.toml"],
        )
    values = values_of_plan(plan)
    world = DeviceSet(devices_of(values), plan.machines, on_cpu)
    keys, lines, nearest = keys_of_plan(target, values, world)
    script = tuple(line.written for line in lines if line.status == IN_SCRIPT)
    command = target.command(world, shlex.quote(file))
    heading = Heading(plan.job, plan_sha256, __version__, target.peer, command, script, world)
    return Exported(
        target.name,
        target.title,
        target.peer,
        plan.job,
        target.write(keys, heading),
        file,
        tuple(lines),
        command,
        strategy_of_values(nearest),
        plan_sha256,
        __version__,
    )


def keys_of_plan(target: ExportTarget, values: Values, world: DeviceSet) -> tuple[Keys, list[ExportedField], Values]:
    """The target's keys for a plan's fields, a line for each field, and the fields as the peer has them.

    Raises UnsupportedError for fields that the target cannot have.
    """
    standard, keys = target.schema.keys, dict(target.fixed)
    lines: list[ExportedField] = []
    refused: list[tuple[Row, Refused]] = []
    nearest = dict(values)
    for row in target.rows:
        cell = row.write(values)
        if isinstance(cell, Refused):
            refused.append((row, cell))
            continue
        changed = _changed(row, values)
        if changed or any(not same(standard.get(name), value) for name, value in cell.keys.items()):
            keys |= cell.keys
        if cell.status == APPROXIMATELY:
            nearest |= {name: value for name, value in cell.as_if.items() if name in FIELDS}
        spoken = {name for line in lines for name in line.field.split(", ")}
        if (changed and not spoken.issuperset(changed)) or cell.script or cell.differs:
            lines.append(_line(row, changed, values, cell))
    if refused:
        _refuse(target, values, refused)
    keys |= target.batch_keys(values)
    keys |= target.world(world)
    return keys, lines, nearest


def _changed(row: Row, values: Values) -> list[str]:
    """The fields of a row that are not their defaults."""
    plain = defaults()
    return [name for name in row.fields if values[name] != plain[name]]


def _line(row: Row, changed: Sequence[str], values: Values, cell: Cell) -> ExportedField:
    names = list(changed) or [row.fields[0]]
    value: Value = values[names[0]] if len(names) == 1 else ", ".join(str(values[name]) for name in names)
    text = "; ".join([*(f"{name} = {_shown(v)}" for name, v in cell.keys.items()), *([cell.script] if cell.script else [])])
    return ExportedField(", ".join(names), value, cell.status, text or "the peer's own way", cell.differs)


def _shown(value: Json) -> str:
    return json.dumps(value)


def _refuse(target: ExportTarget, values: Values, refused: Sequence[tuple[Row, Refused]]) -> None:
    """Raises UnsupportedError, naming the fields that a target cannot have."""
    row, reason = refused[0]
    names = _changed(row, values) or [row.fields[0]]
    shown = ", ".join(f"{name} = {values[name]}" for name in names)
    others = sorted({name for other, _ in refused[1:] for name in _changed(other, values)} - set(names))
    more = f" It cannot have {', '.join(others)} either." if others else ""
    raise UnsupportedError(f"{target.title} has no way to write {shown}: the plan {reason.reason}.{more}", reason.ways_out)
