"""A stream to show things on, whose failures are nobody else's."""

from __future__ import annotations

from typing import TextIO

# What takes the place of characters that a stream of another encoding than UTF-8 may not have.
_ASCII = str.maketrans({"·": "-", "µ": "u", "…": "...", "–": "-", "—": "-", "×": "x"})


class TolerantStream:
    """A text stream that goes on when what is behind it is gone (a closed terminal, a broken pipe): it drops what it is given.

    gone: whether that has happened. unicode: whether it has every character; one without an encoding, as of a test, has.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.gone = False
        self.encoding = stream.encoding or "utf-8"
        self.unicode = self.encoding.lower().startswith("utf")

    def spoken(self, text: str) -> str:
        """The text in characters that the stream has."""
        return text if self.unicode else text.translate(_ASCII).encode("ascii", "replace").decode()

    def write(self, text: str) -> int:
        if not self.gone:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:  # a name that is no text
                self._stream.write(text.encode("ascii", "replace").decode())
            except (OSError, ValueError):  # ValueError: it is closed
                self.gone = True
        return len(text)

    def flush(self) -> None:
        if not self.gone:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self.gone = True

    def isatty(self) -> bool:
        return not self.gone and not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()
