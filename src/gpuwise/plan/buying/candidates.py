"""The candidate machines: offers, the user's own machines and this one, each with its terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpuwise.cost.rates import why_not
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.device import DeviceSpec, parse_device
from gpuwise.hardware.links import link_inside
from gpuwise.hardware.providers import provider
from gpuwise.hardware.types import Chip, Machine, Offer, Source
from gpuwise.notes import Note, rejections
from gpuwise.notes import run as run_notes
from gpuwise.plan.buying.named import NamedDevices
from gpuwise.plan.buying.regions import CheapestRegions
from gpuwise.plan.economics import owned
from gpuwise.plan.economics.owned import OwnedCosts, OwnedRate
from gpuwise.plan.economics.rented import rental
from gpuwise.plan.economics.terms import Terms
from gpuwise.plan.request import Request
from gpuwise.plan.space import legal
from gpuwise.plan.time_and_money import instance_words

Key = tuple[str, float, str | None, int | None, str | None]  # chip, devices, link, memory and network of the cluster


@dataclass(frozen=True)
class Candidate:
    """An offer with its chip, its devices as a cluster, its terms and the assumptions about it.

    Attributes:
        rented: how many of the offer's machines run the job together.
        rate: of a machine of the user's, whose electricity depends on the job; None for a rented one.
    """

    offer: Offer
    chip: Chip
    cluster: Cluster
    terms: Terms
    assumptions: tuple[Note, ...] = ()
    rented: int = 1
    rate: OwnedRate | None = None

    @property
    def devices(self) -> float:
        """Devices of all machines; a fraction for a slice of one."""
        return self.offer.devices * self.rented

    @cached_property
    def key(self) -> Key:
        """Identifies the hardware: a strategy is priced once for all candidates with equal keys."""
        link = self.cluster.inside.id if self.cluster.inside else None
        network = f"{self.cluster.machines} x {self.cluster.between.id}" if self.cluster.between else None
        return self.chip.id, self.devices, link, self.cluster.capacity_bytes, network

    def __str__(self) -> str:
        offer = self.offer
        instance = instance_words(offer, self.devices)
        return f"{self.devices:g} × {self.chip.id} at {offer.provider} ({instance}, {offer.terms})"


def candidates(
    request: Request, offers: Sequence[Offer], catalog: Catalog, *, parameters: int
) -> list[Candidate | tuple[Offer, Note]]:
    """All offers and machines to consider: a Candidate each, or (offer, reason) if it is rejected before pricing."""
    named = NamedDevices.of(request, catalog)
    named.check_counts(offers, catalog)
    considered: list[Candidate | tuple[Offer, Note]] = []
    for offer in offers:
        chip = catalog.chips.get(offer.chip_id)
        if not named.includes(offer):
            continue
        reason = rejections.chip_not_in_catalog() if chip is None else _reject(request, offer, chip)
        if reason is not None:
            considered.append((offer, reason))
        elif chip is not None:
            considered.append(_rented(request, offer, chip, catalog, parameters=parameters))
    cheapest = CheapestRegions(item.offer for item in considered if isinstance(item, Candidate))
    considered = [
        (item.offer, rejections.cheaper_region()) if isinstance(item, Candidate) and cheapest.undercut(item.offer) else item
        for item in considered
    ]
    for name, count in request.own:
        spec = parse_device(f"{name}:{count}", catalog=catalog)
        chip = spec.chip
        for devices in sorted({1, count}):
            machine = Machine(chip, devices, link_inside(chip, devices, catalog=catalog), name=f"own {chip.id}:{devices}")
            considered.append(_owned(request, machine, provider="own", assumed=spec.assumed, share=devices / count))
    for spec in request.own_clusters:
        considered.append(_owned_cluster(request, spec))
    if named.here is not None:
        considered.append(_owned(request, named.here, provider="here"))
    return [_check_owned(item) for item in considered]


def _check_owned(item: Candidate | tuple[Offer, Note]) -> Candidate | tuple[Offer, Note]:
    if not isinstance(item, Candidate) or item.offer.terms != "owned":
        return item
    reason = why_not(item.chip, mode="train")
    return item if reason is None else (item.offer, reason)


def _reject(request: Request, offer: Offer, chip: Chip) -> Note | None:
    if request.spot is not None and (offer.terms == "spot") != request.spot:
        return rejections.spot_not_wanted() if offer.terms == "spot" else rejections.not_spot()
    if offer.devices / chip.devices_per_package > request.max_devices:
        return rejections.too_many_devices(most=request.max_devices)
    if offer.devices > 1 and offer.devices != int(offer.devices):
        return rejections.fractional_devices()
    return why_not(chip, mode="train") or request.offers.why_not(offer, chip)


def _rented(request: Request, offer: Offer, chip: Chip, catalog: Catalog, *, parameters: int) -> Candidate:
    share = min(offer.devices, 1.0)
    part, count = legal.slice_of(chip, share), max(1, int(offer.devices))
    assumed = []
    capacity = None
    if chip.kind == "cpu":
        capacity = offer.host_memory_bytes
        assumed.append(run_notes.priced_as_one_socket(chip=chip.id))
    if share < 1:
        assumed.append(run_notes.share_of_a_chip(share=share, chip=chip.id))
    terms, more = rental(offer, parameters=parameters, interruptions_per_day=request.interruptions_per_day)
    where = provider(offer.provider)
    if chip.kind not in ("cpu", "tpu") and (quota := where.quota(offer.terms)):
        assumed.append(run_notes.more_than_the_quota(provider=offer.provider, quota=quota, quota_raise=where.quota_raise))
    share_paid, discount = request.offers.price_share(offer)
    terms = replace(terms, usd_per_hour=share_paid * terms.usd_per_hour)
    link = link_inside(offer, count, catalog=catalog)
    cluster = Cluster(part, count, inside=link, memory_bytes=capacity)
    return Candidate(offer, chip, cluster, terms, tuple(assumed + more + discount))


def _owned(
    request: Request,
    machine: Machine,
    *,
    provider: str,
    assumed: Sequence[Note] = (),
    machines: int = 1,
    share: float = 1.0,
) -> Candidate:
    """A machine of the user's, or several equal ones: they cost their electricity, and their purchase if the user counts it.

    share: of a machine's devices that work.
    """
    chip = machine.chip
    if machine.count != int(machine.count) or machine.count < 1:
        raise InputError(f"a machine of {machine.count:g} devices cannot be owned.", ["write it like rtx-4090:2"])
    count = int(machine.count)
    guess_w = owned.DEFAULT_CPU_TDP_W if chip.kind == "cpu" else owned.DEFAULT_TDP_W
    costs = request.costs.of(chip.id, round(count / share)) if provider == "own" else OwnedCosts()
    assumed_w = (chip.tdp_w or guess_w) * owned.UTILISATION * count * machines
    rate = OwnedRate(costs, chip.kind, request.usd_per_kwh, assumed_w, machines, share)
    assumptions = list(assumed)
    bought = chip.street_price_usd or chip.msrp_usd
    if costs.purchase_usd is not None:
        assumptions.append(
            run_notes.purchase_counted(
                usd=costs.purchase_usd,
                resale_usd=costs.purchase_usd - costs.lost_usd(costs.purchase_usd, chip.kind),
                lifetime_years=costs.lifetime_years,
                hours_a_week=costs.hours_a_week,
                usd_per_hour=costs.capital_usd_per_hour(chip.kind),
            )
        )
    elif bought and provider == "own":
        assumptions.append(run_notes.purchase_not_counted(count=count * machines, chip=chip.id, usd=bought * count * machines))
    name = machine.name or f"{provider} {chip.id}:{count}"
    offer = Offer(
        provider,
        name,
        "here",
        chip.id,
        0 if chip.kind == "cpu" and count * machines == 1 else count * machines,
        "owned",
        rate.usd_per_hour(None),
        host_memory_bytes=machine.host_memory_bytes,
        source=Source("electricity, and the purchase if it is counted", ""),
    )
    capacity = machine.host_memory_bytes if chip.kind == "cpu" else None
    terms = Terms("owned", rate.usd_per_hour(None), setup_s=0.0, minimum_s=0.0)
    cluster = Cluster(chip, count, inside=machine.link, memory_bytes=capacity)
    return Candidate(offer, chip, cluster, terms, tuple(assumptions), rate=rate)


def _owned_cluster(request: Request, spec: DeviceSpec) -> Candidate:
    """Several of the user's machines: the electricity of all, and the network between them."""
    cluster = spec.cluster
    machine = Machine(cluster.chip, cluster.devices_per_machine, cluster.inside, name=f"own {cluster.name}")
    assumed = (*spec.assumed, run_notes.started_on_each_machine(machines=cluster.machines, ranks=cluster.devices_per_machine))
    owned_ones = _owned(request, machine, provider="own", assumed=assumed, machines=cluster.machines)
    return replace(owned_ones, cluster=cluster)
