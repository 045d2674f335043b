"""A DEVICE text to what it means: a chip, how many in a machine, how many machines."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import link_inside, most_inside
from gpuwise.hardware.names import split_device
from gpuwise.hardware.package import share_words
from gpuwise.hardware.types import Chip, Machine
from gpuwise.notes import Note
from gpuwise.notes.step import catalog_cpu, part_of_a_package, several_machines, this_machine

MAX_DEVICES = 1_000_000  # more is a slip of the hand: the largest machines built have some hundred thousand


@dataclass(frozen=True)
class DeviceSpec:
    """What a DEVICE text names.

    Attributes:
        cluster: the devices. Of a CPU each has its share of the host's memory, where the machine is known.
        machine: the real one where the text was `here`; None (default) else.
        assumed: what was guessed to understand the text.
        usd_per_hour: price of all devices together; None (default) where no offer was looked for, or none is known.
    """

    cluster: Cluster
    machine: Machine | None = None
    assumed: tuple[Note, ...] = ()
    usd_per_hour: float | None = None

    @property
    def chip(self) -> Chip:
        return self.cluster.chip


def parse_device(text: str, *, catalog: Catalog | None = None) -> DeviceSpec:
    """'rtx-4090', 'h100-sxm:8', 'h100-80gb-sxm:8x4' (4 machines of 8), 'cpu', 'here' -> DeviceSpec.

    More devices than one machine holds are several full machines: 'h100-sxm:64' is 'h100-sxm:8x8', and a note says so.

    Raises InputError for an unreadable count or one that fills no machines, and UnknownNameError for an unknown or
    ambiguous chip.
    """
    catalog = catalog or load_catalog()
    name, count, machines = split_device(text)
    machine: Machine | None = None
    assumed: list[Note] = []
    if name.lower() == "here":
        from gpuwise.hardware.detect import detect_machine

        machine = detect_machine(catalog)
        chip, count = machine.chip, count or round(machine.count)
        assumed.append(this_machine(machine=machine.name))
    elif name.lower() == "cpu":
        from gpuwise.hardware.detect import detect_cpu, most_like_this

        chip = most_like_this(catalog)
        assumed.append(catalog_cpu(chip=chip.id, cpu=detect_cpu().name))
    else:
        chip = catalog.find_chip(name)
    if share := share_words(chip):
        assumed.append(part_of_a_package(chip=chip.id, share=share, devices=chip.devices_per_package))
    count = count or 1
    if machines == 1 and machine is None and (per_machine := full_machines(chip, count, catalog=catalog)):
        machines, count = count // per_machine, per_machine
        assumed.append(several_machines(devices=machines * count, chip=chip.id, machines=machines, per_machine=count))
    check_inside(chip, count, machines=machines, catalog=catalog)
    host_bytes = None if machine is None or chip.memory_bytes is not None else machine.host_memory_bytes
    cluster = Cluster(
        chip,
        count,
        machines,
        inside=link_inside(chip, count, catalog=catalog),
        memory_bytes=None if host_bytes is None else host_bytes // count,
    )
    return DeviceSpec(cluster, machine, tuple(assumed))


def full_machines(chip: Chip, count: int, *, catalog: Catalog) -> int | None:
    """Devices of each machine where `count` of a chip fill several; None where one machine holds them, or they fill none."""
    most = most_inside(chip, catalog=catalog)
    return None if _one_machine_holds(chip, count, catalog=catalog) or count % most else most


def _one_machine_holds(chip: Chip, count: int, *, catalog: Catalog) -> bool:
    if count <= most_inside(chip, catalog=catalog):
        return True
    # e.g. 16 GPUs behind one NVSwitch, more than the usual domain
    return any(offer.chip_id == chip.id and offer.devices >= count for offer in catalog.offers)


def check_inside(chip: Chip, count: int, *, machines: int = 1, catalog: Catalog) -> None:
    """Raises InputError where one machine does not hold `count` of a chip, with the text that names as many in several."""
    if count * machines > MAX_DEVICES:
        raise InputError(f"{count * machines:,} devices are named; at most {MAX_DEVICES:,} make sense.")
    if _one_machine_holds(chip, count, catalog=catalog):
        return
    most = most_inside(chip, catalog=catalog)
    needed = -(-count * machines // most)
    more = "" if most * needed == count * machines else f", {most * needed} devices"
    raise InputError(
        f"no machine holds {count:,} × {chip.id}: at most {most:,}.",
        [f"write {chip.id}:{most}x{needed} ({needed:,} machines of {most}{more})"],
    )
