"""Notices of three clouds, played by a local server that also misbehaves in every way a server can."""

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuwise.runtime.interruption.metadata import MOST_BYTES, MetadataServer, NoAnswer
from gpuwise.runtime.interruption.notices import ADVICE, INTERRUPTION
from gpuwise.runtime.interruption.providers import Aws, Azure, Gcp
from gpuwise.runtime.interruption.stop import Stop

NOW_S = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED, MAINTENANCE = "/computeMetadata/v1/instance/preempted", "/computeMetadata/v1/instance/maintenance-event"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


class Played(ThreadingHTTPServer):
    """A server that serves while it is entered.

    `pages`: path -> text, or (status, text, headers), or a function of the handler; 404 elsewhere. `released`: set at the
    end, for functions that go on until then.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages, self.requests, self.released = {}, [], threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.shutdown()
        self._thread.join(5)
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that gives up is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        page = self.server.pages.get(self.path, (404, "not found", {}))
        if callable(page):
            page = page(self)
        if page is None:
            return
        status, text, headers = (200, page, {}) if isinstance(page, str) else page
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_PUT = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Played() as played:
        yield played


@pytest.fixture(autouse=True)
def _a_proxy_that_must_not_be_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def made(cloud, server):
    return cloud(server.url, timeout_s=0.3, clock=lambda: NOW_S)


# --- AWS


@pytest.fixture
def aws(server):
    server.pages["/latest/api/token"] = "secret"
    return made(Aws, server)


def test_aws_says_nothing(aws, server):
    assert aws.poll() is None
    method, path, headers = server.requests[0]
    assert (method, path, headers["x-aws-ec2-metadata-token-ttl-seconds"]) == ("PUT", "/latest/api/token", "21600")
    assert server.requests[1][2]["x-aws-ec2-metadata-token"] == "secret"
    aws.poll()
    assert [path for _, path, _ in server.requests].count("/latest/api/token") == 1


def test_aws_terminates(aws, server):
    server.pages[ACTION] = json.dumps({"action": "terminate", "time": "2026-03-01T12:01:50Z"})
    notice = aws.poll()
    assert (notice.source, notice.kind, notice.deadline_unix_s) == ("aws", INTERRUPTION, NOW_S + 110)
    assert notice.text == "AWS will terminate this spot instance at 12:01:50 UTC."
    assert aws.poll() is notice


@pytest.mark.parametrize(
    ("action", "when", "deadline_s"),
    [
        ("stop", "2026-03-01T12:02:00Z", NOW_S + 120),
        ("stop", "2026-03-01T13:00:00Z", NOW_S + 120),  # this machine's clock is behind: never more than the lead time
        ("stop", "9999-12-31T23:59:59Z", NOW_S + 120),
        ("terminate", "2026-03-01T11:00:00Z", None),  # ... or ahead
        ("terminate", "tomorrow", None),
        ("hibernate", "2026-03-01T12:02:00Z", None),  # begins at once
    ],
)
def test_when_aws_acts(action, when, deadline_s, aws, server):
    server.pages[ACTION] = json.dumps({"action": action, "time": when})
    assert aws.poll().deadline_unix_s == deadline_s


def test_aws_recommends(aws, server):
    server.pages[REBALANCE] = json.dumps({"noticeTime": "2026-03-01T12:00:00Z"})
    assert aws.poll().kind == ADVICE
    server.pages[ACTION] = json.dumps({"action": "terminate", "time": "2026-03-01T12:02:00Z"})
    assert aws.poll().kind == INTERRUPTION


def test_a_token_that_has_run_out_is_renewed(aws, server):
    aws.poll()
    server.pages["/latest/api/token"] = "another"
    server.pages[ACTION] = lambda handler: (
        (200, json.dumps({"action": "stop", "time": "2026-03-01T12:02:00Z"}), {})
        if handler.headers["X-aws-ec2-metadata-token"] == "another"
        else (401, "", {})
    )
    assert aws.poll().kind == INTERRUPTION


@pytest.mark.parametrize("token", [(403, "forbidden", {}), (404, "", {}), "", "with\r\nEvil: header", "é", "x" * 5000])
def test_a_token_refused_is_no_notice(token, aws, server):
    server.pages["/latest/api/token"] = token
    server.pages[ACTION] = json.dumps({"action": "terminate", "time": "2026-03-01T12:02:00Z"})
    with pytest.raises(NoAnswer, match="gives no token"):
        aws.poll()
    assert {path for _, path, _ in server.requests} == {"/latest/api/token"}


# --- Google Cloud

GOOGLE = {"Metadata-Flavor": "Google"}


@pytest.fixture
def gcp(server):
    server.pages |= {PREEMPTED: (200, "FALSE", GOOGLE), MAINTENANCE: (200, "NONE", GOOGLE)}
    return made(Gcp, server)


def test_google_says_nothing(gcp, server):
    assert gcp.poll() is None
    assert all(headers["metadata-flavor"] == "Google" for _, _, headers in server.requests)


def test_google_preempts(server, gcp):
    server.pages[PREEMPTED] = (200, "TRUE", GOOGLE)
    notice = gcp.poll()
    assert (notice.kind, notice.deadline_unix_s) == (INTERRUPTION, NOW_S + 25)
    assert notice.text == "Google Cloud will preempt this machine at 12:00:25 UTC."
    gcp._clock = lambda: NOW_S + 20
    assert gcp.poll() is notice  # the end stays where it was first seen


@pytest.mark.parametrize(
    ("event", "kind"), [("TERMINATE_ON_HOST_MAINTENANCE", INTERRUPTION), ("MIGRATE_ON_HOST_MAINTENANCE", ADVICE)]
)
def test_google_maintains(event, kind, server, gcp):
    server.pages[MAINTENANCE] = (200, event + "\n", GOOGLE)
    assert gcp.poll().kind == kind
    server.pages[MAINTENANCE] = (200, "NONE", GOOGLE)
    assert gcp.poll() is None


@pytest.mark.parametrize("page", [(200, "TRUE", {}), (200, "<html>log in</html>", GOOGLE), (500, "TRUE", GOOGLE)])
def test_somebody_else_answers(page, server, gcp):
    server.pages[PREEMPTED] = page
    with pytest.raises(NoAnswer, match="answers preempted"):
        gcp.poll()


# --- Azure


@pytest.fixture
def azure(server):
    server.pages |= {NAME: "trainer_1", EVENTS: json.dumps({"DocumentIncarnation": 1, "Events": []})}
    return made(Azure, server)


def event(kind="Preempt", when="Sun, 01 Mar 2026 12:00:30 GMT", machines=("Trainer_1",), **more):
    return {
        "EventId": "1",
        "EventType": kind,
        "Resources": list(machines),
        "NotBefore": when,
        "ResourceType": "VirtualMachine",
        **more,
    }


def test_azure_says_nothing(azure, server):
    assert azure.poll() is None
    assert all(headers["metadata"] == "true" for _, _, headers in server.requests)


@pytest.mark.parametrize(
    ("events", "deadline_s"),
    [
        ([event()], NOW_S + 30),
        ([event("Terminate", "Sun, 01 Mar 2026 12:05:00 GMT")], NOW_S + 300),
        ([event("Terminate", "Sun, 01 Mar 2026 12:05:00 GMT"), event()], NOW_S + 30),  # the first of several
        ([event(when="")], None),  # it has begun
        ([event(when="Sun, 01 Mar 2026 11:00:00 GMT")], None),
        ([event(when="whenever")], None),
        ([event(when=7)], None),
    ],
)
def test_azure_evicts(events, deadline_s, azure, server):
    server.pages[EVENTS] = json.dumps({"Events": events})
    notice = azure.poll()
    assert (notice.kind, notice.deadline_unix_s) == (INTERRUPTION, deadline_s)


@pytest.mark.parametrize(
    "events",
    [
        [event(machines=["trainer_2"])],
        [event("Freeze")],
        [event("Brew")],
        [None],
        ["Preempt"],
        [{"EventType": "Preempt"}],
        [event(machines=())],
    ],
)
def test_azure_speaks_of_something_else(events, azure, server):
    server.pages[EVENTS] = json.dumps({"Events": events})
    assert azure.poll() is None


def test_azure_does_not_know_this_machine(azure, server):
    server.pages[NAME] = ""
    server.pages[EVENTS] = json.dumps({"Events": [event()]})
    with pytest.raises(NoAnswer, match="does not know this machine"):
        azure.poll()


# --- servers that misbehave


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>captive portal</html>",
        "[1, 2]",
        "null",
        "7",
        '{"action": "dance"}',
        "{" * 5000,
        "[" * 60_000,
        '{"action": ["terminate"]}',
        "\x00\xff",
    ],
)
def test_garbage_is_no_notice(text, aws, azure, server):
    server.pages |= {ACTION: text, EVENTS: text}
    for cloud in (aws, azure):
        with pytest.raises(NoAnswer):
            cloud.poll()


def test_a_redirect_is_not_followed(server):
    server.pages |= {"/a": (302, "", {"Location": f"{server.url}/b"}), "/b": "secret"}
    with pytest.raises(NoAnswer, match="redirects"):
        MetadataServer(server.url).ask("/a")
    assert [path for _, path, _ in server.requests] == ["/a"]


def test_an_endless_answer_is_cut(server):
    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        while not handler.server.released.is_set():
            handler.wfile.write(b"x" * MOST_BYTES)  # raises when the client has gone

    server.pages["/a"] = endless
    with pytest.raises(NoAnswer, match="without an end"):
        MetadataServer(server.url).ask("/a")


def test_a_slow_answer_is_given_up(server):
    server.pages["/a"] = lambda handler: handler.server.released.wait(10) and None
    with pytest.raises(NoAnswer, match="does not answer"):
        MetadataServer(server.url, timeout_s=0.05).ask("/a")


def test_one_that_drips_is_given_up(server):
    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        while not handler.server.released.wait(0.01):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    server.pages["/a"] = drip
    with pytest.raises(NoAnswer, match="without an end"):
        MetadataServer(server.url, timeout_s=0.1).ask("/a")


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 banana\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500,
    ],
)
def test_what_is_no_http(bytes_sent, server):
    def raw(handler):
        handler.wfile.write(bytes_sent)
        handler.close_connection = True

    server.pages["/a"] = raw
    with pytest.raises(NoAnswer):
        MetadataServer(server.url).ask("/a")


def test_nobody_there(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(NoAnswer, match="does not answer"):
        made(Gcp, server).poll()


# --- the whole way


def test_a_notice_reaches_the_loop(server, aws, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    server.pages[ACTION] = json.dumps({"action": "terminate", "time": "2026-03-01T12:02:00Z"})
    woken = threading.Event()
    stop = Stop(source=aws, unix_clock=lambda: NOW_S, clock=lambda: 50.0)
    stop._watcher._on_change = lambda: (stop._wake(), woken.set())
    with stop:
        assert woken.wait(5)
        assert stop.pending
        assert stop.check(50.0, 0.1, 3.0) is None  # two minutes are left: it trains on
        assert stop.check(50.0 + 115, 0.1, 3.0).text == "AWS will terminate this spot instance at 12:02:00 UTC."
