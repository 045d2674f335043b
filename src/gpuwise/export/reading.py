"""A peer's file as settings of a forecast: every key is read, ignored by name or refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from gpuwise.errors import FileFormatError, InputError, UnsupportedError, nearest
from gpuwise.export.cells import Keys, Reading, same
from gpuwise.export.formats import NOT_LITERAL, flat
from gpuwise.export.settle import batch_of, mesh_of_layout, settings_of_values
from gpuwise.export.target import DeviceSet, ExportTarget
from gpuwise.export.targets import all_targets, target_of
from gpuwise.export.types import ConfigRead
from gpuwise.export.values import HOST, Value, defaults
from gpuwise.json_types import Json
from gpuwise.step_settings import flag_of

MOST_BYTES = 1 << 20  # a peer's file has a few kB
_UNSET: tuple[Json, ...] = (None, False, "none", "no", "", 0)  # of keys that switch something on
_FIELD_FLAGS = {"accumulation": "accumulate", "layout": "mesh", "dp_replicate": "mesh", "dp_shard": "mesh"}


def read_config(
    text: str, *, file: str, world: DeviceSet, kind: str | None = None, named: Mapping[str, object] | None = None
) -> ConfigRead:
    """The settings of a forecast of a peer's file.

    Arguments:
        text: the file.
        file: its name.
        world: the devices of the forecast.
        kind: the target whose file it is. None recognises it by its keys.
        named: settings that the user names beside the file. They take the place of the file's.

    Raises FileFormatError for a file that is no such file, InputError for a key that the peer does not have or a value that it
    cannot have, UnsupportedError for a key that cannot be forecast, and UnknownNameError for an unknown kind.
    """
    named = named or {}
    target, written = _recognised(text, file, kind)
    keys = target.complete(written)
    unknown = [key for key in keys if not target.schema.names(key) and key != target.comment]
    _check_known(target, keys, unknown, file)
    keys = _without_auto(target, keys, named, file)
    values, readings = _values(target, keys, file)
    ignored, of_the_model = _leftovers(target, keys, {name for reading in readings for name in reading.keys}, file)
    try:
        values |= mesh_of_layout(values, world.devices)
        values |= batch_of(target, values, keys)
    except InputError as error:
        raise InputError(f"{file}: {error.what}", error.ways_out) from None
    settled = target.settle({**defaults(), **values})
    if settled is not None:
        values |= settled.values
        readings.append(settled)
    _check_world(target, keys, world, file)
    settings = settings_of_values(values)
    settings = {name: value for name, value in settings.items() if name not in named}
    read = {name: keys.get(name, target.schema.keys.get(name)) for name in _keys_read(target, keys, readings)}
    open_fields = [name for name in ("micro_batch", "precision") if name not in settings and name not in named]
    return ConfigRead(
        file,
        target.name,
        settings,
        read,
        tuple((", ".join(reading.keys), reading.differs) for reading in readings if reading.differs),
        tuple(ignored),
        tuple(of_the_model),
        tuple(open_fields),
    )


def _recognised(text: str, file: str, kind: str | None) -> tuple[ExportTarget, dict[str, Json]]:
    """The target of a text, and its keys. Raises FileFormatError."""
    reasons = {}
    for target in [target_of(kind)] if kind is not None else all_targets():
        try:
            tree = target.parse(text)
            if kind is not None or target.recognises(tree):
                return target, flat(tree)
        except (ValueError, RecursionError, MemoryError) as error:
            reasons[target.name] = str(error)[:200] or type(error).__name__
    if kind is not None:
        raise FileFormatError(f"{file} is not {target_of(kind).title}: {reasons[kind]}.", ["name its kind: --config-kind"])
    titles = "; ".join(target.title for target in all_targets())
    why = next((f": {reasons[name]}" for name in _by_suffix(file) if name in reasons), "")
    raise FileFormatError(f"{file} is no file that gpuwise reads{why}.", ["name its kind: --config-kind", f"read are {titles}"])


def _by_suffix(file: str) -> Sequence[str]:
    """The targets whose files have this suffix, for the reason of an error."""
    suffixes = {
        ".json": ("deepspeed",),
        ".py": ("lightning", "torchtitan"),
        ".yaml": ("accelerate",),
        ".yml": ("accelerate",),
        ".sh": ("megatron",),
    }
    return next((names for suffix, names in suffixes.items() if file.endswith(suffix)), ())


def _check_known(target: ExportTarget, keys: Keys, unknown: Sequence[str], file: str) -> None:
    for key in unknown:
        name = key.removeprefix(NOT_LITERAL)
        if key.startswith(NOT_LITERAL) and _matches(name, [*target.ignored, *target.of_the_model]):
            continue
        if key.startswith(NOT_LITERAL):
            raise InputError(
                f"{file}: {name} is no literal, and nothing of the file is executed.", [f"write the value of {name}"]
            )
        near = nearest(key, list(target.schema.keys))
        ways = [f"nearest: {', '.join(near)}"] if near else []
        lacks = "has no key" if target.schema.whole else "has, as far as gpuwise knows, no key"
        raise InputError(f"{file}: {target.peer} {lacks} {key!r}.", [*ways, "leave it out"])


def _without_auto(target: ExportTarget, keys: Keys, named: Mapping[str, object], file: str) -> dict[str, Json]:
    """The keys without those whose value the peer fills in itself. Raises InputError for one that a forecast needs."""
    if target.auto is None:
        return dict(keys)
    for key in [key for key, value in keys.items() if value == target.auto and key != target.global_batch]:
        row = next((row for row in target.rows if key in row.own_keys()), None)
        settings = [] if row is None else [_FIELD_FLAGS.get(name, name) for name in row.fields if name not in HOST]
        if settings and not any(name in named for name in settings):
            flag = flag_of(settings[0])
            raise InputError(
                f"{file}: {key} is {target.auto!r}, which is filled in only when the training starts.",
                [f"name it: {flag}", "write its value in the file"],
            )
    return {key: value for key, value in keys.items() if value != target.auto}


def _values(target: ExportTarget, keys: Keys, file: str) -> tuple[dict[str, Value], list[Reading]]:
    """The fields that a target's rows read."""
    values: dict[str, Value] = {}
    readings = []
    for row in target.rows:
        try:
            reading = row.read(keys, target.schema.keys)
        except InputError as error:
            raise InputError(f"{file}: {error.what}", error.ways_out) from None
        if reading is not None:
            values |= {name: value for name, value in reading.values.items() if name not in HOST}
            readings.append(reading)
    return values, readings


def _leftovers(target: ExportTarget, keys: Keys, read: set[str], file: str) -> tuple[list[str], list[str]]:
    """Keys that no row has read: those that move no forecast, and those of the model. Raises UnsupportedError for others."""
    ignored, of_the_model = [], []
    world = set(target.world(DeviceSet(1))) | {target.global_batch}
    for key, value in keys.items():
        name = key.removeprefix(NOT_LITERAL)
        reason = next((text for pattern, text in target.refused.items() if fnmatchcase(name, pattern)), None)
        unset = value in _UNSET or same(value, target.schema.keys.get(key))
        if key in read or key in world:
            continue
        if _matches(name, target.of_the_model):
            of_the_model.append(name)
        elif reason is not None and not unset:
            raise UnsupportedError(f"{file}: {name} = {value!r} cannot be forecast: {reason}.", [f"leave out {name}"])
        elif name == target.comment or _matches(name, target.ignored) or unset:
            ignored.append(name)
        else:
            raise UnsupportedError(
                f"{file}: {name} = {value!r} cannot be forecast: gpuwise does not know what it does to a step.",
                [f"leave out {name}"],
            )
    return [name for name in ignored if name != target.comment], of_the_model


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) or pattern == f"{name}.*" for pattern in patterns)


def _keys_read(target: ExportTarget, keys: Keys, readings: Sequence[Reading]) -> list[str]:
    """The keys that shape the step, in the order of the file, then the peer's own values that do."""
    present = {name for reading in readings for name in reading.keys} | {target.global_batch}
    return [name for name in keys if name in present]


def _check_world(target: ExportTarget, keys: Keys, world: DeviceSet, file: str) -> None:
    """Raises InputError where a file is for other devices than the forecast."""
    of_rows = {name for row in target.rows for name in row.own_keys()}
    for name, value in target.world(world).items():
        if name in keys and name not in of_rows and not same(keys[name], value):
            raise InputError(
                f"{file}: {name} is {keys[name]!r}, and the devices of --on make it {value!r}.",
                [f"--on with the devices of the file, or another {name}"],
            )
