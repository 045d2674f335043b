"""Entry: one model of a published table, and the rule that reads its rows. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuwise.strategy import Strategy

EXAMPLES = "NVIDIA/DeepLearningExamples"
LAMBDA = "lambdal/deeplearning-benchmark"


@dataclass(frozen=True)
class Part:
    """Steps of one size among those of a table's row.

    Fields:
        size: what the job is built for in these steps, as Reading.size.
        per_sample: units of the table's throughput in one sample.
        share: of all steps.
    """

    size: tuple[tuple[str, int], ...]
    per_sample: float
    share: float


@dataclass(frozen=True)
class Reading:
    """What one device did in a measured step, as far as its model decides that.

    Fields:
        job: name of the job, whose first part (before "-") is a key of `JOBS` of its family.
        size: what the job is built for: ("seq_len", 384), ("image_size", 224), ...
        per_sample: how many of the units that the table's throughput counts one sample has: 1 image, 50 tokens. Default 1.
        micro_batch: samples of one device. None (the default): the table's batch_per_gpu.
        accumulation: micro-batches between two updates. Default 1.
        channels_last: layout of images. Default False.
        precision: what the step runs in where the table's word is no precision of ours: a model that is in fp16 as a whole
            needs no autocast, so that it runs as "fp32" does. None (the default): the table's.
        half: the whole model ran in fp16 (apex's O2); it is recorded in bf16 and priced in fp16. Default False.
        update: whether the step updates parameters. Default True.
        collectives: whether devices exchange gradients. Default True.
        parts: steps of several sizes, whose rates the program averages; then size and per_sample are not looked at, but for
            the step that stands for all. Default: all steps are alike.
        waits_for_batch: whether each step waits for a copy of its batch from pageable memory. Default False.
        loads: whether the timed step waits for a data loader, whose rate is unknown; counted apart. Default False.
        calls_per_sample: operators that the program calls sample by sample while the device waits. Default 0.
    """

    job: str
    size: tuple[tuple[str, int], ...] = ()
    per_sample: float = 1.0
    micro_batch: int | None = None
    accumulation: int = 1
    channels_last: bool = False
    precision: str | None = None
    half: bool = False
    update: bool = True
    collectives: bool = True
    parts: tuple[Part, ...] = ()
    waits_for_batch: bool = False
    loads: bool = False
    calls_per_sample: float = 0.0


@dataclass(frozen=True)
class Unscored:
    """Why a row has no forecast: a short phrase, which rows of one kind share."""

    reason: str


@dataclass(frozen=True)
class Entry:
    """A model of a table.

    Fields:
        repository: column source_repo.
        model: column model.
        read: a row (a named tuple of the table's columns) -> its Reading, or Unscored.
    """

    repository: str
    model: str
    read: Callable[[Any], Reading | Unscored]


def step_seconds(row: Any, reading: Reading, strategy: Strategy) -> float:
    """Seconds of one optimizer step of all devices, from the row's step time, or from its throughput and its unit."""
    if row.step_time_s > 0 and reading.accumulation == 1:
        return float(row.step_time_s)
    samples = strategy.micro_batch * strategy.accumulation * row.num_gpus
    return float(samples * reading.per_sample / row.throughput)
