"""Computers that cards are bought with, what cards bring when they are sold, and what a wall socket gives: hosts.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from gpuwise.hardware.tomlfile import read_toml
from gpuwise.hardware.types import Chip

DATA = Path(__file__).parent / "data" / "hosts.toml"
_KINDS = {"gpu-consumer": "consumer", "gpu-workstation": "workstation"}  # others sell as data-centre cards do


@dataclass(frozen=True)
class HostComputer:
    """A computer without its cards.

    Attributes:
        id: its name in hosts.toml.
        name: in words.
        most_cards: cards that it takes.
        usd: its price without cards.
        host_w: power of everything but the cards while training, behind the power supply.
        psu_efficiency: share of the power at the wall that leaves the power supply.
        cooling: "own-fan", "passive" (cards that a server's fans cool) or "module" (SXM and OAM).
        noise: in words.
        assumed: names of the figures without a source.
        source, as_of: of the others.
    """

    id: str
    name: str
    most_cards: int
    usd: float
    host_w: float
    psu_efficiency: float
    cooling: str
    noise: str
    assumed: tuple[str, ...]
    source: str
    as_of: str


@dataclass(frozen=True)
class Circuit:
    """What a household's wall socket gives for hours. watts: at the wall. name: in words. source: of the figure."""

    watts: float
    name: str
    source: str


@cache
def _rows(group: str) -> dict[str, dict[str, str | float | list[str]]]:
    return cast(dict[str, dict[str, str | float | list[str]]], read_toml(DATA, entry="hosts")[0][group])


def _host(name: str, row: dict[str, str | float | list[str]]) -> HostComputer:
    fields = {**row, "id": name, "assumed": tuple(cast(list[str], row["assumed"]))}
    return HostComputer(**fields)  # type: ignore[arg-type]  # tests/unit/test_plan_owned.py checks the file


@cache
def hosts() -> dict[str, HostComputer]:
    """All hosts by id."""
    return {name: _host(name, row) for name, row in _rows("host").items()}


@cache
def circuits() -> dict[str, Circuit]:
    """The circuits by region, "us" and "eu"."""
    return {
        name: Circuit(float(cast(float, row["watts"])), str(row["name"]), str(row["source"]))
        for name, row in _rows("circuit").items()
    }


def cooling_of(chip: Chip) -> str:
    """How a chip is cooled, as HostComputer.cooling: data-centre cards have no fan, and modules sit on a board of their own."""
    if chip.kind in _KINDS:
        return "own-fan"
    return "module" if any(word in chip.id for word in ("-sxm", "mi3", "mi250", "gb200", "gb300", "gh200")) else "passive"


def host_for(chip: Chip, cards: int) -> HostComputer | None:
    """The cheapest host that takes so many of these cards; None where none does."""
    fitting = [host for host in hosts().values() if host.cooling == cooling_of(chip) and host.most_cards >= cards]
    return min(fitting, key=lambda host: host.usd, default=None)


def kept_a_year(kind: str) -> float:
    """The share of its price that a card (a chip's kind) or a "host" keeps over a year."""
    row = _rows("resale")["host" if kind == "host" else _KINDS.get(kind, "datacenter")]
    return float(cast(float, row["kept_a_year"]))


def machines_to_compare() -> tuple[str, ...]:
    """The machines that buying advice compares by default, "rtx-4090:2"."""
    return tuple(cast(list[str], cast(object, _rows("machines")["names"])))
