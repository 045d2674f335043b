"""Stop signals: the first lets the current step finish, the second ends at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """While entered, `received` holds the first SIGINT or SIGTERM; a second raises KeyboardInterrupt or SystemExit.

    The handlers found are put back on exit. Outside the main thread, where Python allows no handlers, nothing is
    changed. A signal the process was told to ignore (nohup) stays ignored.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._found: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                found = signal.getsignal(number)
                if found is not None and found is not signal.SIG_IGN:  # None: installed by C code, cannot be put back
                    self._found[number] = signal.signal(number, self._on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._found.items():
            signal.signal(number, handler)
        self._found.clear()

    def _on(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)
