"""The input side of a step: its batch copied from host to device, and the data pipeline that delivers it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuwise.cost.offload import copy_bytes_per_s
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.links import host_link
from gpuwise.hardware.types import Chip, Link
from gpuwise.notes import Note
from gpuwise.notes.step import assumed_batch_copy, assumed_data_ready
from gpuwise.trace.tables import CATEGORIES
from gpuwise.trace.trace import Trace

# A copy from pageable memory goes through the driver's pinned buffers first, written there by one thread: 4.5 GB/s where
# pinned memory reaches 5.9 (Habich, "PCI express pinned Host Memory", 2009) makes 19 GB/s; half of it is assumed, as a
# thread that also runs Python has.
STAGING_BYTES_PER_S = 10e9
_INPUT = CATEGORIES.index("input")


@dataclass(frozen=True)
class DataPipeline:
    """The data pipeline of one machine.

    Attributes:
        samples_per_s: samples delivered a second. None (default): loading is not priced, and a note tells so.
        prefetched: True (default): batches wait in pinned memory, and are loaded and copied during the previous step.
            False: batches are copied from pageable memory, and the step waits for loader and copy.

    Raises InputError for a rate that is no number above zero.
    """

    samples_per_s: float | None = None
    prefetched: bool = True

    def __post_init__(self) -> None:
        if self.samples_per_s is not None:
            _check_rate(self.samples_per_s)


READY = DataPipeline()


@dataclass(frozen=True)
class Input:
    """The time of the input of one optimizer step.

    Attributes:
        copy_s: seconds of the copy over the host link.
        copy_bytes: bytes copied to one device.
        loader_s: seconds that the data pipeline needs to deliver the samples; 0 if its rate is unknown.
        prefetched: whether both happen during the previous step.
        notes: the assumptions behind these figures.
    """

    copy_s: float = 0.0
    copy_bytes: int = 0
    loader_s: float = 0.0
    prefetched: bool = True
    notes: tuple[Note, ...] = ()

    def exposed_s(self, step_s: float) -> float:
        """Seconds that the input adds to a step of `step_s` seconds.

        With prefetching, loader, copy and step are three stages of a pipeline, which takes as long as its slowest stage.
        Without, the step waits for all of the input.
        """
        if self.prefetched:
            return max(0.0, self.copy_s - step_s, self.loader_s - step_s)
        return self.copy_s + self.loader_s


def input_s(
    trace: Trace,
    chip: Chip,
    data: DataPipeline = READY,
    *,
    samples: float | None = None,
    parameters: Parameters | None = None,
    catalog: Catalog | None = None,
) -> Input:
    """The input of one optimizer step on a device that runs `trace`.

    Arguments:
        data: the data pipeline.
        samples: samples of one step for all devices of the machine; None takes those of one device.
        parameters: figures of the cost model; None takes the shipped ones.
        catalog: source of links; None takes the shipped catalog.

    Raises InputError for a rate that is no positive number.
    """
    parameters = parameters or shipped_parameters()
    link = _link(chip, catalog or load_catalog())
    copied = copied_bytes(trace) if link is not None else 0
    copy_s = 0.0
    notes: list[Note] = []
    if link is not None and link.per_direction_bytes_per_s and copied:
        copy_s = copied / copy_bytes_per_s(link, parameters)
        if not data.prefetched:
            copy_s += copied / STAGING_BYTES_PER_S
        notes.append(assumed_batch_copy(copied_bytes=copied, link=link.name, prefetched=data.prefetched))
    loader_s = 0.0
    if data.samples_per_s is None:
        notes.append(assumed_data_ready())
    else:
        loader_s = (trace.samples if samples is None else samples) / data.samples_per_s
    return Input(copy_s, copied, loader_s, data.prefetched, tuple(notes))


def copied_bytes(trace: Trace) -> int:
    """Bytes that one device copies from the host in one optimizer step."""
    storages = trace.storages
    comes = (storages.category == _INPUT) & (storages.born >= 0)
    if not len(trace.repeats):
        return 0
    times = trace.repeats[np.minimum(storages.born[comes], len(trace.repeats) - 1)]
    return int(storages.size_bytes[comes] @ times)


def _link(chip: Chip, catalog: Catalog) -> Link | None:
    """The link to the host; None if device and host share one memory."""
    return None if chip.shares_host_memory else host_link(chip, catalog)


def _check_rate(samples_per_s: float) -> None:
    number = isinstance(samples_per_s, (int, float)) and not isinstance(samples_per_s, bool)
    if not (number and 0 < samples_per_s < math.inf):
        raise InputError(
            f"--loader-samples-per-s must be a number above 0, got {samples_per_s!r}.",
            ["time a pass over the data loader alone: samples divided by seconds"],
        )
