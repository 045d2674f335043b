"""The user's file of what machines of their own cost (`--costs FILE`).

Keys: electricity (dollars a kWh), purchase (dollars), host_watts, psu_efficiency, pue, hours_a_week, lifetime_years, resale (a
share of the purchase). They hold for every machine; a table [machine."rtx-4090:2"] has those of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict

from gpuwise.errors import GpuwiseError
from gpuwise.plan.economics.owned import WEEK_HOURS, MachineCosts, OwnedCosts
from gpuwise.plan.user_file import UserTable, read_user_file

MOST_USD = 1e9
MOST_USD_PER_KWH = 1000.0
KEYS = ("purchase", "host_watts", "psu_efficiency", "pue", "hours_a_week", "lifetime_years", "resale")
FILE_KEYS = (*KEYS, "electricity", "machine")


class _Figures(TypedDict, total=False):
    purchase_usd: float
    host_w: float
    psu_efficiency: float
    pue: float
    hours_a_week: float
    lifetime_years: float
    resale_share: float


def costs_of(
    path: str | None, *, purchase_usd: float | None, machine_of: Callable[[str], tuple[str, int]]
) -> tuple[MachineCosts, float | None]:
    """The costs of the user's machines, and the price of a kWh in the file (None where it has none).

    Arguments:
        path: of the file; None for none.
        purchase_usd: --purchase, for machines whose table names none.
        machine_of: (chip id, devices) of a name such as "rtx-4090:2". Raises GpuwiseError for one that is none.

    Raises FileFormatError.
    """
    usual = OwnedCosts(purchase_usd=purchase_usd)
    if path is None:
        return MachineCosts(usual), None
    file = read_user_file(path)
    file.check_keys(FILE_KEYS)
    costs, usd_per_kwh = costs_in(file, machine_of=machine_of)
    if purchase_usd is not None:  # the flag is stronger than the file
        costs = replace(costs, usual=replace(costs.usual, purchase_usd=purchase_usd))
    return costs, usd_per_kwh


def costs_in(file: UserTable, *, machine_of: Callable[[str], tuple[str, int]]) -> tuple[MachineCosts, float | None]:
    """The costs in a file that may hold more, and its price of a kWh. Arguments and errors as for costs_of."""
    usual, by_name = _with(OwnedCosts(), file), {}
    for name in file.names("machine"):
        table = file.table("machine", name)
        table.check_keys(KEYS)
        try:
            machine = machine_of(name)
        except GpuwiseError as error:
            raise table.fail(None, f"{name!r} is no machine: {error.what.rstrip('.')}", *error.ways_out) from None
        by_name[machine] = _with(usual, table)
    return MachineCosts(usual, by_name), file.number("electricity", least=0, most=MOST_USD_PER_KWH)


def _with(costs: OwnedCosts, table: UserTable) -> OwnedCosts:
    """The costs with the figures that a table names."""
    figures: dict[str, float | None] = {
        "purchase_usd": table.number("purchase", least=0, most=MOST_USD),
        "host_w": table.number("host_watts", least=0, most=100_000),
        "psu_efficiency": table.number("psu_efficiency", least=0.3, most=1),
        "pue": table.number("pue", least=1, most=5),
        "hours_a_week": table.number("hours_a_week", least=0, most=WEEK_HOURS, above=True),
        "lifetime_years": table.number("lifetime_years", least=0.1, most=20),
        "resale_share": table.number("resale", least=0, most=1),
    }
    changes = _Figures(**{name: value for name, value in figures.items() if value is not None})  # type: ignore[typeddict-item]
    return replace(costs, **changes)
