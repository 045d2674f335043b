"""What makes a job fit a device that it does not fit: the problem and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from gpuwise.cost.forecast import Forecast
from gpuwise.hardware.cluster import Cluster
from gpuwise.json_types import JsonObject
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class FitProblem:
    """What does not fit.

    Attributes:
        pricer: of the job.
        requested: with its precision, batch and mesh.
        cluster: the devices.
        host_bytes: memory of the host; None where unknown.
        with_seq_len: the job's traces at another length; None where the job has one length.
        job: the user's job argument; "" for a Job object.
        on: the devices as the command line takes them.
    """

    pricer: StepPricer
    requested: Strategy
    cluster: Cluster
    host_bytes: int | None = None
    with_seq_len: Callable[[int], StepTraces] | None = None
    job: str = ""
    on: str = ""


@dataclass(frozen=True)
class FittingChange:
    """A strategy that fits.

    Attributes:
        techniques: what was changed, in words.
        typed_notes: what that does.
        changes_training: what is trained, or how it converges, differs.
        sizes: of the samples, where they had to shrink or the user gave them.
        forecast: of the step.
        host_bytes: memory that offloading takes of the host.
        flags: of the techniques and the sizes.
        command: shows the forecast.
        run_command: runs it on such a device; "" where `gpuwise train` cannot.
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
    """Nothing fits. not_tried: why some changes could not be looked at, by name."""

    not_tried: tuple[str, ...] = ()
