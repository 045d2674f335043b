"""compare: one job on several devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.device_names import device_names
from gpuwise.api.devices import Device, devices_of, target_of
from gpuwise.api.fitting import fitting_change_of
from gpuwise.api.plain_arguments import plainly
from gpuwise.api.source import StepSource
from gpuwise.api.sources import source_of
from gpuwise.hardware.catalog import load_catalog
from gpuwise.notes.step import of_a_step
from gpuwise.plan.fit.change import FittingChange
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.step_settings import ClusterSettings, mesh_of, named_settings, sizes_of, strategy_of, usual_micro_batches
from gpuwise.strategy import Mesh, check_layout_works, check_settings_work, check_techniques

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.plan.compare import CompareRow, Comparison


@plainly
def compare(job: str | Job, *, on: str | Sequence[str], **settings: Unpack[ClusterSettings]) -> Comparison:
    """Forecasts of a job on several devices or clusters, with speed-ups over the slowest and the reason for each.

    Arguments:
        job, settings: as for `forecast`. A mesh must have as many devices as each of `on`.
        on: devices, in a list or separated by commas.

    A device that cannot run the job has a row with the reason. Raises the errors of `forecast`; UnsupportedError only if no
    device can run the job.
    """
    from gpuwise.plan.compare import compare as compare_devices

    requested = named_settings(settings, ClusterSettings)
    if (micro_batches := usual_micro_batches(requested)) is not None:
        requested["accumulate"] = micro_batches
    strategy = strategy_of(requested)
    catalog = load_catalog()
    devices = devices_of(device_names(on), catalog, mesh=mesh_of(requested), network=requested.get("network"))
    several = max(device.devices for device in devices)
    on_some = mesh_of(requested) or Mesh(dp_replicate=several, dp_shard=several)  # copies or shards, each by its memory
    check_settings_work(requested, on_some, adapter=strategy.adapter)
    source = source_of(job, **sizes_of(requested))
    check_layout_works(requested, source.has_images)
    check_techniques(strategy, source.step_facts())
    result = compare_devices(
        lambda chip: StepPricer(source.traces(target_of(chip)), catalog=catalog),
        [device.offered_spec for device in devices],
        requested=strategy,
        micro_batch=requested.get("micro_batch"),
        precision=requested.get("precision"),
    )
    rows = [_with_answer(row, device, source) for row, device in zip(result.rows, devices, strict=True)]
    return replace(result, rows=tuple(rows), assumption_notes=of_a_step(result.assumption_notes))


def _with_answer(row: CompareRow, device: Device, source: StepSource) -> CompareRow:
    """The row with a change that makes the job fit in its reason, if the job does not fit the device."""
    if row.forecast is None or row.forecast.memory.fits is not False:
        return row
    change = fitting_change_of(source, device, row.forecast.strategy)
    if not isinstance(change, FittingChange):
        return row
    return replace(row, reason_note=row.reason_note.with_change(f"{change.words}: {change.command}"))
