"""A client for the metadata server of a cloud, which has a link-local address."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import urlsplit

MOST_BYTES = 65_536  # largest accepted answer; a notice has a few hundred bytes


class NoAnswer(OSError):  # noqa: N818 - the normal case on a machine outside a cloud
    """The server cannot be reached, or its answer is unusable."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer.

    Attributes:
        status: HTTP status code.
        text: the body.
        headers: headers by their names in lower case.
    """

    status: int
    text: str
    headers: Mapping[str, str]


class MetadataServer:
    """Sends requests to one server, without proxies (the address is link-local) and without following redirects."""

    def __init__(self, base_url: str, *, timeout_s: float = 2.0) -> None:
        self._address = urlsplit(base_url).netloc
        self._timeout_s = timeout_s

    def ask(self, path: str, *, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """Sends one request. Raises NoAnswer on a timeout, an oversized answer or a redirect."""
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
        if response.length:  # bytes of Content-Length that are missing
            raise NoAnswer(f"{self._address} sends half an answer")
        return read
