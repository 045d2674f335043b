"""scale: forecasts of one job on ever more devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.cpu_settings import cpu_settings
from gpuwise.api.devices import Device, devices_of, target_of
from gpuwise.api.plain_arguments import plainly
from gpuwise.api.source import StepSource
from gpuwise.api.sources import source_of, usual_micro_batch
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.device import DeviceSpec, parse_device
from gpuwise.hardware.network import EXAMPLES
from gpuwise.notes import Note, sentences
from gpuwise.notes.scaling import priced_as_a_share
from gpuwise.notes.step import assumed_micro_batch, of_a_step
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.space.legal import assumed_precision
from gpuwise.step_settings import ClusterSettings, mesh_of, named_settings, sizes_of, strategy_of, usual_micro_batches
from gpuwise.strategy import Mesh, Strategy, check_layout_works, check_settings_work, check_techniques

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.plan.scaling.curve import ScalingCurve


@plainly
def scale(job: str | Job, *, on: str, global_batch: int | None = None, **settings: Unpack[ClusterSettings]) -> ScalingCurve:
    """Forecasts of a job on 1, 2, 4 and so on up to all devices of a cluster, and where more of them stop paying.

    Arguments:
        job, settings: as for `forecast`. A mesh says what stays the same: tp, pp, cp and ep as they are, shards of dp_shard;
            what is left of the devices is data parallel.
        on: the most devices, "h100-sxm:8x64" or "h100-sxm:512". Fewer fill machines of the same kind. "here:4" is four ranks
            that share this machine's CPU, "here:1x4" four such machines.
        global_batch: samples of each step, shared among all devices (strong scaling). None (default) keeps the micro-batch and
            the accumulation of each device (weak scaling).

    Raises the errors of `forecast`, and InputError for a single device.
    """
    from gpuwise.plan.scaling.points import device_counts, scaling_curve

    requested = named_settings(settings, ClusterSettings)
    mesh = mesh_of(requested) or Mesh()
    _check(requested, mesh, global_batch)
    check_settings_work(requested, replace(mesh, dp_replicate=2), adapter=requested.get("adapter"))
    catalog = load_catalog()
    spec = parse_device(on, catalog=catalog)
    whole = spec.cluster
    _check_scales(on, spec)
    devices = _devices(on, device_counts(whole.devices, mesh), catalog, requested.get("network"))
    largest = devices[-1]
    source = source_of(job, **sizes_of(requested))
    check_layout_works(requested, source.has_images)
    strategy = strategy_of({**requested, "mesh": None})
    assumed: list[Note] = list(largest.assumptions)
    if requested.get("micro_batch") is None:
        strategy = strategy.but(micro_batch=usual_micro_batch(source.tokens_per_sample))
        assumed.append(assumed_micro_batch(samples=strategy.micro_batch))
    if (micro_batches := usual_micro_batches(requested)) is not None:
        strategy = strategy.but(accumulation=micro_batches)
    facts = source.step_facts(largest.target)
    check_techniques(strategy.but(mesh=mesh), facts)  # before anything is traced
    precision = requested.get("precision")
    if largest.spec.machine is not None and largest.target == "cpu":
        source = source.with_own_kernels()
        strategy, choice = _settings_here(source, largest, strategy, requested)
        precision, assumed = strategy.precision, [*assumed, *choice]
    usd = largest.usd_per_hour
    if usd is not None:
        assumed.append(priced_as_a_share(devices=largest.devices))
    curve = scaling_curve(
        StepPricer(source.traces(target_of(largest.chip)), catalog=catalog),
        [device.cluster for device in devices],
        requested=strategy.but(mesh=mesh),
        precision=precision,
        global_batch=global_batch,
        usd_per_device_hour=None if usd is None else usd / largest.devices,
        facts=facts,
    )
    return replace(curve, assumption_notes=of_a_step([*assumed, *curve.assumption_notes]))


def _check(requested: ClusterSettings, mesh: Mesh, global_batch: int | None) -> None:
    if mesh.dp_replicate > 1:
        raise InputError(
            f"replicas are what grows: --mesh {mesh} fixes their number.",
            ["leave out dp, or fix the shards: --mesh dp_shard=8"],
        )
    if global_batch is None:
        return
    if isinstance(global_batch, bool) or not isinstance(global_batch, int) or global_batch < 1:
        raise InputError(f"--global-batch must be a whole number of at least 1, got {global_batch!r}.")
    if requested.get("accumulate") is not None:
        raise InputError(
            "--global-batch and the number of devices say how many micro-batches a step has.", ["leave out --accumulate"]
        )


def _check_scales(on: str, spec: DeviceSpec) -> None:
    """Raises InputError for a single device, and for ranks that share a CPU which is not this machine's."""
    cluster, name = spec.cluster, on.partition(":")[0]
    if cluster.chip.kind != "cpu":
        ways = [f"name the most devices: --on {name}:8x8"]
    else:
        machines = max(2, cluster.devices)
        ways = [f"ranks on this machine's CPU: --on here:{machines}", f"machines: --on {name}:1x{machines} {EXAMPLES}"]
    if cluster.devices == 1:
        raise InputError(f"{on!r} does not scale: it is one device.", ways)
    if cluster.chip.kind == "cpu" and spec.machine is None and cluster.devices_per_machine > 1:
        raise InputError(f"{on!r} does not scale: how ranks share a CPU is known of this machine's alone.", ways)


def _settings_here(
    source: StepSource, device: Device, strategy: Strategy, requested: ClusterSettings
) -> tuple[Strategy, list[Note]]:
    """The strategy with the precision and the layout that `forecast` would choose on this machine's CPU, with the reasons."""
    if requested.get("precision") is not None:
        return strategy, []
    plain = strategy.but(precision=source.default_precision("fp32"))
    machine = device.spec.machine
    if strategy.mode != "train" or plain.precision != "fp32" or machine is None:
        return plain, [assumed_precision(plain.precision, None)]
    choice = cpu_settings(
        source,
        machine.chip,
        plain,
        capacity_bytes=machine.host_memory_bytes,
        fixed=requested.keys() & {"channels_last"},
        history=False,
    )
    return choice.strategy, [assumed_precision(choice.strategy.precision, None, reasons="; ".join(sentences(choice.reasons)))]


def _devices(on: str, counts: list[int], catalog: Catalog, network: str | None) -> list[Device]:
    """So many devices in machines like those of `on`; counts that fill no machines are left out."""
    whole = parse_device(on, catalog=catalog).cluster
    name, each = on.partition(":")[0], whole.devices_per_machine
    texts = [f"{name}:{n}" if n <= each else f"{name}:{each}x{n // each}" for n in counts if n <= each or n % each == 0]
    return devices_of(texts, catalog, network=network)
