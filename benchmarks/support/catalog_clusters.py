"""The clusters that the catalog's offers make: each machine size of a chip, alone and by powers of two of machines."""

from __future__ import annotations

from gpuwise.api.devices import device_of
from gpuwise.cost.rates import why_not
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster


def clusters_of(catalog: Catalog, *, most_devices: int) -> list[Cluster]:
    """All clusters of at most so many accelerators, in the order of their names.

    Machines whose network the catalog does not know stay alone.
    """
    machines = {
        (offer.chip_id, int(offer.devices))
        for offer in catalog.offers
        if offer.devices >= 1 and offer.devices == int(offer.devices) and _trains(catalog, offer.chip_id)
    }
    clusters = []
    for chip, devices in sorted(machines):
        count = 1
        while devices * count <= most_devices:
            name = f"{chip}:{devices}" if count == 1 else f"{chip}:{devices}x{count}"
            try:
                clusters.append(device_of(name, catalog).cluster)
            except GpuwiseError:
                break
            count *= 2
    return clusters


def _trains(catalog: Catalog, chip_id: str) -> bool:
    chip = catalog.chips.get(chip_id)
    return chip is not None and chip.kind != "cpu" and why_not(chip, mode="train") is None
