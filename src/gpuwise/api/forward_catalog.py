"""The kinds of machine of the whole catalog for forward passes, each with a bound of what it serves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpuwise.api.devices import Device, cheapest_offer, device_of
from gpuwise.api.forward_passes import JobPasses
from gpuwise.api.serving_catalog import ABOUT_THE_JOB, COUNTS, SHOWN, TIMES
from gpuwise.errors import GpuwiseError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes import serving_forward as notes
from gpuwise.serving.choosing import Choice, Contender, choose
from gpuwise.serving.fleets import Fleet
from gpuwise.serving.forward_instance import ForwardInstance, best_batches, rate_bound
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.saturation import Limits

Solved = tuple[ForwardInstance, float]  # an instance with its saturation rate


class ForwardCatalog:
    """The kinds of machine that offers of a catalog sell on demand, with 1, 2, 4 or 8 devices.

    Every device of a machine serves its own share of the requests, so one device is simulated for all numbers of them.

    Attributes:
        solved: the best batches of a chip, and the rate of one device; of those that were simulated.
    """

    def __init__(self, catalog: Catalog, model: JobPasses, load: LoadShape, limits: Limits) -> None:
        self.catalog, self.model, self.load, self.limits = catalog, model, load, limits
        self.solved: dict[str, Solved] = {}
        self._left_out: dict[str, list[str]] = {"nowhere": [], "memory": [], "slow": []}

    def choose(self, rate_per_s: float) -> Choice:
        """The cheapest kinds of machine at a rate, and at every other to TIMES of it.

        Raises UnsupportedError where nothing that is sold serves the model within the limits.
        """
        sold = sorted({offer.chip_id for offer in self.catalog.offers if offer.terms == "on-demand"})
        chips = [self.catalog.chips[id_] for id_ in sold if id_ in self.catalog.chips]
        contenders = [each for chip in chips for each in self._of_chip(chip)]
        choice = choose(contenders, rate_per_s=rate_per_s, up_to=TIMES * rate_per_s, count=SHOWN)
        if not choice.exact:
            reasons = "; ".join(note.text for note in self._left_out_notes())
            raise UnsupportedError(
                f"nothing that offers of the catalog sell serves this: {reasons}",
                ["a longer limit (--slo latency=...), or smaller samples", "other devices: --on"],
            )
        return choice

    def solution(self, contender: Contender) -> Solved:
        """The instance of a machine that was simulated, with its rate."""
        device = device_of(contender.device, self.catalog)
        instance, rate = self.solved[device.chip.id]
        return ForwardInstance(instance.times, instance.policy, device.count), device.count * rate

    def fleets(self, choice: Choice) -> tuple[Fleet, ...]:
        """Those among which the cheapest at every rate is."""
        return tuple(contender.floor for contender in choice.exact)

    def notes(self, choice: Choice) -> tuple[Note, ...]:
        """What was considered, and what was left out."""
        considered = sum(map(len, (choice.exact, choice.fails, choice.dearer)))
        dearer = considered - len(choice.fails) - min(SHOWN, len(choice.exact))
        return (notes.forward_catalog(considered=considered, dearer=dearer), *self._left_out_notes())

    def _left_out_notes(self) -> tuple[Note, ...]:
        makers = {
            "nowhere": notes.forward_runs_nowhere,
            "memory": notes.pass_does_not_fit,
            "slow": notes.pass_is_too_slow,
        }
        return tuple(makers[reason](chips=", ".join(chips)) for reason, chips in self._left_out.items() if chips)

    def _of_chip(self, chip: Chip) -> Iterator[Contender]:
        alone = device_of(chip.id, self.catalog)
        offers = {count: offer for count in COUNTS if (offer := cheapest_offer(self.catalog, chip, count)) is not None}
        if not offers:
            return
        try:
            times = self.model.passes(alone).times
        except GpuwiseError as error:
            if error.code in ABOUT_THE_JOB:
                raise
            self._left_out["memory" if error.code == "does-not-fit" else "nowhere"].append(chip.id)
            return
        rate = rate_bound(times, self.limits)
        if not rate:
            self._left_out["slow"].append(chip.id)
            return
        for count, offer in offers.items():
            name = chip.id if count == 1 else f"{chip.id}:{count}"
            yield Contender(name, offer.usd_per_hour, count * rate, partial(self._exact, alone, count))

    def _exact(self, alone: Device, count: int) -> Iterator[tuple[float, float]]:
        """The saturation rate of so many devices, as both of its bounds."""
        if alone.chip.id not in self.solved:
            self.solved[alone.chip.id] = best_batches(self.model.instances(alone), self.load, self.limits)
        rate = count * self.solved[alone.chip.id][1]
        yield rate, rate
