"""The kinds of instance of the whole catalog, each with a bound of what it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from gpuwise.api.devices import Device, cheapest_offer, device_of
from gpuwise.cost.rates import precisions_of
from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.types import Chip, Offer
from gpuwise.notes import Note, sentences
from gpuwise.notes import serving as notes
from gpuwise.serving.bounds import LoadMeans, SharedIteration, clients_bound, rate_bound, shared_by
from gpuwise.serving.choosing import Choice, Contender, choose
from gpuwise.serving.closed_loop import narrowing_of
from gpuwise.serving.engines import Engine
from gpuwise.serving.fleets import Fleet
from gpuwise.serving.generation import Generation
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.platforms import has_kernels, runs_on
from gpuwise.serving.requests import Requests
from gpuwise.serving.rows import MOST_SHARE, ServingRow
from gpuwise.serving.saturation import Limits
from gpuwise.serving.schedule import CONSTANT, FleetSchedule

COUNTS = (1, 2, 4, 8)  # devices of an instance
BEGIN_WITH = 2  # counts of a chip that are considered before larger ones
TIMES = 10.0  # how far above the user's rate the answer is to stay right
ABOUT_THE_JOB = ("bad-job", "missing-dependency")  # codes of errors that no other device mends
SHOWN = 6  # rows of the cheapest kinds of instance


@dataclass
class CatalogInstances:
    """The kinds of instance that offers of a catalog sell, of 1, 2, 4 or 8 devices.

    Arguments:
        catalog: source of offers.
        engine: that runs there.
        precision_on: that a chip must compute in.
        load: its requests.
        limits: what users accept.
        recorded: how the model generates on one such device.
        instance: an instance of a generation on a device; raises InputError where it does not fit.
        terms: of the offers; on demand by default.
        schedule: when how many instances of a device run under an offer; constant by default.
        weights: name of their format; "" (default) for the type of the activations.
        clients: users of a closed loop, whom instances serve in place of a rate; None (default) without one.

    Attributes:
        instances: by device; those of one device, and those whose queue was simulated.
    """

    catalog: Catalog
    engine: Engine
    precision_on: Callable[[Chip], str]
    load: LoadShape
    limits: Limits
    recorded: Callable[[Device], Generation]
    instance: Callable[[Device, Generation], Instance]
    terms: str = "on-demand"
    schedule: Callable[[Device, Offer], FleetSchedule] = lambda device, offer: CONSTANT
    weights: str = ""
    clients: int | None = None
    instances: dict[str, Instance] = field(default_factory=dict, init=False)
    _left_out: dict[str, list[str]] = field(default_factory=dict, init=False)

    def contenders(self) -> list[Contender]:
        """Those that may serve, smallest counts of each chip first."""
        self._left_out = {"engine": [], "precision": [], "format": [], "memory": [], "heads": [], "slow": []}
        drawn = self.load.at(1.0)
        means = LoadMeans.of(drawn)
        return [each for chip in self._sold() for each in self._of_chip(chip, means, drawn)]

    def notes(self, choice: Choice) -> tuple[Note, ...]:
        """What was considered, and what was left out."""
        considered = sum(map(len, (choice.exact, choice.fails, choice.dearer)))
        dearer = considered - len(choice.fails) - min(SHOWN, len(choice.exact))
        left = {reason: ", ".join(names) for reason, names in self._left_out.items() if names}
        makers = {
            "engine": lambda names: notes.engine_runs_elsewhere(engine=self.engine.name, chips=names),
            "precision": lambda names: notes.no_such_precision(chips=names),
            "format": lambda names: notes.no_kernels_for_format(engine=self.engine.name, format=self.weights, chips=names),
            "memory": lambda names: notes.too_little_memory(instances=names),
            "heads": lambda names: notes.heads_not_shared(instances=names),
            "slow": lambda names: notes.too_slow_for_a_token(instances=names),
        }
        return (
            notes.whole_catalog(considered=considered, dearer=dearer, terms=self.terms),
            *(makers[reason](names) for reason, names in left.items()),
        )

    def _sold(self) -> list[Chip]:
        sold = {offer.chip_id for offer in self.catalog.offers if offer.terms == self.terms}
        chips = []
        for chip in (self.catalog.chips[id_] for id_ in sorted(sold & self.catalog.chips.keys())):
            if chip.kind == "cpu" or not runs_on(self.engine.name, chip):
                self._left_out["engine"].append(chip.id)
            elif (precision := self.precision_on(chip)) not in precisions_of(chip):
                self._left_out["precision"].append(f"{chip.id} ({precision})")
            elif not has_kernels(self.engine.name, self.weights, chip):
                self._left_out["format"].append(chip.id)
            else:
                chips.append(chip)
        return chips

    def _of_chip(self, chip: Chip, means: LoadMeans, drawn: Requests) -> list[Contender]:
        """The first counts that may serve; each of the others takes the place of one that does not."""
        alone = device_of(chip.id, self.catalog)
        generation = self.recorded(alone)
        chained: list[Contender] = []
        iterations: Instance | None = None
        for count in COUNTS:
            offer = cheapest_offer(self.catalog, chip, count, terms=self.terms)
            if offer is None:
                continue
            name = alone.cluster.name if count == 1 else f"{alone.cluster.name}:{count}"
            try:
                self.recorded(device_of(name, self.catalog))
            except UnsupportedError:
                self._left_out["heads"].append(name)
                continue
            try:
                instance = self.instance(alone, shared_by(generation, count))
            except InputError:
                self._left_out["memory"].append(name)
                continue
            iterations = iterations or instance  # their tables serve every count
            if count == 1:
                self.instances[name] = instance
            shared = SharedIteration(iterations.iteration_s, self.engine.costs.iteration_s, count)
            most = rate_bound(replace(instance, iteration_s=shared), means, self.limits)
            if self.clients:
                most = clients_bound(most, drawn, self.limits, most=self.clients)
            if not most:
                self._left_out["slow"].append(name)
                continue
            schedule = self.schedule(alone, offer)
            narrower, share = partial(self._narrower, name), 1.0 if self.clients else MOST_SHARE
            chained.append(Contender(name, offer.usd_per_hour, most, narrower, schedule=schedule, share=share))
        for smaller, larger in zip(chained, chained[BEGIN_WITH:], strict=False):
            smaller.larger = larger
        return chained[:BEGIN_WITH]

    def _narrower(self, name: str) -> Iterator[tuple[float, float]]:
        """Bounds of the saturation rate of a kind of instance, or of its users; (0, 0) where the model does not run there."""
        device = device_of(name, self.catalog)
        try:
            instance = self.instances.get(name) or self.instance(device, self.recorded(device))
        except GpuwiseError as error:
            if error.code in ABOUT_THE_JOB:
                raise
            yield 0.0, 0.0
            return
        self.instances[name] = instance
        if self.clients:
            yield from narrowing_of(instance, self.load, self.limits, self.clients)
        else:
            yield from instance.narrowing(self.load, self.limits)


class RowOf(Protocol):
    """The row of a device by its name. solved: an instance there with its saturation rate; None where it does not fit."""

    def __call__(self, device: str, solved: tuple[Instance, float] | None, /) -> ServingRow: ...


@dataclass(frozen=True)
class CatalogAnswer:
    """What the whole catalog has for a rate.

    Attributes:
        rows: of the SHOWN cheapest kinds of instance, and of those that were simulated and serve no rate.
        fleets: of every kind of instance whose saturation rate is exact: the cheapest of all up to TIMES the rate are there.
            Empty for users of a closed loop.
        notes: what was considered, and what was left out.
    """

    rows: tuple[ServingRow, ...]
    fleets: tuple[Fleet, ...]
    notes: tuple[Note, ...]


def answer_of_catalog(instances: CatalogInstances, row_of: RowOf, *, rate_per_s: float) -> CatalogAnswer:
    """The cheapest kinds of instance of a catalog.

    Raises UnsupportedError where none of them serves the model within the limits.
    """
    demand = instances.clients or rate_per_s
    up_to = None if instances.clients else TIMES * rate_per_s
    choice = choose(instances.contenders(), rate_per_s=demand, up_to=up_to, count=SHOWN)

    def row(contender: Contender) -> ServingRow:
        instance = instances.instances.get(contender.device)
        return row_of(contender.device, None if instance is None else (instance, contender.low))

    left_out = instances.notes(choice)
    if not choice.exact:
        reasons = [f"{row.device}: {row.why_not}" for row in map(row, choice.fails[:2])] or sentences(left_out[1:])
        raise UnsupportedError(
            f"nothing that offers of the catalog sell serves this: {'; '.join(reasons)}",
            ["other limits (--slo), or shorter requests (--input, --output)", "other devices: --on"],
        )
    rows = [row(contender) for contender in (*choice.exact[:SHOWN], *choice.fails)]
    fleets = () if instances.clients else tuple(contender.floor for contender in choice.exact)
    return CatalogAnswer(tuple(rows), fleets, left_out)
