"""All models of the zoo: the entries that read rows, and the functions that build jobs. Needs PyTorch.

A family is a module with ENTRIES, a tuple of Entry, and JOBS, a dict from the first part of a job's name to a function
(name, sizes, half) -> Job. half: the whole model runs in half precision, with fp32 copies of its parameters (master_adam).
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.zoo import (
    classifiers,
    clicks,
    detection,
    efficient_detection,
    molecules,
    recommendation,
    segmentation,
    speech,
    speech_pretraining,
    ssd,
    temporal_fusion,
    transformer_xl,
    translation,
    voices,
)
from benchmarks.zoo.entry import Entry
from gpuwise.job import Job

FAMILIES = (
    classifiers,
    clicks,
    detection,
    efficient_detection,
    molecules,
    recommendation,
    segmentation,
    speech,
    speech_pretraining,
    ssd,
    temporal_fusion,
    transformer_xl,
    translation,
    voices,
)

ENTRIES: dict[tuple[str, str], Entry] = {
    (entry.repository, entry.model): entry for family in FAMILIES for entry in family.ENTRIES
}
JOBS: dict[str, Callable[..., Job]] = {name: make for family in FAMILIES for name, make in family.JOBS.items()}


def has(name: str) -> bool:
    """Whether `build` knows a job of this name."""
    return name.split("-")[0] in JOBS


def build(name: str, sizes: dict[str, int], *, half: bool = False) -> Job:
    """The job of this name, for inputs of these sizes. Raises KeyError where no family has it."""
    return JOBS[name.split("-")[0]](name, sizes, half=half)
