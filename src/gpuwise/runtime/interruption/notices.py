"""Notices of a cloud before it reclaims a machine, and the interface of their sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

POLL_S = 5.0  # between two polls of a source, as AWS recommends
# INTERRUPTION ends the run: the machine goes away. ADVICE is only shown to the user: the machine may go away or pause.
INTERRUPTION, ADVICE = "interruption", "advice"


@dataclass(frozen=True)
class Notice:
    """A provider's notice about this machine.

    Attributes:
        source: name of the provider.
        kind: "interruption" (the run must end) or "advice" (it continues).
        deadline_unix_s: time at which the machine goes away, in seconds since 1970; None: at any moment.
        text: a sentence for the user.
    """

    source: str
    kind: str
    deadline_unix_s: float | None
    text: str


class NoticeSource(Protocol):
    """A source of notices. `name` is its name on the command line."""

    name: str

    def poll(self) -> Notice | None:
        """The current notice; None if nothing is planned. Notices compare equal as long as nothing changes.

        A poll may take seconds. Raises OSError when there is no usable answer.
        """
