"""JSON messages between the measuring process and its parent."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

from gpuwise.json_types import Json, JsonObject
from gpuwise.measure.chip_figures import Figures

FieldTables: TypeAlias = list[dict[str, Any]]
"""A list of dataclasses as tables, from dataclasses.asdict."""


class Survey(TypedDict):
    """PyTorch's view of this machine.

    Attributes:
        device: PyTorch's name of the measured device, such as cpu, cuda or mps.
        left_out: notes on devices that are not measured.
        torch: version of PyTorch.
        networks: number of networks.
        quick: number of networks in the quick sweep.
        writing: number of networks that write tokens.
        small: number of small networks.
        half: 16-bit precision in which networks are repeated; None if the device has none.
        threads: threads of PyTorch's operations.
    """

    device: str
    left_out: list[dict[str, Json]]
    torch: str
    networks: int
    quick: int
    writing: int
    small: int
    half: str | None
    threads: int


class StageAnswer(TypedDict, total=False):
    """A part of a stage's result. An answer has only some of the keys.

    Attributes:
        begun: index of the stage that begins.
        row: a MeasuredRow.
        kernels: further MeasuredRows.
        samples: StepSamples of an observed network.
        note: a Note.
        peaks: list of AchievedPeak.
        levels: list of MemoryLevel at the beginning of the sweep.
        again: list of MemoryLevel at the end of the sweep.
    """

    begun: int
    row: JsonObject
    kernels: list[JsonObject]
    samples: dict[str, object]
    note: dict[str, Json]
    peaks: FieldTables
    levels: FieldTables
    again: FieldTables


class FitRequest(TypedDict):
    """A request to fit a calibration.

    Attributes:
        samples: list of StepSamples.
        figures: measured figures of the chip; missing ones come from the catalog.
    """

    samples: FieldTables
    figures: Figures


class FitAnswer(TypedDict):
    """A MachineFit as tables of a calibration file; its attributes are those of MachineFit."""

    entries: dict[str, dict[str, object]]
    scale: dict[str, float]
    spreads: list[dict[str, object]]
    errors: dict[str, float]
