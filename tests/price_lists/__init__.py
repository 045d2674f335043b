"""Hand-made price lists, in the forms in which they are published, with every trap that was seen in real ones."""

from __future__ import annotations

import io
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from gpuwise.hardware.catalog import Catalog
from gpuwise.refresh.refresh import ListBytes, shipped_yardstick
from gpuwise.refresh.row_gates import ListedOffer, Yardstick, gated
from gpuwise.refresh.sources import request_of

FOLDER = Path(__file__).parent
LISTS = {
    "skypilot:aws": ("skypilot-aws.csv",),
    "skypilot:vast": ("skypilot-vast.csv",),
    "skypilot:runpod": ("skypilot-runpod.csv",),
    "skypilot:lambda": ("skypilot-lambda.csv",),
    "skypilot:gcp": ("skypilot-gcp.csv",),
    "gpuhunt:aws": ("gpuhunt-aws.csv",),
    "vast": ("vast.json",),
    "runpod": ("runpod.json",),
    "azure": ("azure-1.json", "azure-2.json"),
    "spot-advisor": ("spot-advisor-data.json",),
}


def documents(name: str) -> tuple[bytes, ...]:
    """The pages of a list."""
    return tuple((FOLDER / file).read_bytes() for file in LISTS[name])


def content(name: str) -> ListBytes:
    """A list as if it had been fetched."""
    return ListBytes(documents(name), f"https://example.org/{name}")


def archive(member: str, data: bytes) -> bytes:
    """A ZIP archive with one file, as gpuhunt publishes its lists."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr(member, data)
    return packed.getvalue()


@cache
def shipped() -> Catalog:
    """The catalog without the user's files and fetched lists."""
    return Catalog()


@cache
def yardstick() -> Yardstick:
    """What rows are judged by."""
    return shipped_yardstick(shipped())


def passed(name: str) -> tuple[dict[tuple[str, str], ListedOffer], dict[str, list[str]]]:
    """The rows of a list that pass, by instance and region, and the reasons of those that do not, by instance."""
    request = request_of(name)
    offers, refused = gated(request.source.parse(documents(name), provider=request.provider).rows, yardstick())
    reasons: dict[str, list[str]] = {}
    for each in refused:
        reasons.setdefault(each.row, []).append(each.why)
    return {(offer.instance, offer.region): offer for offer in offers}, reasons


@contextmanager
def server(*answers: Callable[[socket.socket, bytes], None]) -> Iterator[tuple[int, list[bytes]]]:
    """A server on this machine that gives each connection the next answer, then the last one again. Its port, and requests."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            number = 0
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    requests.append(_request(connection))
                    answers[min(number, len(answers) - 1)](connection, requests[-1])
                number += 1

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1], requests
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def _request(connection: socket.socket) -> bytes:
    """A request with its body."""
    data = b""
    while b"\r\n\r\n" not in data and (more := connection.recv(65536)):
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    while lengths and len(body) < lengths[0] and (more := connection.recv(65536)):
        body += more
    return head + b"\r\n\r\n" + body


def answer(
    body: bytes = b"", *, status: str = "200 OK", headers: tuple[str, ...] = (), length: int | None = None
) -> Callable[[socket.socket, bytes], None]:
    """Sends one whole answer. length: what the header claims, where that is not the length of the body."""

    def send(connection: socket.socket, request: bytes) -> None:
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Length: {len(body) if length is None else length}",
            "Connection: close",
            *headers,
        ]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    return send
