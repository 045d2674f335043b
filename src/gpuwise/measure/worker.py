"""The measuring process: gpuwise.measure.run starts it as `python -m gpuwise.measure.worker`. It answers in JSON lines.

A request for stages returns the rows of each; a request for a fit returns the entries that explain the samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial

import torch

from gpuwise.cost.calibration import to_table
from gpuwise.cost.host import host_s
from gpuwise.cost.parameters import parameters
from gpuwise.errors import GpuwiseError
from gpuwise.hardware import Chip, detect_machine, load_catalog
from gpuwise.hardware.detect import detect_cpu
from gpuwise.measure.calibrate import calibrate
from gpuwise.measure.child import WorkerConnection
from gpuwise.measure.chip_figures import Figures
from gpuwise.measure.messages import FitAnswer, FitRequest, Survey
from gpuwise.measure.networks import NETWORKS, QUICK, scaled
from gpuwise.measure.observe import observe
from gpuwise.measure.probes import collectives, copies, memory, peaks
from gpuwise.measure.samples import StepSamples, samples_of, slowest_class
from gpuwise.measure.small_networks import SMALL
from gpuwise.measure.stages import Stage
from gpuwise.measure.timing import summary
from gpuwise.measure.writing_networks import WRITING
from gpuwise.notes import Note
from gpuwise.notes import measuring as measuring_notes
from gpuwise.results.measurement import MeasuredRow
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.devices import accelerator
from gpuwise.runtime.devices.chips import accelerators
from gpuwise.strategy import Strategy

Say = Callable[[Note], None]
PROBES: Mapping[str, Callable[[float, torch.device, Say], Iterator[MeasuredRow]]] = {
    "memory": memory.rows,
    "peaks": peaks.rows,
    "copies": copies.rows,
    "collectives": collectives.rows,
    "again": memory.rows,
}


def survey() -> Survey:
    """PyTorch's view of this machine."""
    catalog = load_catalog()
    chip = detect_machine(catalog, measured=False).chip
    half = "amp-bf16" if chip.peak_flops_per_s.get("bf16") else None
    here = None if chip.kind == "cpu" else accelerator()
    device = "cpu" if here is None else here.type
    left_out = [
        measuring_notes.not_measured(gpu=other.gpu.name, device=other.device).to_dict()
        for other in accelerators(catalog)
        if here is None or other.chip.id != chip.id
    ]
    return {
        "device": device,
        "left_out": left_out,
        "torch": torch.__version__,
        "networks": len(NETWORKS),
        "quick": QUICK,
        "writing": len(WRITING),
        "small": len(SMALL),
        "half": half,
        "threads": torch.get_num_threads(),
    }


def run_stage(stage: Stage, device: torch.device, child: WorkerConnection) -> None:
    observed = {"network": NETWORKS, "writing": WRITING, "small": SMALL}.get(stage.name)
    if observed is not None:
        name, job, batch = observed[stage.network]
        micro_batch = scaled(batch, device) if stage.name == "network" else batch
        strategy = Strategy(precision=stage.precision, micro_batch=micro_batch, mode=stage.mode)
        observation = observe(job, strategy, device, steps=stage.steps)
        chip = detect_machine(load_catalog(), measured=False).chip
        figures = parameters()
        least_host_s = figures.host_spread[0] * host_s(observation.trace, chip, figures)
        samples = samples_of(name, observation, host_s=least_host_s)
        row = MeasuredRow(
            "step", name, summary(samples.step_s), stage.precision, {"micro_batch": strategy.micro_batch}, samples.flops
        )
        slowest = [] if stage.mode == "infer" else [slowest_class(name, observation).to_dict()]
        child.send(row=row.to_dict(), kernels=slowest, samples=samples.to_dict())
        return
    probe = PROBES[stage.name]
    caches = memory.caches_together(detect_cpu(), torch.get_num_threads()) if device.type == "cpu" else {}
    if stage.name in ("memory", "again"):
        probe = partial(memory.rows, beyond_bytes=max(caches.values(), default=0))
    rows = []
    for row in probe(stage.budget_s, device, lambda note: child.send(note=note.to_dict())):
        rows.append(row)
        if stage.name != "again":
            child.send(row=row.to_dict())
    if stage.name in ("memory", "again"):
        key = "levels" if stage.name == "memory" else "again"
        child.send(**{key: [asdict(level) for level in memory.levels(rows, caches)]})
    if stage.name == "peaks":
        child.send(peaks=[asdict(peak) for peak in peaks.peaks(rows)])


def fit(request: FitRequest) -> FitAnswer:
    """Fits entries and returns them as tables of a calibration file. Empty `figures` keep the catalog's figures."""
    torch.set_num_threads(1)  # vectors of a few hundred numbers
    machine_fit = calibrate([StepSamples.from_dict(data) for data in request["samples"]], measured_chip(request["figures"]))
    return {
        "entries": {key: to_table(entry) for key, entry in machine_fit.entries.items()},
        "scale": dict(machine_fit.scale),
        "spreads": [asdict(spread) for spread in machine_fit.spreads],
        "errors": dict(machine_fit.errors),
    }


def measured_chip(figures: Figures) -> Chip:
    """The chip of this machine with the figures of this measurement and none of an earlier one."""
    chip = detect_machine(load_catalog(), measured=False).chip
    return replace(
        chip,
        peak_flops_per_s={**chip.peak_flops_per_s, **figures.get("peak_flops_per_s", {})},
        memory_bandwidth_bytes_per_s=figures.get("memory_bandwidth_bytes_per_s", chip.memory_bandwidth_bytes_per_s),
    )


def main() -> None:
    warnings.simplefilter("ignore")
    child = WorkerConnection()
    keep_freed_memory()
    request = child.request
    if "samples" in request:
        child.send(**fit(request))
        return
    if "stages" not in request:
        child.send(**survey())
        return
    device = torch.device(request["device"])
    for number, data in enumerate(request["stages"]):
        child.send(begun=number)
        try:
            run_stage(Stage(**data), device, child)
        except (GpuwiseError, RuntimeError, MemoryError, OSError) as error:  # a failed stage does not end the others
            problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            child.send(note=measuring_notes.stage_left_out(stage=str(data["what"]), problem=problem).to_dict())


if __name__ == "__main__":
    main()
