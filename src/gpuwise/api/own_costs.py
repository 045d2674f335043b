"""What the user's own machines cost, from --purchase, --costs and --electricity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuwise.errors import InputError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.device import parse_device
from gpuwise.units import parse_usd

if TYPE_CHECKING:
    from gpuwise.plan.economics.owned import MachineCosts


def own_costs(requested: Mapping[str, object]) -> tuple[MachineCosts, float]:
    """The costs of the user's machines, and dollars a kWh. A flag is stronger than the file.

    Raises InputError for a senseless price, FileFormatError for a mistake in the file.
    """
    from gpuwise.plan.economics.costs_file import MOST_USD, costs_of
    from gpuwise.plan.economics.owned import USD_PER_KWH

    path, purchase, electricity = requested.get("costs"), requested.get("purchase"), requested.get("electricity")
    purchase_usd = None if purchase is None else parse_usd(str(purchase))
    if purchase_usd is not None and not 0 <= purchase_usd <= MOST_USD:
        raise InputError(f"a machine for {purchase} dollars is no sensible price: at most {MOST_USD:,.0f}.")
    costs, in_file = costs_of(None if path is None else str(path), purchase_usd=purchase_usd, machine_of=machine_of)
    if isinstance(electricity, int | float):
        return costs, float(electricity)
    return costs, USD_PER_KWH if in_file is None else in_file


def machine_of(name: str) -> tuple[str, int]:
    """(chip id, devices) of "rtx-4090:2". Raises UnknownNameError or InputError."""
    spec = parse_device(name, catalog=load_catalog())
    return spec.chip.id, spec.cluster.devices
