"""The result of `fit`: a row for each technique, the peak, and changes that make a job fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpuwise.cost.forecast import Forecast, MemoryForecast
from gpuwise.cost.memory.peak import MemoryPeak
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.plan.fit.change import FittingChange, NoFittingChange
from gpuwise.printed import Printed
from gpuwise.strategy import Strategy

# A technique that frees a smaller share of the peak counts as freeing nothing; a smaller slowdown counts as none.
LEAST_FREED, LEAST_TIME = 0.005, 0.005


@dataclass(frozen=True)
class FitRow:
    """One memory technique on the device.

    Attributes:
        technique: the technique in words.
        devices: number of devices it needs.
        strategy: the strategy at the common batch of all rows.
        largest_micro_batch: None if not even one sample fits. Exact in the first row, approximate in others.
        memory: memory at the common batch: a replay of the allocator in the first row, counted in others
            (memory.counted_only).
        freed_bytes: bytes freed on each device against the first row, of tensors and memory outside the allocator; exact.
        step_time_ratio: time per sample and device, relative to the first row; above 1 is slower.
        note: its effect, or why it frees nothing.
        unavailable: why there are no figures; None if there are.
        kind: kind of the technique, see gpuwise.plan.fit.techniques.
        changes_training: whether the trained parameters or the convergence differ.
    """

    technique: str
    devices: int
    strategy: Strategy
    largest_micro_batch: int | None = None
    memory: MemoryForecast | None = None
    freed_bytes: int | None = None
    step_time_ratio: float | None = None
    note: str = ""
    unavailable: str | None = None
    kind: str = "asked"
    changes_training: bool = False

    @property
    def frees(self) -> bool:
        """Whether it frees a relevant share of the peak."""
        if self.memory is None or not self.freed_bytes:
            return False
        return self.freed_bytes >= LEAST_FREED * (self.memory.peak_allocated_bytes + self.freed_bytes)

    @property
    def trade(self) -> tuple[int, float]:
        """Sorts rows, best first: what frees memory for no time by how much it frees, then by bytes freed for the time
        lost; the same for what changes the training, and for more devices; then what frees nothing or has no numbers."""
        if self.unavailable is not None or self.freed_bytes is None or self.step_time_ratio is None:
            return 7, 0.0
        if not self.frees:
            return 6, -self.freed_bytes
        after = 4 if self.kind == "sharding" else 2 if self.changes_training else 0
        lost = self.step_time_ratio - 1
        return (after, -self.freed_bytes) if lost <= LEAST_TIME else (after + 1, -self.freed_bytes / lost)

    def to_dict(self) -> dict[str, object]:
        return {
            "technique": self.technique,
            "kind": self.kind,
            "changes_training": self.changes_training,
            "devices": self.devices,
            "strategy": self.strategy.to_dict(),
            "largest_micro_batch": self.largest_micro_batch,
            "memory": None if self.memory is None else asdict(self.memory),
            "freed_bytes": self.freed_bytes,
            "step_time_ratio": self.step_time_ratio,
            "note": self.note,
            "unavailable": self.unavailable,
        }


@dataclass(frozen=True)
class Combination:
    """The names of techniques that together make one sample fit the device, and the strategy that uses them."""

    techniques: tuple[str, ...]
    strategy: Strategy
    changes_training: bool

    @property
    def words(self) -> str:
        return ", ".join(self.techniques) + (" (changes what is trained)" if self.changes_training else "")

    def to_dict(self) -> dict[str, object]:
        return {
            "techniques": list(self.techniques),
            "strategy": self.strategy.to_dict(),
            "changes_training": self.changes_training,
        }


@dataclass(frozen=True, repr=False)
class FitResult(Printed):
    """The largest micro-batch on a device, and the effect of each technique.

    Attributes:
        job: name of the job.
        device: name of the device.
        count: number of devices.
        capacity_bytes: memory of one device; None where unknown.
        micro_batch: micro-batch at which all rows are compared.
        rows: the requested strategy first, then the techniques, best trade first.
        forecast: forecast at the largest micro-batch; None if not even one sample fits.
        peak: memory peak of the requested strategy at `micro_batch`.
        largest_tried: the largest micro-batch that the search tries.
        nearest_chips: if the job does not fit, the smallest chips on which it does.
        nearest_techniques: techniques that make it fit on their own.
        nearest_combination: a combination of techniques that makes it fit; None without one.
        nearest_devices: the smallest number of devices on which it fits sharded; None without one.
        answer: the smallest change that fits.
        assumption_notes: guesses, with the flags that change them.
    """

    job: str
    device: str
    count: int
    capacity_bytes: int | None
    micro_batch: int
    rows: tuple[FitRow, ...]
    forecast: Forecast | None
    peak: MemoryPeak
    largest_tried: int
    nearest_chips: tuple[str, ...] = ()
    nearest_techniques: tuple[str, ...] = ()
    nearest_combination: Combination | None = None
    nearest_devices: int | None = None
    answer: FittingChange | NoFittingChange | None = None
    assumption_notes: tuple[Note, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as sentences."""
        return sentences(self.assumption_notes)

    @property
    def fits(self) -> bool:
        return self.rows[0].largest_micro_batch is not None

    @property
    def largest_micro_batch(self) -> int | None:
        return self.rows[0].largest_micro_batch

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise fit --json`."""
        combination = self.nearest_combination
        return {
            "job": self.job,
            "device": self.device,
            "count": self.count,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "largest_micro_batch": self.largest_micro_batch,
            "micro_batch": self.micro_batch,
            "peak": self.peak.to_dict(),
            "techniques": [row.to_dict() for row in self.rows],
            "forecast": None if self.forecast is None else self.forecast.to_dict(),
            "nearest_chips": list(self.nearest_chips),
            "nearest_techniques": list(self.nearest_techniques),
            "nearest_combination": None if combination is None else combination.to_dict(),
            "nearest_devices": self.nearest_devices,
            "answer": self.answer.to_dict() if isinstance(self.answer, FittingChange) else None,
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
        }
