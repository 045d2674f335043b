"""doctor: inspects this installation and this machine, without heavy imports."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from gpuwise.cost.calibration.machine import read_machine
from gpuwise.errors import GpuwiseError
from gpuwise.hardware import Catalog, load_catalog
from gpuwise.hardware.detect import DetectedMachine, detect, machine_key, machine_of
from gpuwise.hardware.measured_chip import calibration_path, measured_when
from gpuwise.notes import Note
from gpuwise.notes import installation as installation_notes
from gpuwise.results.installation import Installation
from gpuwise.results.listings import FetchedList
from gpuwise.trace.presets import load_preset
from gpuwise.trace.presets.table import PRESETS
from gpuwise.version import __version__

PACKAGES = ("numpy", "click", "rich", "torch", "torchvision", "safetensors", "transformers", "timm", "keras")
CUDA_LIBRARY = b"libtorch_cuda.so"


def doctor() -> Installation:
    """Versions, devices, catalog dates, configuration files and presets of this installation."""
    return inspect_installation(load_catalog())


def inspect_installation(catalog: Catalog) -> Installation:
    """Inspects versions, devices, catalog and presets. Raises FileFormatError for a bad catalog file."""
    detected, dates = detect(), sorted(offer.as_of for offer in catalog.offers if offer.as_of)
    machine, key = machine_of(detected.cpu, detected.gpus, catalog), machine_key(detected)
    kept = calibration_path(key)
    damage = read_machine(str(kept)) if kept.exists() else None
    presets = {name: _recorded_with(name) for name in PRESETS}
    versions: dict[str, str | None] = {"gpuwise": __version__, "python": platform.python_version()}
    versions |= {name: _version(name) for name in PACKAGES}
    return Installation(
        versions=versions,
        machine=machine.name,
        device=machine.chip.id,
        cpu=asdict(detected.cpu),
        gpus=tuple(f"{name} x {count}" for name, count in Counter(gpu.name for gpu in detected.gpus).items()),
        chips=len(catalog.chips),
        links=len(catalog.links),
        offers=len(catalog.offers),
        prices_from=dates[0] if dates else "",
        prices_to=dates[-1] if dates else "",
        stale_offers=sum(offer.stale for offer in catalog.offers),
        unverified=sum(len(chip.unverified) for chip in catalog.chips.values()),
        config_files=tuple(str(path) for path in catalog.user_files),
        presets=presets,
        problem_notes=(
            *_problems(versions, presets, detected),
            *((installation_notes.measurement_left_out(reason=damage),) if isinstance(damage, str) else ()),
            *(installation_notes.price_list_ignored(reason=reason) for reason in catalog.ignored_lists),
        ),
        machine_key=key,
        measured="" if damage is None or isinstance(damage, str) else measured_when(kept),
        detected=detected.to_dict(),
        price_lists=tuple(
            FetchedList(
                each.provider, each.source_text, each.as_of, len(each.offers) or each.number_of_rates, each.quarantined_rows
            )
            for each in catalog.refreshed_lists
        ),
    )


def _version(package: str) -> str | None:
    """The version of a package from its metadata, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torchvision_misses_cuda() -> bool:
    """Whether torchvision's operators need PyTorch's CUDA library and it is missing. Nothing is imported."""
    specs = [find_spec(name) for name in ("torch", "torchvision")]
    torch, torchvision = (Path(spec.origin).parent if spec and spec.origin else None for spec in specs)
    if torch is None or torchvision is None or not (torch / "lib").is_dir():
        return False
    operators = next(torchvision.glob("_C*.so"), None)
    wants = operators is not None and CUDA_LIBRARY in operators.read_bytes()
    return wants and not (torch / "lib" / CUDA_LIBRARY.decode()).exists()


def _recorded_with(name: str) -> str | None:
    """The PyTorch version of the first recording that loads."""
    for precision in ("fp32", "amp-bf16"):
        try:
            family = load_preset(name, precision=precision, recompute="none", mode="train")
        except GpuwiseError:
            continue
        if family is not None:
            return family.header.torch_version
    return None


def _problems(versions: Mapping[str, str | None], presets: Mapping[str, str | None], detected: DetectedMachine) -> list[Note]:
    problems = []
    if versions["torch"] is None:
        problems.append(installation_notes.no_pytorch())
    elif detected.gpus and (versions["torch"] or "").endswith("+cpu"):
        problems.append(installation_notes.pytorch_for_cpus())
    if _torchvision_misses_cuda():
        problems.append(installation_notes.torchvision_for_cuda())
    if missing := [name for name, version in presets.items() if version is None]:
        problems.append(installation_notes.presets_not_recorded(presets=", ".join(missing)))
    if sys.flags.optimize:
        problems.append(installation_notes.checks_removed())
    return problems
