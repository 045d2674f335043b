"""Forecast: the time, memory, energy and money of one optimizer step on a device. Every number carries its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from gpuwise.cost.network.provenance import LinkUse
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.printed import Printed
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class Interval:
    """A value with its 90 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Interval:
        return Interval(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes on one device.

    Attributes:
        peak_allocated_bytes: peak as PyTorch's max_memory_allocated shows it.
        peak_reserved_bytes: peak as PyTorch's max_memory_reserved shows it.
        device_bytes: reserved bytes and the device context, as nvidia-smi shows them.
        capacity_bytes: memory of the device; None where unknown (a CPU without a machine).
        by_category: bytes at the allocated peak, by trace.CATEGORIES and "workspace" (cuBLAS). They sum exactly to
            peak_allocated_bytes.
        fits: whether every allocation succeeds; None where the capacity is unknown.
        peak_reserved_expandable_bytes: reserved bytes under PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True;
            None where the allocator was not replayed with it.
        cache_releases: how often cached blocks are returned to the driver to serve a request.
        counted_only: True where live bytes were counted and reserved bytes estimated, without a replay of the allocator.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_bytes: int
    capacity_bytes: int | None
    by_category: dict[str, int]
    fits: bool | None = None
    peak_reserved_expandable_bytes: int | None = None
    cache_releases: int = 0
    counted_only: bool = False


@dataclass(frozen=True)
class WholeRun:
    """A whole run on the device: total samples, optimizer steps, hours, and dollars (None where no price is known)."""

    samples: int
    steps: int
    hours: Interval
    usd: Interval | None


@dataclass(frozen=True, repr=False)
class Forecast(Printed):
    """One optimizer step of all devices together.

    Attributes:
        count: number of devices.
        throughput: units of `throughput_unit` a second, over all devices.
        flops_per_step: model operations of a step, over all devices.
        mfu: model operations a second, divided by the devices' dense peak in the precision used; None where that is unknown.
        bound: share of the step by limit: compute, memory, launch, communication, input. The shares sum to 1.
        energy_j: joules of all devices; None where no TDP is known.
        provenance: the main source of a number. For `step_time_s`: "measured here", "calibrated on this chip", "transferred
            from its architecture" or "datasheet only". For `memory`: "trace", counted in the recorded step.
        usd_per_hour: price of all machines; None without an offer.
        assumption_notes: guesses, each with the flag that changes it.
        warning_notes: warnings.
        top_modules: the ten groups of modules that take most of the device's time, with their shares.
        rests_on: share of the device's time by source, in the words of `provenance`.
        why: a sentence on the largest share of `bound` and what would reduce it.
        measured: date, steps and model_s (the model's own forecast), if `step_time_s` was measured on this machine; else None.
        run: the whole run, if its length is known; else None.
        step_shares: share of the step by what a rank does one after the other: its phases, "communication_AXIS" that nothing
            hides, "offload", "bubble" (waiting for other stages of a pipeline), "input". They sum to 1.
        network: the links that the devices communicate over, with the figures that price each and their sources; none for one
            device. The least sure of them is `provenance["communication"]`.
        fits_with: the smallest change that makes the step fit, if it does not (gpuwise.plan.fit.change.FittingChange.to_dict).
    """

    job: str
    device: str
    count: int
    strategy: Strategy
    step_time_s: Interval
    throughput: float
    throughput_unit: str
    memory: MemoryForecast
    flops_per_step: int
    mfu: float | None
    bound: dict[str, float]
    energy_j: float | None
    provenance: dict[str, str]
    usd_per_hour: float | None = None
    assumption_notes: tuple[Note, ...] = ()
    warning_notes: tuple[Note, ...] = ()
    top_modules: tuple[tuple[str, float], ...] = field(default=())
    rests_on: dict[str, float] = field(default_factory=dict)
    why: str = ""
    measured: Mapping[str, object] | None = None
    run: WholeRun | None = None
    fits_with: Mapping[str, object] | None = None
    step_shares: Mapping[str, float] = field(default_factory=dict)
    network: tuple[LinkUse, ...] = ()

    @property
    def breakdown(self) -> dict[str, float]:
        """The seconds of the step by the names of `step_shares`; they sum to step_time_s.value."""
        return {name: share * self.step_time_s.value for name, share in self.step_shares.items()}

    @property
    def throughput_per_device(self) -> float:
        """Units of `throughput_unit` a second of one device."""
        return self.throughput / self.count

    @property
    def usd_per_million(self) -> float | None:
        """Dollars for a million tokens, images or samples; None without a price."""
        if self.usd_per_hour is None or self.throughput <= 0:
            return None
        return self.usd_per_hour / 3600 / self.throughput * 1e6

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as sentences."""
        return sentences(self.assumption_notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings as sentences."""
        return sentences(self.warning_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise forecast --json`."""
        return {
            "job": self.job,
            "device": self.device,
            "count": self.count,
            "strategy": self.strategy.to_dict(),
            "step_time_s": asdict(self.step_time_s),
            "throughput": {"value": self.throughput, "unit": self.throughput_unit},
            "throughput_per_device": self.throughput_per_device,
            "memory": asdict(self.memory),
            "flops_per_step": self.flops_per_step,
            "mfu": self.mfu,
            "bound": dict(self.bound),
            "breakdown": self.breakdown,
            "why": self.why,
            "energy_j": self.energy_j,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_million": self.usd_per_million,
            "provenance": dict(self.provenance),
            "rests_on": dict(self.rests_on),
            "network": [link.to_dict() for link in self.network],
            "measured": self.measured and dict(self.measured),
            "fits_with": None if self.fits_with is None else dict(self.fits_with),
            "run": None if self.run is None else asdict(self.run),
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
            "warnings": list(self.warnings),
            "warning_notes": to_dicts(self.warning_notes),
            "top_modules": [{"module": name, "share": share} for name, share in self.top_modules],
        }
