"""The default batch of a run: the default global batch of `plan`, in micro-batches that fit this machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwise.api.devices import target_of
from gpuwise.api.source import StepSource
from gpuwise.api.sources import usual_micro_batch
from gpuwise.errors import GpuwiseError
from gpuwise.hardware import Chip
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note
from gpuwise.notes.run import assumed_batch_of_run
from gpuwise.plan.pricing.largest import largest_of
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.space import legal
from gpuwise.plan.space.global_batch import TrainedOn, usual_global_batch
from gpuwise.step_settings import RunSettings, mesh_of
from gpuwise.strategy import Mesh, Strategy, StrategyChanges

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.runtime import TrainSettings


def samples_of(settings: TrainSettings, job: Job) -> float | None:
    """Samples of the run, if known before its data is opened."""
    tokens = None if settings.tokens is None or job.tokens_per_sample is None else settings.tokens / job.tokens_per_sample
    epochs = None if job.samples is None else (settings.epochs or 1) * job.samples
    return next((n for n in (settings.samples, tokens, epochs) if n is not None), None)


def first_micro_batch(job: Job, requested: RunSettings, settings: TrainSettings) -> int:
    """The first micro-batch to try, before memory is checked.

    It is the default global batch of `plan`, or the usual micro-batch if the length of the run is unknown or the job cannot
    accumulate.
    """
    planned = planned_global_batch(job, requested, settings)
    if planned is None:
        return usual_micro_batch(job.tokens_per_sample)
    mesh = mesh_of(requested) or Mesh()
    return max(1, planned[0] // ((requested.get("accumulate") or 1) * mesh.data_parallel))


def planned_global_batch(job: Job, requested: RunSettings, settings: TrainSettings) -> tuple[int, str] | None:
    """The default global batch of `plan` and its reason.

    None if the user sets a batch, or if the length of the run is unknown before the data is opened.
    """
    from gpuwise.job.job import meta_model

    samples = samples_of(settings, job)
    if samples is None or "micro_batch" in requested or requested.get("optimizer_in_backward"):
        return None
    parameters = list(meta_model(job).parameters())
    count = sum(p.numel() for p in parameters)
    adapted = requested.get("adapter", "none") != "none"
    trainable = 0 if adapted else sum(p.numel() for p in parameters if p.requires_grad)
    return usual_global_batch(
        TrainedOn(job.sample_unit == "token", job.tokens_per_sample or 1, count, trainable, math.ceil(samples), job.samples)
    )


def batch_reason(job: Job, requested: RunSettings, settings: TrainSettings, strategy: Strategy) -> tuple[Note, ...]:
    """The reason for a default global batch; empty if it is the user's, or that of a continued run."""
    planned = planned_global_batch(job, requested, settings)
    if planned is None or planned[0] != strategy.global_batch:
        return ()
    return (assumed_batch_of_run(samples=planned[0], why=planned[1]),)


def batch_of_ranks(named: Strategy, requested: RunSettings, job: Job) -> Strategy:
    """The same global batch in micro-batches of the usual size at most, for ranks whose memory is not forecast.

    The user's batch stays. A pipeline gets a micro-batch for each of its stages at least.
    """
    if {"micro_batch", "accumulate"} & set(requested):
        return named
    batch, usual = named.micro_batch, usual_micro_batch(job.tokens_per_sample)
    stages = named.mesh.pp * named.parallelism.stages_per_rank
    ladder = [n for n in legal.micro_batches(batch) if n <= usual and (batch // n >= stages or n == 1)]
    micro_batch = max(ladder, default=1)
    return named.but(micro_batch=micro_batch, accumulation=max(1, batch // micro_batch))


def same_global_batch(before: Strategy, named: Strategy) -> StrategyChanges:
    """The micro-batches of a run before, on the mesh of `named`: the same global batch, where that divides."""
    of_each = before.global_batch // named.mesh.data_parallel
    micro_batch = math.gcd(before.micro_batch, of_each) if of_each else before.micro_batch
    return {"micro_batch": micro_batch, "accumulation": max(1, of_each // micro_batch)}


def batch_in_memory(
    named: Strategy, requested: RunSettings, source: StepSource, chip: Chip, capacity_bytes: int | None, job: Job
) -> Strategy:
    """The same global batch in the largest micro-batch that leaves headroom on the device, as in `plan`.

    The user's batch stays. If the job cannot be traced, micro-batches are at most the usual ones. A job with its own step
    does not accumulate, so its batch is the micro-batch.
    """
    batch, usual = named.micro_batch, usual_micro_batch(job.tokens_per_sample)
    if {"micro_batch", "accumulate"} & set(requested) or batch <= usual or named.optimizer_in_backward:
        return named
    ladder = [named.but(micro_batch=n, accumulation=batch // n if job.step is None else 1) for n in legal.micro_batches(batch)]
    pricer = StepPricer(source.traces(target_of(chip)))
    try:
        family = pricer.traces.family(named)
        if family.header.own_step:
            ladder = [each.but(accumulation=1) for each in ladder]
        covered = [each for each in ladder if pricer.traces.covers(named, each.micro_batch)]
        cluster = Cluster(chip, memory_bytes=capacity_bytes)
        largest = largest_of(pricer, covered, cluster, memory=pricer.replayed) if covered else None
    except GpuwiseError:
        largest = None
    if largest is not None:
        return largest
    return max((each for each in ladder if each.micro_batch <= usual), key=lambda each: each.micro_batch)
