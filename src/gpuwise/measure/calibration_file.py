"""The calibration file of this machine, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from gpuwise.atomic import written_whole
from gpuwise.cost.calibration.files import SCHEMA
from gpuwise.cost.calibration.machine import LEVEL, parse_machine
from gpuwise.errors import InputError
from gpuwise.measure.messages import FitAnswer

HEAD = "# What `gpuwise measure` found on this machine; forecasts on `here` use it. Remove the file to forget it.\n"
WAYS_OUT = ("choose a folder that can be written: GPUWISE_CONFIG_DIR=folder gpuwise measure", "make the folder writable")


def check_writable(path: Path) -> None:
    """Makes the folder. Raises InputError where the file could not be written, before minutes are spent on measuring."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with written_whole(path.with_name(f".{path.stem}.probe")) as file:
            file.write(b"\n")
        path.with_name(f".{path.stem}.probe").unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def write(path: Path, chip: str, fitted: FitAnswer, figures: Mapping[str, object], measured: Mapping[str, object]) -> None:
    """Writes it.

    Arguments:
        chip: id of this machine's chip. fitted: entries, scale and spreads as tables (gpuwise.measure.worker.fit). figures: of
            the chip, measured. measured: when, how and with what, for people.

    Raises InputError where it cannot be written, FileFormatError where forecasts could not read it.
    """
    data = {"schema": SCHEMA, "level": LEVEL, "of": chip, "measured": dict(measured), "chip": dict(figures)}
    tables = {"scale": fitted["scale"], "spread": fitted["spreads"], "entry": fitted["entries"]}
    data |= {name: table for name, table in tables.items() if table}
    parse_machine(data, path.name)
    try:
        with written_whole(path) as file:
            file.write((HEAD + tomli_w.dumps(data)).encode())
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> InputError:
    why = os.strerror(error.errno) if error.errno else str(error)
    return InputError(f"the calibration of this machine cannot be written to {path.parent}: {why}.", WAYS_OUT)
