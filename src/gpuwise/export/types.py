"""What `export` returns, and what reading a peer's file gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gpuwise.cost.forecast import Forecast
from gpuwise.export.alternatives import Alternative
from gpuwise.export.values import Value
from gpuwise.json_types import Json
from gpuwise.printed import Printed
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class ExportedField:
    """One field of a plan in a peer's words.

    Attributes:
        field: its name; two where they are written together.
        value: its value in the plan.
        status: exactly | approximately | in your script.
        written: the peer's keys with their values, or what the user's script sets.
        differs: how the peer differs; "" where it does not.
    """

    field: str
    value: Value
    status: str
    written: str
    differs: str = ""


@dataclass(frozen=True)
class StepDifference:
    """The forecast of a peer's nearest strategy beside that of the plan's, on the same devices.

    Attributes:
        fields: the fields that the peer changes.
        step_time_s: of the plan's strategy, then of the peer's.
        device_bytes: memory of one device, of the plan's strategy, then of the peer's.
        fits: whether the peer's step fits; None where the memory of the device is unknown.
    """

    fields: tuple[str, ...]
    step_time_s: tuple[float, float]
    device_bytes: tuple[int, int]
    fits: bool | None


@dataclass(frozen=True, repr=False)
class Exported(Printed):
    """A plan as a file of a peer.

    Attributes:
        target: name of the target.
        title: the peer's form of file, in words.
        peer: the peer with the version that the table was written for.
        job: name of the job.
        text: the file.
        file: its name, as `command` has it.
        fields: each field of the plan that is not its default.
        command: what runs the file.
        strategy: the nearest strategy that the peer trains; the plan's own where every field is exact.
        plan_sha256: of the plan file.
        gpuwise_version: that wrote the file.
        difference: what the forecast of `strategy` differs by; None where it is the plan's, or where the job was not named.
    """

    target: str
    title: str
    peer: str
    job: str
    text: str
    file: str
    fields: tuple[ExportedField, ...]
    command: str
    strategy: Strategy
    plan_sha256: str
    gpuwise_version: str
    difference: StepDifference | None = None

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise export --json`."""
        return {
            "target": self.target,
            "peer": self.peer,
            "job": self.job,
            "file": self.file,
            "text": self.text,
            "command": self.command,
            "fields": [asdict(line) for line in self.fields],
            "strategy": self.strategy.to_dict(),
            "difference": None if self.difference is None else asdict(self.difference),
            "plan_sha256": self.plan_sha256,
            "gpuwise_version": self.gpuwise_version,
        }


@dataclass(frozen=True)
class ConfigRead:
    """A training as a peer's file describes it.

    Attributes:
        file: name of the file.
        target: name of its target.
        settings: keywords of `forecast`.
        read: the keys behind them, with their values; those that are absent have the peer's own.
        differs: how the peer differs from what is forecast, by the keys that change it.
        ignored: keys that move no forecast.
        of_the_model: keys that describe the model, which the job has.
        open: settings that the file leaves to the user's script.
    """

    file: str
    target: str
    settings: Mapping[str, object]
    read: Mapping[str, Json]
    differs: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    of_the_model: tuple[str, ...] = ()
    open: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """A part of the JSON contract of `gpuwise forecast --config --json`."""
        return {
            "file": self.file,
            "kind": self.target,
            "settings": {name: str(v) if not isinstance(v, int | float | str) else v for name, v in self.settings.items()},
            "read": dict(self.read),
            "differs": [{"keys": keys, "text": text} for keys, text in self.differs],
            "ignored": list(self.ignored),
            "of_the_model": list(self.of_the_model),
            "open": list(self.open),
        }


@dataclass(frozen=True, repr=False)
class ConfigForecast(Printed):
    """The forecast of a file of another trainer.

    Attributes:
        forecast: as `forecast` gives it; its assumptions name the file.
        config: what was read from the file.
        cheaper: what would take less time and money on the same devices, best first.
    """

    forecast: Forecast
    config: ConfigRead
    cheaper: tuple[Alternative, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise forecast --config --json`: that of `forecast`, and two entries more."""
        more = {"config": self.config.to_dict(), "cheaper": [one.to_dict() for one in self.cheaper]}
        return {**self.forecast.to_dict(), **more}
