"""One document from one of the allowed hosts, within limits of time and size. Nothing is sent but the request itself: no keys.

Only https, except to a loopback server that a test names in an argument. The limit of seconds is for the whole answer: a server
that sends a byte at a time ends like one that sends none. The limit of bytes counts what comes over the network, and what that
unpacks to.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin, urlsplit

from gpuwise.errors import PriceListError
from gpuwise.version import __version__

LIMIT_S = 20.0
LIMIT_BYTES = 64 * 2**20
MOST_REDIRECTS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK = 64 * 2**10
WAYS = ("try again later", "fetch it elsewhere and read it with --from FILE")


@dataclass(frozen=True)
class FetchedDocument:
    """What a server answered.

    Attributes:
        data: the document; empty where `unchanged`.
        etag: "" where the server gave none.
        list_day: day of the document's last change by the server; None where it does not say.
        unchanged: whether the document is the one that the caller has.
    """

    data: bytes
    etag: str = ""
    list_day: date | None = None
    unchanged: bool = False


@dataclass(frozen=True)
class HttpsClient:
    """What fetches.

    Attributes:
        limit_s: seconds for one document.
        limit_bytes: of one document, packed and unpacked.
        loopback: ports of this machine that stand for hosts, reached by plain http; for tests alone, empty otherwise.
    """

    limit_s: float = LIMIT_S
    limit_bytes: int = LIMIT_BYTES
    loopback: Mapping[str, int] = field(default_factory=dict, hash=False)

    def get(self, url: str, *, hosts: Collection[str], body: object = None, etag: str = "") -> FetchedDocument:
        """A document. Raises PriceListError for every failure.

        Arguments:
            hosts: allowed ones, for the address and where it redirects to.
            body: sent as JSON by POST; None (default) for GET.
            etag: of the document that the caller has; the answer may be that it is unchanged.
        """
        for _ in range(MOST_REDIRECTS + 1):
            host = self._checked(url, hosts)
            answer, target = self._once(url, host, body=body, etag=etag)
            if answer is not None:
                return answer
            url = _joined(url, target, host)
        raise _failed(host, f"it redirected more than {MOST_REDIRECTS} times")

    def _checked(self, url: str, hosts: Collection[str]) -> str:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise _failed("the server", f"it leads to {url[:100]!r}, which is no address") from None
        if parts.scheme != "https" or port not in (None, 443) or parts.username is not None:
            raise _failed(host, f"it leads to {url[:100]!r}, and only https addresses are followed")
        if host not in hosts:
            raise _failed(host, f"it is none of the allowed hosts ({', '.join(sorted(hosts))})")
        return host

    def _once(self, url: str, host: str, *, body: object, etag: str) -> tuple[FetchedDocument | None, str]:
        """The answer, or the address that it redirects to."""
        headers = {"User-Agent": f"gpuwise/{__version__}", "Accept-Encoding": "gzip", "Accept": "*/*"}
        if etag:
            headers["If-None-Match"] = etag
        if body is not None:
            headers["Content-Type"] = "application/json"
        parts = urlsplit(url)
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        try:
            with self._connection(host) as connection:
                content = None if body is None else json.dumps(body).encode()
                connection.request("GET" if body is None else "POST", path, body=content, headers=headers)
                with closing(connection.getresponse()) as response:
                    if response.status in _REDIRECTS:
                        return None, response.getheader("Location") or ""
                    return self._read(response, host, etag), ""
        except PriceListError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _failed(host, _words(error)) from None

    @contextmanager
    def _connection(self, host: str) -> Iterator[http.client.HTTPConnection]:
        """A connection that is shut when its time is over, also in its handshake."""
        port = self.loopback.get(host)
        raw = socket.create_connection((host, 443) if port is None else ("127.0.0.1", port), timeout=self.limit_s)
        over = threading.Event()
        with raw.dup() as guard, closing(raw):

            def shut() -> None:
                over.set()
                with suppress(OSError):  # gone already
                    guard.shutdown(socket.SHUT_RDWR)

            timer = threading.Timer(self.limit_s, shut)
            timer.daemon = True
            timer.start()
            connection = http.client.HTTPConnection(host) if port is not None else http.client.HTTPSConnection(host)
            try:
                connection.sock = (
                    raw if port is not None else ssl.create_default_context().wrap_socket(raw, server_hostname=host)
                )
                yield connection
                if over.is_set():  # what was read ends where the time was over
                    raise TimeoutError
            except (OSError, http.client.HTTPException, ValueError, PriceListError):
                if over.is_set():
                    raise TimeoutError from None
                raise
            finally:
                timer.cancel()
                timer.join()
                connection.close()

    def _read(self, response: http.client.HTTPResponse, host: str, etag: str) -> FetchedDocument:
        if response.status == 304 and etag:
            return FetchedDocument(b"", etag, unchanged=True)
        if response.status != 200:
            raise _failed(host, f"it answered {response.status} {response.reason[:60]}".strip())
        if "html" in (response.getheader("Content-Type") or "").lower():
            raise _failed(host, "it answered with a web page instead of data")
        data = self._body(response, host)
        return FetchedDocument(data, _etag(response.getheader("ETag")), _day(response.getheader("Last-Modified")))

    def _body(self, response: http.client.HTTPResponse, host: str) -> bytes:
        encoding = (response.getheader("Content-Encoding") or "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise _failed(host, f"it answered in the encoding {encoding[:20]!r}")
        unpacker = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
        packed, data = 0, bytearray()
        length = response.length  # None for chunks, and where the end of the connection is that of the document
        while chunk := response.read1(_CHUNK):
            packed += len(chunk)
            try:
                data += chunk if unpacker is None else unpacker.decompress(chunk, self.limit_bytes + 1 - len(data))
            except zlib.error as error:
                raise _failed(host, f"its answer does not unpack ({error})") from None
            if max(packed, len(data)) > self.limit_bytes or (unpacker is not None and unpacker.unconsumed_tail):
                raise _failed(host, f"its answer is larger than {self.limit_bytes:,} bytes")
        if (length is not None and packed < length) or (unpacker is not None and not unpacker.eof):
            raise _failed(host, "its answer was cut off")
        return bytes(data)


def _failed(host: str, what: str) -> PriceListError:
    return PriceListError(f"{host} gave no price list: {what}. The prices that were there stay.", WAYS)


def _joined(url: str, target: str, host: str) -> str:
    """Where a redirect leads. Raises PriceListError."""
    try:
        return urljoin(url, target)
    except ValueError:
        raise _failed(host, f"it leads to {target[:100]!r}, which is no address") from None


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, socket.gaierror):
        return "it cannot be reached from here (no network, or no such host)"
    if isinstance(error, http.client.IncompleteRead):
        return "its answer was cut off"
    return f"the connection failed ({' '.join(str(error).split())[:120] or type(error).__name__})"


def _etag(value: str | None) -> str:
    """An entity tag that may be sent back: printable, and not long."""
    return value if value and len(value) <= 200 and value.isascii() and value.isprintable() else ""


def _day(value: str | None) -> date | None:
    with suppress(TypeError, ValueError, OverflowError):
        return parsedate_to_datetime(value).date() if value else None
    return None
