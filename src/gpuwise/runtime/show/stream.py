"""An output stream whose failures do not reach the caller."""

from __future__ import annotations

from typing import TextIO

# Replacements for characters that an encoding other than UTF-8 may lack.
_ASCII = str.maketrans({"·": "-", "µ": "u", "…": "...", "–": "-", "—": "-", "×": "x"})


class TolerantStream:
    """A text stream that drops its output after the terminal is closed or the pipe is broken.

    Attributes:
        gone: whether that has happened.
        unicode: whether the stream can encode every character; true for a stream without an encoding, as in tests.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.gone = False
        self.encoding = stream.encoding or "utf-8"
        self.unicode = self.encoding.lower().startswith("utf")

    def spoken(self, text: str) -> str:
        """The text in characters that the stream can encode."""
        return text if self.unicode else text.translate(_ASCII).encode("ascii", "replace").decode()

    def write(self, text: str) -> int:
        if not self.gone:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:  # a name with invalid characters
                self._stream.write(text.encode("ascii", "replace").decode())
            except (OSError, ValueError):  # ValueError: the stream is closed
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
