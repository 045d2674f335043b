"""What a cloud says before it takes a machine away, and the one interface its sources share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

POLL_S = 5.0  # between two questions to a source, as AWS recommends
# Acted on: the machine goes away. Told to the user and not acted on: it may go, or pauses for a moment.
INTERRUPTION, ADVICE = "interruption", "advice"


@dataclass(frozen=True)
class Notice:
    """One statement of a provider about this machine.

    kind: "interruption" (the run is to end) or "advice" (it goes on). deadline_unix_s: when the machine goes, in seconds
    since 1970; None: at any moment. text: a sentence for the user.
    """

    source: str
    kind: str
    deadline_unix_s: float | None
    text: str


class NoticeSource(Protocol):
    """Where notices come from. `name` is what the user calls it."""

    name: str

    def poll(self) -> Notice | None:
        """The notice that stands now, the same object's equal as long as nothing changes; None: nothing is planned.

        May take seconds. Raises OSError when there is no usable answer.
        """
