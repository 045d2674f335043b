"""Rejected offers, counted by reason."""

from __future__ import annotations

from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.plan.types import Rejection

_EXAMPLES = 3


class Rejections:
    """Rejected offers by reason, with the nearest (smallest distance) as examples.

    Attributes:
        at_hand: the user's own machines among them, each with its reason.
    """

    def __init__(self) -> None:
        self.at_hand: dict[Offer, Note] = {}
        self._examples: dict[Note, list[tuple[float, str]]] = {}

    def add(self, reason: Note, what: str, detail: str = "", *, distance: float = 0.0, offer: Offer | None = None) -> None:
        """Counts one offer.

        Arguments:
            what: the offer in words.
            detail: the distance in words, "takes 18 days".
            distance: the distance as a number.
            offer: the offer, which is recorded if it is one of the user's own machines.
        """
        because = f": {detail}" if detail else ""
        self._examples.setdefault(reason, []).append((distance, what + because))
        if offer is not None and offer.terms == "owned":
            self.at_hand[offer] = reason.with_detail(detail)

    def result(self) -> dict[str, Rejection]:
        """The rejections by the reason's sentence, most frequent first."""
        ordered = sorted(self._examples.items(), key=lambda item: -len(item[1]))
        nearest = {reason: tuple(dict.fromkeys(text for _, text in sorted(examples))) for reason, examples in ordered}
        return {
            reason.text: Rejection(len(examples), nearest[reason][:_EXAMPLES], reason=reason) for reason, examples in ordered
        }
