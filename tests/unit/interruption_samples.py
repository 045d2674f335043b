"""A source of notices and clocks that a test moves."""

from __future__ import annotations

from typing import Any

from gpuwise.runtime.interruption.notices import Notice
from gpuwise.runtime.interruption.stop import Stop


class Source:
    """Gives these answers one after another, then the last again; those that are errors it raises."""

    name = "fake"

    def __init__(self, *answers: Notice | Exception | None):
        self.answers = list(answers)

    def poll(self) -> Notice | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clocks:
    """The run's clock and the world's; a clock jump moves only the second."""

    def __init__(self) -> None:
        self.now_s, self.unix_s = 100.0, 1_000_000.0

    def stop(self, **fields: Any) -> Stop:
        return Stop(**{"environment": {}, "clock": lambda: self.now_s, "unix_clock": lambda: self.unix_s, **fields})

    def to(self, now_s: float) -> None:
        self.now_s, self.unix_s = now_s, self.unix_s + now_s - self.now_s
