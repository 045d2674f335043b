"""The points of a scaling curve: which meshes on which clusters, and their forecasts from one set of traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.rates import check_can_run
from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note
from gpuwise.notes.scaling import left_out_of_scaling, no_sample_for_each
from gpuwise.plan.pricing.data_parallel import copies_or_shards
from gpuwise.plan.pricing.largest import step_fits
from gpuwise.plan.pricing.precision import chosen_precision
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.scaling.curve import ScalingCurve, conclusion, with_efficiency
from gpuwise.strategy import Mesh, Strategy, check_techniques
from gpuwise.strategy.exclusion import StepFacts
from gpuwise.strategy.pipeline import fewest_micro_batches


def device_counts(most: int, mesh: Mesh) -> list[int]:
    """The numbers of devices of a curve: as few as the mesh divides the model among, twice as many and so on, and the most.

    Raises InputError if the mesh does not divide the most.
    """
    fewest = mesh.tp * mesh.pp * mesh.cp * (mesh.ep if mesh.ep > 1 else 1)
    if most % fewest:
        raise InputError(
            f"{most:,} devices are no multiple of the {fewest:,} of {mesh}.", [f"--on with a multiple of {fewest:,} devices"]
        )
    counts = []
    count = fewest
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most]


def mesh_at(fixed: Mesh, devices: int, *, shards: bool) -> Mesh | None:
    """The mesh of so many devices: tensor, pipeline, context and expert parallel as fixed, the rest data parallel.

    Where the fixed mesh has shards their number stays, and replicas of them grow; else shards or replicas grow. None where
    the degrees do not divide the devices.
    """
    model = fixed.tp * fixed.pp * fixed.cp
    data, rest = divmod(devices, model)
    if rest or not data:
        return None
    if fixed.dp_shard > 1:
        shard = min(fixed.dp_shard, data)
        mesh = replace(fixed, dp_replicate=data // shard, dp_shard=shard)
    elif shards:
        mesh = replace(fixed, dp_shard=data)
    else:
        mesh = replace(fixed, dp_replicate=data)
    return mesh if mesh.devices == devices and mesh.dp_shard % mesh.ep == 0 else None


def scaling_curve(
    pricer: StepPricer,
    clusters: Sequence[Cluster],
    *,
    requested: Strategy,
    precision: str | None = None,
    global_batch: int | None = None,
    usd_per_device_hour: float | None = None,
    facts: StepFacts | None = None,
) -> ScalingCurve:
    """Forecasts of a job on clusters of one chip, by ascending number of devices.

    Arguments:
        requested: the strategy. Its mesh is what stays the same, its micro-batch that of each device.
        precision: None takes the chip's best.
        global_batch: samples of each step; None keeps those of each device.
        facts: what is known of the job's step, to refuse what cannot run.

    Raises UnsupportedError if the chip cannot run the job, InputError for techniques that exclude each other.
    """
    chip = clusters[-1].chip
    check_can_run(chip, mode=requested.mode)
    chosen, notes = chosen_precision(pricer.traces, requested.but(mesh=Mesh()), chip, precision)
    requested = requested.but(precision=chosen)
    shards, mesh_notes = _shards(pricer, requested, clusters[-1])
    notes = [*notes, *mesh_notes]
    undivided: list[int] = []
    problems: dict[GpuwiseError, int] = {}
    priced: list[tuple[int, Forecast, bool | None]] = []
    for cluster, mesh in _meshes(clusters, requested.mesh, shards=shards):
        strategy = _with_batch(requested.but(mesh=mesh), global_batch)
        if strategy is None:
            undivided.append(cluster.devices)
            continue
        usd = None if usd_per_device_hour is None else usd_per_device_hour * cluster.devices
        try:
            check_techniques(strategy, facts or StepFacts())
            forecast = pricer.forecast(strategy, cluster, usd_per_hour=usd, replay=False)
        except (InputError, UnsupportedError) as error:  # such as a step of few devices that is too long to count
            problems[error] = cluster.devices
            continue
        priced.append((cluster.machines, forecast, step_fits(pricer, strategy, cluster) if cluster.capacity_bytes else None))
    if global_batch is not None and undivided:
        notes.append(no_sample_for_each(global_batch=global_batch, devices=", ".join(f"{n:,}" for n in undivided)))
    notes += [left_out_of_scaling(devices=f"{devices:,}", problem=error.what) for error, devices in problems.items()]
    if not priced:
        raise next(iter(problems), InputError("no number of devices can share the step.", ["a larger --global-batch"]))
    points = with_efficiency(priced)
    stops, note = conclusion(points)
    last = points[-1].forecast
    return ScalingCurve(
        last.job, chip.id, global_batch, points, stops, note, (*notes, *last.assumption_notes), last.warning_notes
    )


def _meshes(clusters: Sequence[Cluster], fixed: Mesh, *, shards: bool) -> Iterator[tuple[Cluster, Mesh]]:
    for cluster in clusters:
        mesh = mesh_at(fixed, cluster.devices, shards=shards)
        if mesh is not None:
            yield cluster, mesh


def _shards(pricer: StepPricer, requested: Strategy, largest: Cluster) -> tuple[bool, tuple[Note, ...]]:
    """Whether data parallel devices hold shards of the model, because copies do not fit; with a note where that is assumed."""
    if requested.mesh.dp_shard > 1 or requested.mode != "train":
        return False, ()
    copies = mesh_at(requested.mesh, largest.devices, shards=False)
    if requested.mesh.ep > 1 or copies is None:
        return True, ()
    strategy = requested.but(mesh=copies)
    if step_fits(pricer, strategy, largest):
        return False, (copies_or_shards(devices=largest.devices, axis=str(copies)),)
    shards, needed_bytes = mesh_at(requested.mesh, largest.devices, shards=True), pricer.needed_bytes(strategy, largest)
    return True, (copies_or_shards(devices=largest.devices, axis=str(shards), needed_bytes=needed_bytes),)


def _with_batch(strategy: Strategy, global_batch: int | None) -> Strategy | None:
    """The strategy with micro-batches that make a global batch, as many as a pipeline needs; None where it has too few samples
    or cannot be divided evenly."""
    if global_batch is None:
        return strategy
    of_rank, rest = divmod(global_batch, strategy.mesh.data_parallel)
    pipelined = strategy.mesh.pp > 1 and strategy.mode == "train"
    fewest = max(strategy.mesh.pp, fewest_micro_batches(strategy.parallelism, strategy.mesh.pp)) if pipelined else 1
    most = min(strategy.micro_batch, of_rank // fewest)
    if rest or not most:
        return None
    micro_batch = max(size for size in range(1, most + 1) if of_rank % size == 0)
    return strategy.but(micro_batch=micro_batch, accumulation=of_rank // micro_batch)
