"""forecast_config: a file of another trainer, forecast as it stands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack, cast

from gpuwise.api.devices import device_of
from gpuwise.api.fitting import recordable_of
from gpuwise.api.forecasting import Priced, forecast_with_trace
from gpuwise.cost import Forecast
from gpuwise.errors import FileFormatError, UnsupportedError
from gpuwise.export.alternatives import alternatives
from gpuwise.export.cells import IN_SCRIPT
from gpuwise.export.reading import MOST_BYTES, read_config
from gpuwise.export.target import DeviceSet
from gpuwise.export.targets import target_of
from gpuwise.export.types import ConfigForecast, ConfigRead
from gpuwise.export.values import values_of_strategy
from gpuwise.export.writing import keys_of_plan
from gpuwise.hardware import load_catalog
from gpuwise.notes import Note
from gpuwise.notes.config import keys_ignored, keys_of_the_model, left_to_the_script, read_from_file, trainer_differs
from gpuwise.plain_files import read_regular, reason_of
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.step_settings import ForecastSettings, flag_of, named_settings
from gpuwise.strategy import Strategy, check_techniques

if TYPE_CHECKING:
    from gpuwise.job import Job


def forecast_config(
    job: str | Job,
    *,
    on: str,
    config: str | os.PathLike[str],
    kind: str | None = None,
    **settings: Unpack[ForecastSettings],
) -> ConfigForecast:
    """Forecasts a job as a file of another trainer would train it: does it fit, how long, how much, what would be cheaper.

    Arguments:
        job, on, settings: as for `forecast`. Settings that are named take the place of the file's.
        config: an accelerate YAML, a DeepSpeed JSON, TrainingArguments in JSON, a Python file with a call of Lightning's or
            torchtitan's Trainer, or Megatron's command. Its text is parsed; nothing of it is executed.
        kind: whose file it is, one of gpuwise.export.TARGETS. None recognises it by its keys.

    Raises FileFormatError for a file that is none of these, InputError for unknown keys and senseless values,
    UnsupportedError for keys that cannot be forecast, and the errors of `forecast`.
    """
    requested = named_settings(settings, ForecastSettings)
    read = config_read(config, on=on, kind=kind, named=requested)
    merged = cast(ForecastSettings, {**with_length(read, requested), **requested})
    forecast, priced = forecast_with_trace(job, on, merged, named=requested)
    forecast = replace(forecast, assumption_notes=(*notes_of(read), *forecast.assumption_notes))
    return ConfigForecast(forecast, read, alternatives(forecast, priced.device.chip, _pricer(priced), _sayer(read, priced)))


def config_read(
    config: str | os.PathLike[str], *, on: str, kind: str | None = None, named: ForecastSettings | None = None
) -> ConfigRead:
    """A training on these devices as a file of another trainer describes it. Arguments and errors as for forecast_config."""
    path = os.fspath(config)
    try:
        text = read_regular(path, limit_bytes=MOST_BYTES).decode()
    except FileNotFoundError:
        raise FileFormatError(f"there is no file {path}.", ["check the path of --config"]) from None
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {path}: {reason_of(error)}.", ["check the path of --config"]) from None
    device = device_of(on, load_catalog(), mesh=None, network=(named or {}).get("network"))
    world = DeviceSet(device.devices, device.machines, device.target == "cpu")
    return read_config(text, file=os.path.basename(path), world=world, kind=kind, named=named)


def with_length(read: ConfigRead, requested: ForecastSettings) -> dict[str, object]:
    """The settings of a file; without its length where the user names another."""
    named = any(requested.get(name) is not None for name in ("samples", "epochs", "tokens"))
    return {name: value for name, value in read.settings.items() if name != "samples" or not named}


def notes_of(read: ConfigRead) -> list[Note]:
    """What stands beside the forecast of a file."""
    settings = ", ".join(f"{name} = {value}" for name, value in read.read.items())
    notes = [read_from_file(file=read.file, kind=read.target, settings=settings)]
    notes += [trainer_differs(file=read.file, keys=keys, difference=text) for keys, text in read.differs]
    if read.open:
        notes.append(left_to_the_script(file=read.file, settings=", ".join(map(flag_of, read.open))))
    if read.of_the_model:
        notes.append(keys_of_the_model(file=read.file, keys=", ".join(read.of_the_model)))
    if read.ignored:
        notes.append(keys_ignored(file=read.file, keys=", ".join(read.ignored)))
    return notes


def _pricer(priced: Priced) -> Callable[[Strategy], Forecast]:
    """Prices other strategies of the job on the same devices; those that would have to be traced at length raise."""
    device, source = priced.device, priced.source
    traces = source.traces(device.target)
    requested = priced.forecast.strategy.variant
    recordable = recordable_of(source, traces)
    if recordable is not None:
        limited = recordable
        traces = traces.only(lambda variant: variant == requested or limited(variant, requested))
    pricer = StepPricer(traces)

    def price(strategy: Strategy) -> Forecast:
        check_techniques(strategy, source.step_facts(device.target))
        return pricer.forecast(strategy, device.cluster, usd_per_hour=device.usd_per_hour)

    return price


def _sayer(read: ConfigRead, priced: Priced) -> Callable[[Strategy], str]:
    """What another strategy changes in the file, and in the user's script; "" where the file's trainer cannot have it."""
    target, device = target_of(read.target), priced.device
    world = DeviceSet(device.devices, device.machines, device.target == "cpu")
    standard = target.schema.keys

    def said_of(strategy: Strategy) -> dict[str, str]:
        keys, lines, _ = keys_of_plan(target, values_of_strategy(strategy), world)
        script = {f"in your script: {line.written}": "" for line in lines if line.status == IN_SCRIPT}
        return {**{name: f" = {json.dumps(value)}" for name, value in keys.items()}, **script}

    def keys_of(strategy: Strategy) -> str:
        try:
            before, after = said_of(priced.forecast.strategy), said_of(strategy)
        except UnsupportedError:
            return ""
        absent = {name: f" = {json.dumps(standard.get(name))}" for name in before if name not in after and name in standard}
        return ", ".join(name + value for name, value in {**after, **absent}.items() if before.get(name) != value)

    return keys_of
