"""What the measuring process and the one that waits for it tell each other, as JSON."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

from gpuwise.json_types import Json, JsonObject
from gpuwise.measure.chip_figures import Figures

FieldTables: TypeAlias = list[dict[str, Any]]
"""The fields of dataclasses, as dataclasses.asdict gives them."""


class Survey(TypedDict):
    """What PyTorch sees on this machine.

    Attributes:
        device: PyTorch's name of what is measured, cpu or cuda.
        left_out: what is not measured, notes.
        torch: its version.
        networks, quick: how many networks there are, and how many of them the quick sweep observes.
        half: the precision that networks are repeated in; None where the device has none.
        threads: of PyTorch's operations.
    """

    device: str
    left_out: list[dict[str, Json]]
    torch: str
    networks: int
    quick: int
    half: str | None
    threads: int


class StageAnswer(TypedDict, total=False):
    """A part of a stage's result; only some of the keys are there.

    Attributes:
        begun: index of the stage that begins.
        row: a MeasuredRow; kernels: more of them.
        samples: StepSamples of an observed network.
        note: a Note.
        peaks: of AchievedPeak.
        levels, again: of MemoryLevel, at the beginning and at the end of the sweep.
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
    """samples: of StepSamples. figures: of the chip, as measured; without any the catalog's count."""

    samples: FieldTables
    figures: Figures


class FitAnswer(TypedDict):
    """A MachineFit in the tables of a calibration file. errors: forecast / measured - 1 by network."""

    entries: dict[str, dict[str, object]]
    scale: dict[str, float]
    spreads: list[dict[str, object]]
    errors: dict[str, float]
