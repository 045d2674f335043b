"""Fetching from servers that fail in every way: one coded error, in time, and nothing beyond the limits is read."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib
from collections.abc import Callable

import pytest
from tests.price_lists import answer, server

from gpuwise.errors import PriceListError
from gpuwise.refresh.fetch import FetchedDocument, HttpsClient

HOST, URL = "prices.example.org", "https://prices.example.org/v8/list.csv"
DATA = b"InstanceType,Price\np5,1\n" * 40


def fetch(
    *answers: Callable[[socket.socket, bytes], None],
    limit_s: float = 5.0,
    limit_bytes: int = 100_000,
    etag: str = "",
    url: str = URL,
) -> FetchedDocument:
    with server(*answers) as (port, _):
        return HttpsClient(limit_s, limit_bytes, {HOST: port}).get(url, hosts=[HOST], etag=etag)


def until_closed(connection: socket.socket, request: bytes) -> None:
    """Says nothing for as long as the client waits."""
    connection.recv(1)


def trickle(start: bytes) -> Callable[[socket.socket, bytes], None]:
    """Sends a byte at a time, fast enough that no single wait is long, and never ends."""

    def send(connection: socket.socket, request: bytes) -> None:
        connection.sendall(start)
        gone = threading.Event()
        while not gone.wait(0.01):
            connection.sendall(b"x")

    return send


def test_a_document_comes_with_its_tag_and_day():
    headers = ('ETag: "abc"', "Last-Modified: Fri, 20 Nov 2026 04:05:06 GMT")
    document = fetch(answer(DATA, headers=headers))
    assert (document.data, document.etag, str(document.list_day)) == (DATA, '"abc"', "2026-11-20")
    assert not document.unchanged


def test_a_packed_document_is_unpacked():
    assert fetch(answer(gzip.compress(DATA), headers=("Content-Encoding: gzip",))).data == DATA


def test_chunks_are_joined():
    def chunked(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n2\r\nef\r\n0\r\n\r\n")

    assert fetch(chunked).data == b"abcdef"


def test_an_unchanged_list_is_not_sent_again():
    with server(answer(status="304 Not Modified")) as (port, requests):
        document = HttpsClient(loopback={HOST: port}).get(URL, hosts=[HOST], etag='"abc"')
    assert document.unchanged
    assert b'If-None-Match: "abc"' in requests[0]


def test_nothing_is_sent_but_the_request():
    with server(answer(DATA)) as (port, requests):
        HttpsClient(loopback={HOST: port}).get(URL, hosts=[HOST], body={"limit": 5})
    head = requests[0].decode().lower()
    assert head.startswith("post /v8/list.csv http/1.1")
    assert head.endswith('{"limit": 5}')
    names = {line.split(":")[0] for line in head.split("\r\n\r\n")[0].split("\r\n")[1:]}
    assert names == {"host", "user-agent", "accept-encoding", "accept", "content-type", "content-length"}


BOMB = zlib.compressobj(9, wbits=31)
BOMB_BYTES = b"".join(BOMB.compress(bytes(1_000_000)) for _ in range(64)) + BOMB.flush()
HOSTILE = {
    "a fault of the server": (answer(status="500 Internal Server Error"), "answered 500"),
    "too many requests": (answer(status="429 Too Many Requests", headers=("Retry-After: 3600",)), "answered 429"),
    "not there": (answer(status="404 Not Found"), "answered 404"),
    "a page of HTML": (answer(b"<html>log in</html>", headers=("Content-Type: text/html; charset=utf-8",)), "a web page"),
    "cut off": (answer(DATA, length=len(DATA) + 7), "cut off"),
    "packed and cut off": (answer(gzip.compress(DATA)[:-12], headers=("Content-Encoding: gzip",)), "cut off"),
    "a bomb": (answer(BOMB_BYTES, headers=("Content-Encoding: gzip",)), "larger than 100,000 bytes"),
    "too large": (answer(b"x" * 100_001), "larger than 100,000 bytes"),
    "not what it says": (answer(DATA, headers=("Content-Encoding: gzip",)), "does not unpack"),
    "an unknown encoding": (answer(DATA, headers=("Content-Encoding: br",)), "encoding 'br'"),
    "another host": (
        answer(status="302 Found", headers=("Location: https://evil.example.com/x",)),
        "none of the allowed hosts",
    ),
    "plain http": (answer(status="301 Moved", headers=(f"Location: http://{HOST}/x",)), "only https"),
    "a file": (answer(status="301 Moved", headers=("Location: file:///etc/passwd",)), "only https"),
    "a password": (answer(status="301 Moved", headers=(f"Location: https://me:it@{HOST}/x",)), "only https"),
    "another port": (answer(status="301 Moved", headers=(f"Location: https://{HOST}:8443/x",)), "only https"),
    "no address": (answer(status="301 Moved", headers=("Location: https://[::1/x",)), "no address"),
    "round and round": (answer(status="302 Found", headers=("Location: /again",)), "more than 4 times"),
    "to nowhere": (answer(status="302 Found"), "more than 4 times"),
    "not HTTP": (lambda connection, request: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), "connection failed"),
    "hung up": (lambda connection, request: None, "connection failed"),
    "endless headers": (
        lambda connection, request: connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500),
        "connection failed",
    ),
    "a bad chunk": (
        lambda connection, request: connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab"),
        "gave no price list",
    ),
    "half a chunk": (
        lambda connection, request: connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nab"),
        "cut off",
    ),
    "304 to one who has nothing": (answer(status="304 Not Modified"), "answered 304"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_one_coded_error(name: str):
    send, words = HOSTILE[name]
    with pytest.raises(PriceListError, match=words) as caught:
        fetch(send)
    assert caught.value.code == "bad-price-list"
    assert "stay" in caught.value.what
    assert caught.value.ways_out


@pytest.mark.parametrize(
    "send",
    [
        until_closed,
        trickle(b""),
        trickle(b"HTTP/1.1 200 OK\r\nA: "),
        trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n"),
    ],
    ids=["silent", "trickled status", "trickled header", "trickled body"],
)
def test_a_slow_answer_ends_in_time(send: Callable[[socket.socket, bytes], None]):
    with pytest.raises(PriceListError, match="in time"):
        fetch(send, limit_s=0.2)


def test_a_redirect_within_the_host_is_followed():
    assert fetch(answer(status="307 Temporary Redirect", headers=("Location: /elsewhere",)), answer(DATA)).data == DATA


@pytest.mark.parametrize(
    "url", ["http://prices.example.org/x", "https://127.0.0.1/x", "https://prices.example.org@evil/x", "ftp://a/b"]
)
def test_only_https_to_allowed_hosts(url: str):
    with pytest.raises(PriceListError):
        HttpsClient().get(url, hosts=[HOST])


def test_a_port_that_nobody_listens_on_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(PriceListError, match="connection failed"):
        HttpsClient(loopback={HOST: port}).get(URL, hosts=[HOST])


def test_without_a_network_the_host_cannot_be_reached(monkeypatch: pytest.MonkeyPatch):
    def no_network(*arguments: object, **more: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "create_connection", no_network)
    with pytest.raises(PriceListError, match="cannot be reached"):
        HttpsClient().get(URL, hosts=[HOST])


def test_tags_that_could_break_a_request_are_not_kept():
    assert fetch(answer(DATA, headers=(f"ETag: {'x' * 300}",))).etag == ""
    assert fetch(answer(DATA, headers=("Last-Modified: yesterday",))).list_day is None
