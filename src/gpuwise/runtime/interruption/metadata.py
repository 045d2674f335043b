"""The metadata server of a cloud: one small HTTP request, to an address that only this machine can reach."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import urlsplit

MOST_BYTES = 65_536  # of an answer; a notice is a few hundred


class NoAnswer(OSError):  # noqa: N818 - it is no error of ours, but what a machine outside a cloud meets
    """The server cannot be reached, or its answer is of no use."""


@dataclass(frozen=True)
class Answer:
    """Status of HTTP, text, and headers with their names in small letters."""

    status: int
    text: str
    headers: Mapping[str, str]


class MetadataServer:
    """Asks one server, without proxies (its address means this machine) and without following redirects."""

    def __init__(self, base_url: str, *, timeout_s: float = 2.0) -> None:
        self._address = urlsplit(base_url).netloc
        self._timeout_s = timeout_s

    def ask(self, path: str, *, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """Raises NoAnswer when there is none within the timeout, it is endless, or it is a redirect."""
        connection = HTTPConnection(self._address, timeout=self._timeout_s)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            response = connection.getresponse()
            text = self._read(response).decode(errors="replace")
        except (OSError, HTTPException, ValueError) as error:
            if isinstance(error, NoAnswer):
                raise
            raise NoAnswer(f"{self._address} does not answer: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if 300 <= response.status < 400:
            raise NoAnswer(f"{self._address} redirects ({response.status}), which no metadata server does")
        return Answer(response.status, text, {name.lower(): value for name, value in response.getheaders()})

    def _read(self, response: HTTPResponse) -> bytes:
        read, until_s = b"", time.monotonic() + self._timeout_s
        while part := response.read1(MOST_BYTES):
            read += part
            if len(read) > MOST_BYTES or time.monotonic() > until_s:
                raise NoAnswer(f"{self._address} sends an answer without an end")
        if response.length:  # of Content-Length, what has not come
            raise NoAnswer(f"{self._address} sends half an answer")
        return read
