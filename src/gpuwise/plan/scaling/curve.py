"""ScalingCurve: forecasts of one job on one device, two, four and so on, and where more of them stop paying."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuwise.cost.forecast import Forecast
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.notes.scaling import scaling_fits_nowhere, scaling_pays, scaling_single_point, scaling_stops
from gpuwise.printed import Printed

# Twice the devices cost twice as much an hour: if they add less than half to the throughput, a sample costs a third more.
LEAST_GAIN = 0.5


@dataclass(frozen=True)
class ScalingPoint:
    """The forecast on one number of devices.

    Attributes:
        machines: how many machines they are in.
        forecast: the forecast of the step. Its memory is counted, without a replay of the allocator.
        fits: whether the step fits each device; None where its memory is unknown.
        efficiency: throughput of a device over that at the smallest number of devices that fits; None where this one does not.
    """

    machines: int
    forecast: Forecast
    fits: bool | None
    efficiency: float | None

    @property
    def devices(self) -> int:
        return self.forecast.count

    @property
    def communication(self) -> float:
        """Share of the step that waits for communication."""
        return self.forecast.bound.get("communication", 0.0)

    @property
    def bubble(self) -> float:
        """Share of the step in which the ranks of a pipeline idle."""
        return self.forecast.bound.get("pipeline", 0.0)

    def to_dict(self) -> dict[str, object]:
        forecast, strategy = self.forecast, self.forecast.strategy
        time = forecast.step_time_s
        return {
            "devices": self.devices,
            "machines": self.machines,
            "mesh": str(strategy.mesh),
            "micro_batch": strategy.micro_batch,
            "accumulation": strategy.accumulation,
            "global_batch": strategy.global_batch,
            "step_time_s": {"value": time.value, "low": time.low, "high": time.high},
            "throughput": {"value": forecast.throughput, "unit": forecast.throughput_unit},
            "throughput_per_device": forecast.throughput_per_device,
            "efficiency": self.efficiency,
            "communication": self.communication,
            "bubble": self.bubble,
            "mfu": forecast.mfu,
            "fits": self.fits,
            "device_bytes": forecast.memory.device_bytes,
            "counted_only": forecast.memory.counted_only,
            "usd_per_hour": forecast.usd_per_hour,
            "usd_per_million": forecast.usd_per_million,
        }


@dataclass(frozen=True, repr=False)
class ScalingCurve(Printed):
    """Points by ascending number of devices.

    Attributes:
        device: the chip.
        global_batch: samples of each step, the same at every point (strong scaling); None where each device has as many at
            every point (weak scaling).
        stops_paying_at: devices whose doubling adds less than LEAST_GAIN to the throughput, and beyond which a sample never
            costs as little again; None where there are no such.
        conclusion_note: that, as a sentence.
        assumption_notes, warning_notes: those of the point with most devices, and of the curve.
    """

    job: str
    device: str
    global_batch: int | None
    points: tuple[ScalingPoint, ...]
    stops_paying_at: int | None
    conclusion_note: Note
    assumption_notes: tuple[Note, ...] = ()
    warning_notes: tuple[Note, ...] = ()

    @property
    def conclusion(self) -> str:
        return self.conclusion_note.text

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as sentences."""
        return sentences(self.assumption_notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings as sentences."""
        return sentences(self.warning_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise scale --json`."""
        return {
            "job": self.job,
            "device": self.device,
            "scaling": "weak" if self.global_batch is None else "strong",
            "global_batch": self.global_batch,
            "points": [point.to_dict() for point in self.points],
            "stops_paying_at": self.stops_paying_at,
            "conclusion": self.conclusion,
            "conclusion_note": self.conclusion_note.to_dict(),
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
            "warnings": list(self.warnings),
            "warning_notes": to_dicts(self.warning_notes),
        }


def with_efficiency(priced: Sequence[tuple[int, Forecast, bool | None]]) -> tuple[ScalingPoint, ...]:
    """The points of machines, forecasts and whether each fits."""
    base = next((forecast.throughput_per_device for _, forecast, fits in priced if fits is not False), None)
    return tuple(
        ScalingPoint(machines, forecast, fits, forecast.throughput_per_device / base if base and fits is not False else None)
        for machines, forecast, fits in priced
    )


def gains(points: Sequence[ScalingPoint]) -> list[float]:
    """What a doubling of devices adds to the throughput between neighbours: 1 where it doubles it."""
    return [
        2 ** (math.log(more.forecast.throughput / fewer.forecast.throughput) / math.log(more.devices / fewer.devices)) - 1
        for fewer, more in pairwise(points)
    ]


def conclusion(points: Sequence[ScalingPoint]) -> tuple[int | None, Note]:
    """The devices beyond which more do not pay, None where all do; and that as a note."""
    fitting = [point for point in points if point.fits is not False]
    if not fitting:
        return None, scaling_fits_nowhere(devices=points[-1].devices)
    if len(fitting) == 1:
        return None, scaling_single_point(devices=fitting[0].devices)
    added = gains(fitting)
    for index, point in enumerate(fitting[:-1]):
        dearer = _of_a_device(point) / max(map(_of_a_device, fitting[index + 1 :]))
        if added[index] < LEAST_GAIN and dearer > 2 / (1 + LEAST_GAIN):
            return point.devices, scaling_stops(devices=point.devices, gain=added[index], dearer=dearer)
    best = max(fitting, key=_of_a_device)
    dearer = _of_a_device(best) / _of_a_device(fitting[-1])
    return None, scaling_pays(devices=fitting[-1].devices, gain=added[-1], dearer=dearer, best=best.devices)


def _of_a_device(point: ScalingPoint) -> float:
    return point.forecast.throughput_per_device
