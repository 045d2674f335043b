"""What a machine measured for the claims, and its file. No PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuwise.atomic import written_whole
from gpuwise.errors import InputError

RESULTS = Path(__file__).parents[1] / "results" / "claims_measured.json"


@dataclass(frozen=True)
class Machine:
    """Where it was measured; threads: of PyTorch."""

    cpu: str
    cores: int
    threads: int
    torch: str


@dataclass(frozen=True)
class Measured:
    """One benchmark.

    Attributes:
        unit: "s" or "bytes"; bytes are counted in one round.
        value: the median of the rounds; low, high: 10th and 90th percentile; least: the shortest.
        flops, items: of a run, where that means something; counted: what the items are.
        forecast: what gpuwise computed for this machine when it was measured, in `unit`; None where it cannot.
    """

    what: str
    unit: str
    value: float
    low: float
    high: float
    least: float
    rounds: int
    date: str
    flops: float = 0.0
    items: int = 0
    counted: str = ""
    forecast: float | None = None


@dataclass(frozen=True)
class Results:
    machine: Machine | None = None
    rows: Mapping[str, Measured] = field(default_factory=dict)


def load(path: Path = RESULTS) -> Results:
    """What was kept; empty where nothing was."""
    if not path.exists():
        return Results()
    data = json.loads(path.read_text(encoding="utf-8"))
    return Results(Machine(**data["machine"]), {name: Measured(**row) for name, row in data["rows"].items()})


def save(machine: Machine, rows: Mapping[str, Measured], *, whole: bool, path: Path = RESULTS) -> None:
    """Keeps rows; where they are not all (`whole` False), beside those of the same machine.

    Raises InputError where the others are of another machine.
    """
    before = load(path)
    if not whole and before.machine not in (None, machine):
        raise InputError(
            f"the figures kept are of another machine or PyTorch: {before.machine}.", ["measure all: leave out --only"]
        )
    together = dict(rows) if whole else {**before.rows, **rows}
    data = {"machine": asdict(machine), "rows": {name: asdict(row) for name, row in sorted(together.items())}}
    path.parent.mkdir(exist_ok=True)
    with written_whole(path) as file:
        file.write((json.dumps(data, indent=1) + "\n").encode())
