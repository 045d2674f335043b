"""The streams of a recorded step: which one launches an operation, and what they wait for."""

from __future__ import annotations

from typing import NamedTuple

COMPUTE = 0  # the stream that a process starts with


class Launched(NamedTuple):
    """A position, and the stream that runs it."""

    stream: int
    position: int


class WaitRow(NamedTuple):
    """A row of gpuwise.trace.Waits."""

    position: int
    stream: int
    on: int


class Enqueued(NamedTuple):
    """What a stream has been told to do by a moment: what an event records.

    Attributes:
        step: number of the step in which it was; an earlier one has ended.
        ends: the last position on the stream, and those that it waits for since.
    """

    step: int
    ends: tuple[Launched, ...]


NOTHING = Enqueued(-1, ())


class Streams:
    """The streams of a device while a step is recorded.

    Attributes:
        current: number of the stream that operations go to.
        waits: the waits of the step so far that order two positions.
    """

    def __init__(self) -> None:
        self.current = COMPUTE
        self.waits: list[WaitRow] = []
        self._count, self._step, self._length = 1, 0, 0
        self._ends: dict[int, tuple[Launched, ...]] = {}
        self._waited: dict[tuple[int, int], int] = {}  # the last position of another stream that a stream waits for

    def new(self) -> int:
        """The number of a new stream."""
        self._count += 1
        return self._count - 1

    def start(self) -> None:
        """Begins a step: all that was launched before is done."""
        self._step += 1
        self._length = 0
        self.waits.clear()
        self._ends.clear()
        self._waited.clear()

    def launch(self, position: int) -> None:
        """The current stream gets a position to run."""
        self._length = position + 1
        self._ends[self.current] = (Launched(self.current, position),)

    def mark(self, stream: int) -> Enqueued:
        """What the stream has to do so far."""
        return Enqueued(self._step, self._ends.get(stream, ()))

    def wait(self, stream: int, mark: Enqueued) -> None:
        """Lets what is launched on a stream from now on wait for a mark."""
        if mark.step != self._step:
            return
        for launched in mark.ends:
            pair = stream, launched.stream
            if launched.stream == stream or self._waited.get(pair, -1) >= launched.position:
                continue
            self._waited[pair] = launched.position
            self._ends[stream] = (*self._ends.get(stream, ()), launched)
            self.waits.append(WaitRow(self._length, stream, launched.position))
