"""The calibration file of this machine, written atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from gpuwise.atomic import written_whole
from gpuwise.cost.calibration.files import SCHEMA
from gpuwise.cost.calibration.machine import LEVEL, parse_machine
from gpuwise.errors import InputError
from gpuwise.hardware.measured_chip import SEAL, seal_of
from gpuwise.measure.messages import FitAnswer
from gpuwise.plain_files import parse_toml

HEAD = "# What `gpuwise measure` found on this machine; forecasts on `here` use it. Remove the file to forget it.\n"
WAYS_OUT = ("choose a folder that can be written: GPUWISE_CONFIG_DIR=folder gpuwise measure", "make the folder writable")


def check_writable(path: Path) -> None:
    """Makes the folder. Raises InputError when the file is not writable, before minutes are spent on measuring."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with written_whole(path.with_name(f".{path.stem}.probe")) as file:
            file.write(b"\n")
        path.with_name(f".{path.stem}.probe").unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def write(path: Path, chip: str, fitted: FitAnswer, figures: Mapping[str, object], measured: Mapping[str, object]) -> None:
    """Writes the calibration file.

    Arguments:
        path: path of the file.
        chip: id of this machine's chip.
        fitted: entries, scale and spreads as tables (gpuwise.measure.worker.fit).
        figures: measured figures of the chip.
        measured: date, method and versions of the measurement, for readers of the file.

    Raises InputError when the file cannot be written, FileFormatError when forecasts could not read it.
    """
    data = {"schema": SCHEMA, "level": LEVEL, "of": chip, "measured": dict(measured), "chip": dict(figures)}
    tables = {"scale": fitted["scale"], "spread": fitted["spreads"], "entry": fitted["entries"]}
    data |= {name: table for name, table in tables.items() if table}
    parse_machine(data, path.name)
    text = tomli_w.dumps({SEAL: seal_of(parse_toml(tomli_w.dumps(data))), **data})
    try:
        with written_whole(path) as file:
            file.write((HEAD + text).encode())
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> InputError:
    why = os.strerror(error.errno) if error.errno else str(error)
    return InputError(f"the calibration of this machine cannot be written to {path.parent}: {why}.", WAYS_OUT)
