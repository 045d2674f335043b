"""A machine that one can buy: chips, the computer around them, price, power, and what else decides about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.hardware.hosts import HostComputer, circuits, host_for
from gpuwise.hardware.types import Chip
from gpuwise.plan.economics.owned import DEFAULT_TDP_W, MachineCosts, OwnedCosts
from gpuwise.units import format_usd

_LONG_RUN_H = 24.0  # from here on a flipped bit costs enough to name ECC


@dataclass(frozen=True)
class MachineForSale:
    """Chips in a computer.

    Attributes:
        chip, count: its chips.
        host: the computer.
        costs: with its purchase price.
        price_words: where that is from.
    """

    chip: Chip
    count: int
    host: HostComputer
    costs: OwnedCosts
    price_words: str

    @property
    def purchase_usd(self) -> float:
        return self.costs.purchase_usd or 0.0

    @property
    def peak_w(self) -> float:
        """Watts at the wall with every chip at its board power."""
        return self.costs.wall_w((self.chip.tdp_w or DEFAULT_TDP_W) * self.count) / self.costs.pue

    def remarks(self, *, longest_h: float, circuit: str) -> tuple[str, ...]:
        """What else decides, in sentences.

        Arguments:
            longest_h: hours of the longest run on it.
            circuit: of circuits(); "" names those of both regions where they are too weak.
        """
        words = []
        if self.chip.ecc is False and longest_h >= _LONG_RUN_H:
            words.append(
                f"no ECC: a flipped bit goes unseen in a run of {longest_h:,.0f} h; save checkpoints and watch the loss"
            )
        if self.chip.vendor == "NVIDIA" and self.chip.kind == "gpu-consumer":
            # NVIDIA, License for Customer Use of GeForce Software, 2.1.3, "No Datacenter Deployment".
            words.append("GeForce driver: its licence leaves out data centres, so it has to stand in an office or at home")
        for name, socket in circuits().items():
            if circuit in ("", name) and self.peak_w > socket.watts:
                words.append(
                    f"{self.peak_w / 1000:.2g} kW at the wall is more than {socket.name}: {socket.watts / 1000:.2g} kW"
                )
        words.append(f"{self.host.name}: {self.host.noise}")
        words.append(self.price_words)
        return tuple(words)


def machine_for_sale(chip: Chip, count: int, costs: MachineCosts) -> MachineForSale | str:
    """The machine, or why it cannot be bought, in words."""
    own, host = costs.of(chip.id, count), host_for(chip, count)
    if host is None:
        return f"no computer of the catalog takes {count} x {chip.id}"
    usual = OwnedCosts()  # what the user says is stronger than the catalog
    if own.host_w == usual.host_w:
        own = replace(own, host_w=host.host_w)
    if own.psu_efficiency == usual.psu_efficiency:
        own = replace(own, psu_efficiency=host.psu_efficiency)
    if own.purchase_usd is not None:
        return MachineForSale(chip, count, host, own, f"price: {format_usd(own.purchase_usd)}, as you say")
    each_usd = chip.street_price_usd or chip.msrp_usd
    if each_usd is None:
        return f'no price of {chip.id} is known: [machine."{chip.id}:{count}"] with purchase = ...'
    figure = "street_price_usd" if chip.street_price_usd else "msrp_usd"
    source = chip.source_of(figure)
    kind = "in shops or used" if chip.street_price_usd else "the maker's, which shops may exceed"
    guess = ", a guess" if "usd" in host.assumed else ""
    words = (
        f"price: {count} x {format_usd(each_usd)} ({kind}; {source.text}), {format_usd(host.usd)} for the {host.name}{guess}"
    )
    return MachineForSale(chip, count, host, replace(own, purchase_usd=each_usd * count + host.usd), words)
