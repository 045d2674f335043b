"""Offers that are out, counted by the reason."""

from __future__ import annotations

from gpuwise.hardware.types import Offer
from gpuwise.plan.types import Rejection

_EXAMPLES = 3


class Rejections:
    """Offers by the reason they are out, with the nearest (smallest distance) as examples.

    at_hand: owned machines among them, each with its reason and detail.
    """

    def __init__(self) -> None:
        self.at_hand: dict[Offer, str] = {}
        self._examples: dict[str, list[tuple[float, str]]] = {}

    def add(self, reason: str, what: str, detail: str = "", *, distance: float = 0.0, offer: Offer | None = None) -> None:
        """Counts one offer.

        Arguments:
            what: the offer in words. detail: by how much it is out, "takes 18 days". distance: the same as a number.
            offer: itself, which matters where it is a machine at hand.
        """
        because = f": {detail}" if detail else ""
        self._examples.setdefault(reason, []).append((distance, what + because))
        if offer is not None and offer.terms == "owned":
            self.at_hand[offer] = reason + because

    def result(self) -> dict[str, Rejection]:
        """Most frequent first."""
        ordered = sorted(self._examples.items(), key=lambda item: -len(item[1]))
        nearest = {reason: tuple(dict.fromkeys(text for _, text in sorted(examples))) for reason, examples in ordered}
        return {reason: Rejection(len(examples), nearest[reason][:_EXAMPLES]) for reason, examples in ordered}
