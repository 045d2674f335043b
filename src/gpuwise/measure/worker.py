"""The process that measures: run by gpuwise.measure.run as `python -m gpuwise.measure.worker`, answering in JSON lines.

Asked for stages, it says the rows of each; asked for a fit, the entries that explain the samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from gpuwise.cost.calibration import to_table
from gpuwise.cost.host import host_s
from gpuwise.cost.parameters import parameters
from gpuwise.errors import GpuwiseError
from gpuwise.hardware import Chip, detect_machine, load_catalog
from gpuwise.hardware.detect import detect_cpu
from gpuwise.measure.calibrate import calibrate
from gpuwise.measure.child import Answering
from gpuwise.measure.devices import accelerators
from gpuwise.measure.networks import NETWORKS, QUICK, scaled
from gpuwise.measure.observe import observe
from gpuwise.measure.probes import collectives, copies, disk, kernels, launch, loader, memory, peaks
from gpuwise.measure.samples import StepSamples, samples_of
from gpuwise.measure.stages import Stage
from gpuwise.measure.timing import summary
from gpuwise.results.measurement import MeasuredRow
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.strategy import Strategy

Say = Callable[[str], None]
PROBES: Mapping[str, Callable[[float, torch.device, Say], Iterator[MeasuredRow]]] = {
    "launch": launch.rows,
    "memory": memory.rows,
    "peaks": peaks.rows,
    "kernels": kernels.rows,
    "copies": copies.rows,
    "collectives": collectives.rows,
    "loader": loader.rows,
    "disk": disk.rows,
    "again": memory.rows,
}


def survey() -> dict[str, Any]:
    """What PyTorch sees here. half: the precision that networks are repeated in. left_out: what is not measured, in words."""
    catalog = load_catalog()
    chip = detect_machine(catalog, measured=False).chip
    half = "amp-bf16" if chip.peak_flops_per_s.get("bf16") else None
    device = "cuda" if torch.cuda.is_available() and chip.kind != "cpu" else "cpu"
    left_out = [
        f"{found.gpu.name} ({found.device}) is not measured: gpuwise measures NVIDIA's GPUs and CPUs"
        for found in accelerators(catalog)
        if found.gpu.vendor != "NVIDIA"
    ]
    return {
        "device": device,
        "left_out": left_out,
        "torch": torch.__version__,
        "networks": len(NETWORKS),
        "quick": QUICK,
        "half": half,
        "threads": torch.get_num_threads(),
    }


def run_stage(stage: Stage, device: torch.device, child: Answering) -> None:
    if stage.name == "network":
        name, job, samples = NETWORKS[stage.network]
        strategy = Strategy(precision=stage.precision, micro_batch=scaled(samples, device), mode=stage.mode)
        seen = observe(job, strategy, device, steps=stage.steps)
        chip = detect_machine(load_catalog(), measured=False).chip
        told = samples_of(name, seen, host_s=host_s(seen.trace, chip, parameters()))
        row = MeasuredRow(
            "step", name, summary(told.step_s), stage.precision, {"micro_batch": strategy.micro_batch}, told.flops
        )
        child.say(row=row.to_dict(), samples=told.to_dict())
        return
    probe = PROBES[stage.name]
    caches = memory.caches_together(detect_cpu(), torch.get_num_threads()) if device.type == "cpu" else {}
    if stage.name in ("memory", "again"):
        probe = partial(memory.rows, beyond_bytes=max(caches.values(), default=0))
    found = []
    for row in probe(stage.budget_s, device, lambda text: child.say(note=text)):
        found.append(row)
        if stage.name != "again":
            child.say(row=row.to_dict())
    if stage.name in ("memory", "again"):
        key = "levels" if stage.name == "memory" else "again"
        child.say(**{key: [asdict(level) for level in memory.levels(found, caches)]})
    if stage.name == "peaks":
        child.say(peaks=[asdict(peak) for peak in peaks.peaks(found)])


def fit(request: Mapping[str, Any]) -> dict[str, Any]:
    """Entries as tables of a calibration file. figures: of the chip, measured; {} keeps the catalog's."""
    torch.set_num_threads(1)  # vectors of a few hundred numbers
    found = calibrate([StepSamples.from_dict(data) for data in request["samples"]], measured_chip(request["figures"]))
    return {
        "entries": {key: to_table(entry) for key, entry in found.entries.items()},
        "scale": dict(found.scale),
        "spreads": [asdict(spread) for spread in found.spreads],
        "errors": dict(found.errors),
    }


def measured_chip(figures: Mapping[str, Any]) -> Chip:
    """The chip of this machine with figures of this measurement, and nothing of an earlier one."""
    chip = detect_machine(load_catalog(), measured=False).chip
    known = {name: figures[name] for name in ("memory_bandwidth_bytes_per_s",) if name in figures}
    return replace(chip, peak_flops_per_s={**chip.peak_flops_per_s, **figures.get("peak_flops_per_s", {})}, **known)


def main() -> None:
    warnings.simplefilter("ignore")
    child = Answering()
    keep_freed_memory()
    request = child.request
    if "samples" in request:
        child.say(**fit(request))
        return
    if "stages" not in request:
        child.say(**survey())
        return
    device = torch.device(request["device"])
    for number, data in enumerate(request["stages"]):
        child.say(begun=number)
        try:
            run_stage(Stage(**data), device, child)
        except (GpuwiseError, RuntimeError, MemoryError, OSError) as error:  # one that fails leaves the others
            child.say(
                note=f"{data['what']} left out: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )


if __name__ == "__main__":
    main()
