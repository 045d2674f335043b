"""FitProblem and FittingChange: a job that does not fit a device, and a change that makes it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gpuwise.cost.forecast import Forecast
from gpuwise.hardware.cluster import Cluster
from gpuwise.json_types import JsonObject
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class FitProblem:
    """A job that does not fit a device.

    Attributes:
        pricer: the job's pricer.
        requested: the requested strategy with precision, batch and mesh.
        cluster: the devices.
        host_bytes: memory of the host; None where unknown.
        job: the user's JOB argument; "" for a Job object.
        on: the devices in the form of the command line.
    """

    pricer: StepPricer
    requested: Strategy
    cluster: Cluster
    host_bytes: int | None = None
    job: str = ""
    on: str = ""


@dataclass(frozen=True)
class FittingChange:
    """A strategy that fits.

    Attributes:
        techniques: the changes, in words.
        typed_notes: notes on their effects.
        changes_training: whether the trained parameters or the convergence differ.
        sizes: sizes of the samples, if they had to shrink or the user set them.
        forecast: forecast of the step.
        host_bytes: host memory that offloading needs.
        flags: command-line flags of the techniques and the sizes.
        command: command that shows the forecast.
        run_command: command that runs it on such a device; "" if `gpuwise train` cannot.
    """

    techniques: tuple[str, ...]
    typed_notes: tuple[Note, ...]
    changes_training: bool
    sizes: Mapping[str, int]
    forecast: Forecast
    host_bytes: int
    flags: str
    command: str
    run_command: str

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return sentences(self.typed_notes)

    @property
    def words(self) -> str:
        """'full recompute, QLoRA (changes what is trained)'"""
        change = "changes what is trained" if self.changes_training else "trains the same"
        return f"{', '.join(self.techniques)} ({change})"

    def to_dict(self) -> JsonObject:
        return {
            "techniques": list(self.techniques),
            "notes": list(self.notes),
            "typed_notes": to_dicts(self.typed_notes),
            "changes_training": self.changes_training,
            "sizes": dict(self.sizes),
            "strategy": self.forecast.strategy.to_dict(),
            "step_time_s": asdict(self.forecast.step_time_s),
            "throughput": {"value": self.forecast.throughput, "unit": self.forecast.throughput_unit},
            "device_bytes": self.forecast.memory.device_bytes,
            "host_bytes": self.host_bytes,
            "command": self.command,
            "run_command": self.run_command,
        }


@dataclass(frozen=True)
class NoFittingChange:
    """No change fits.

    Attributes:
        not_tried: names of changes that could not be tried, with the reasons.
        hopeless: whether parameters and optimizer state alone take more than the device has under each that was tried.
    """

    not_tried: tuple[str, ...] = ()
    hopeless: bool = False
