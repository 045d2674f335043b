"""What became of a refresh: which list was taken, which stayed, and which prices moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

# Rows of a list: (provider, instance, region), and prices by terms.
KeyedPrices: TypeAlias = Sequence[tuple[tuple[str, str, str], Mapping[str, float]]]
TAKEN, UNCHANGED, KEPT_LAST, FAILED = "taken", "unchanged", "kept-last", "failed"


@dataclass(frozen=True)
class PriceMove:
    """A price that differs between two lists, in dollars an hour of the whole row.

    Attributes:
        provider, instance, region: of the row.
        terms: kind of terms.
        before_usd, after_usd: None where only one of the lists has it.
    """

    provider: str
    instance: str
    region: str
    terms: str
    before_usd: float | None
    after_usd: float | None

    @property
    def change(self) -> float | None:
        """-0.25 for a price that fell by a quarter; None for a price that came or went."""
        if not self.before_usd or self.after_usd is None:
            return None
        return self.after_usd / self.before_usd - 1

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise offers --diff --json`."""
        return {**asdict(self), "change": self.change}


@dataclass(frozen=True)
class RefreshOutcome:
    """What became of one list.

    Attributes:
        provider: id of the provider.
        source: the published list, in words.
        state: TAKEN: it counts from now on; UNCHANGED: it is the one that counts already; KEPT_LAST: it did not pass the gates
            of lists, and the last good one stays; FAILED: it could not be fetched or read.
        as_of: day of the prices that count now; "" where there are none but the shipped ones.
        rows: of the new list that pass; rates for interruptions.
        quarantined: rows of the new list that do not pass.
        why: gates that failed, or the error; a sentence part each.
        remarks: what was read otherwise than written.
        moves: prices that differ from the list before.
        overridden: whether `--accept` took a list in spite of `why`.
    """

    provider: str
    source: str
    state: str
    as_of: str = ""
    rows: int = 0
    quarantined: int = 0
    why: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    moves: tuple[PriceMove, ...] = ()
    overridden: bool = False

    @property
    def succeeded(self) -> bool:
        return self.state in (TAKEN, UNCHANGED)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise offers --refresh --json`."""
        return {**asdict(self), "moves": [move.to_dict() for move in self.moves]}


def moves(before: KeyedPrices, after: KeyedPrices) -> tuple[PriceMove, ...]:
    """Prices that differ, the largest changes first; then those that came or went."""
    old = {(key, terms): usd for key, prices in before for terms, usd in prices.items()}
    new = {(key, terms): usd for key, prices in after for terms, usd in prices.items()}
    every = [PriceMove(*key, terms, old.get((key, terms)), new.get((key, terms))) for key, terms in {**old, **new}]
    differing = [move for move in every if move.before_usd != move.after_usd]
    return tuple(
        sorted(differing, key=lambda move: (move.change is None, -abs(move.change or 0), move.provider, move.instance))
    )
