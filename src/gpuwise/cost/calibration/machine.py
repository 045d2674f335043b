"""The calibration file of one machine, which `gpuwise measure` writes: entries of level "machine", and the spread of steps."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from gpuwise.cost.calibration.files import CalibrationFile, file_of, tables
from gpuwise.cost.calibration.steps import StepSpread, spread_from
from gpuwise.errors import FileFormatError
from gpuwise.hardware.measured_chip import SEAL, cache_entry, is_as_written
from gpuwise.hardware.toml_cache import cached_tables
from gpuwise.hardware.tomlfile import MAX_BYTES
from gpuwise.plain_files import read_regular, reason_of

LEVEL = "machine"
# Tables of the file that are read elsewhere: the chip's figures (gpuwise.hardware.measured_chip), and notes for people.
OTHERS = ("chip", "measured", SEAL)


@dataclass(frozen=True)
class MachineFile:
    """The entries of a machine in `file`, and the spreads of steps that use them."""

    file: CalibrationFile
    spreads: tuple[StepSpread, ...]


def parse_machine(data: dict[str, object], name: str) -> MachineFile:
    """A machine's file from its tables. Raises FileFormatError naming it."""
    if not is_as_written(data):
        raise FileFormatError(f"{name}: was changed after it was written.", WAYS_OUT)
    rows = data.get("spread", [])
    if not isinstance(rows, list):
        raise FileFormatError(f"{name}: [[spread]] is not a list of tables.", WAYS_OUT)
    spreads = tuple(spread_from(row, f"{name}: row {number} of [[spread]]") for number, row in enumerate(rows, 1))
    file = file_of({key: value for key, value in data.items() if key not in (*OTHERS, "spread")}, name)
    if file.level != LEVEL or any(spread.level != LEVEL for spread in spreads):
        raise FileFormatError(f"{name}: is of level {file.level!r}, the file of a machine of level {LEVEL!r}.", WAYS_OUT)
    return MachineFile(file, spreads)


WAYS_OUT = ("measure again: gpuwise measure",)


def machine_file(path: str) -> MachineFile | None:
    """The current file at a path; None, with a warning, if it cannot be read."""
    file = read_machine(path)
    if isinstance(file, MachineFile):
        return file
    warnings.warn(
        f"what was measured on this machine is left out: {file}; `gpuwise measure` writes it anew",
        stacklevel=2,
    )
    return None


def read_machine(path: str) -> MachineFile | str:
    """The current file at a path, or why it cannot be used."""
    try:
        return _read(path, Path(path).stat().st_mtime_ns)
    except FileFormatError as error:
        return error.what.rstrip(".")
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: {reason_of(error)}"


@lru_cache(maxsize=8)
def _read(path: str, changed_ns: int) -> MachineFile:
    return parse_machine(
        tables(read_regular(path, limit_bytes=MAX_BYTES), path, partial(cached_tables, cache_entry(Path(path)))), path
    )
