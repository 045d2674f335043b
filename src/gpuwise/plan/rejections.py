"""Rejected offers, counted by reason."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.plan.rejection import Rejection

_EXAMPLES = 3
_Example = tuple[float, object, str]  # distance, what, detail


class Rejections:
    """Rejected offers by reason, with the nearest (smallest distance) as examples.

    Attributes:
        at_hand: the user's own machines among them, each with its reason.
    """

    def __init__(self) -> None:
        self.at_hand: dict[Offer, Note] = {}
        self._examples: dict[str, tuple[Note, list[_Example]]] = {}  # by the reason's sentence

    def add(self, reason: Note, what: object, detail: str = "", *, distance: float = 0.0, offer: Offer | None = None) -> None:
        """Counts one offer.

        Arguments:
            what: the offer, in words or printed by str where it is an example: most are not.
            detail: the distance in words, "takes 18 days".
            distance: the distance as a number.
            offer: the offer, which is recorded if it is one of the user's own machines.
        """
        _, examples = self._examples.setdefault(reason.text, (reason, []))
        examples.append((distance, what, detail))
        if offer is not None and offer.terms == "owned":
            self.at_hand[offer] = reason.with_detail(detail)

    def copy(self) -> Rejections:
        """The same, to which more is added."""
        other = Rejections()
        other.at_hand = dict(self.at_hand)
        other._examples = {text: (reason, list(examples)) for text, (reason, examples) in self._examples.items()}
        return other

    def result(self) -> dict[str, Rejection]:
        """The rejections by the reason's sentence, most frequent first."""
        ordered = sorted(self._examples.values(), key=lambda item: -len(item[1]))
        return {reason.text: Rejection(len(examples), _nearest(examples), reason=reason) for reason, examples in ordered}


def _nearest(examples: list[_Example]) -> tuple[str, ...]:
    """The nearest in words, without repetitions; equally near ones in the order of the alphabet."""
    words: dict[str, None] = {}
    for _, equals in groupby(sorted(examples, key=itemgetter(0)), key=itemgetter(0)):
        words |= dict.fromkeys(sorted(f"{what}: {detail}" if detail else str(what) for _, what, detail in equals))
        if len(words) >= _EXAMPLES:
            break
    return tuple(words)[:_EXAMPLES]
