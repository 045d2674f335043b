"""The watcher's thread: what it keeps, when it tells, how it ends."""

import threading

from tests.unit.interruption_samples import Source

from gpuwise.runtime.interruption.notices import INTERRUPTION, POLL_S, Notice
from gpuwise.runtime.interruption.watcher import FAILING_S, SELDOM_S, Watcher

GOING = Notice("fake", INTERRUPTION, None, "it goes")


def test_tells_of_changes_only():
    messages = []
    watcher = Watcher(Source(None, GOING, GOING, None), on_change=lambda: messages.append(watcher.latest))
    for _ in range(4):
        watcher.look()
    assert messages == [GOING, None]


def test_an_answer_of_no_use_keeps_what_stands():
    watcher = Watcher(Source(GOING, OSError("html")))
    watcher.look()
    watcher.look()
    assert watcher.latest == GOING
    assert watcher.problem is None


def test_lasting_failure_is_told_once_whatever_is_raised():
    answer, now_s = [], [0.0]
    watcher = Watcher(
        Source(TypeError("a bug\n in a source")), on_change=lambda: answer.append(watcher.problem), clock=lambda: now_s[0]
    )
    for now_s[0] in (1.0, FAILING_S - 1, FAILING_S + 1, FAILING_S + 2, 10 * FAILING_S):
        watcher.look()
    assert len(answer) == 1
    assert "fake could not be read for 181 s (a bug in a source)" in answer[0].replace("3.02 min", "181 s")


def test_polls_at_its_pace_and_ends():
    waited, polled = [], threading.Event()

    def wait(seconds):
        waited.append(seconds)
        polled.set()
        return len(waited) == 3

    with Watcher(Source(None), wait=wait) as watcher:
        watcher._thread.join(5)
    assert not watcher._thread.is_alive()
    assert waited == [POLL_S] * 3


def test_a_source_that_fails_is_asked_seldom(monkeypatch):
    monkeypatch.setattr("gpuwise.runtime.interruption.watcher.FAILING_S", 0.0)
    waited = []
    with Watcher(Source(OSError()), wait=lambda seconds: waited.append(seconds) or True) as watcher:
        watcher._thread.join(5)
    assert waited == [SELDOM_S]


def test_closing_does_not_wait_for_a_poll():
    begun, released = threading.Event(), threading.Event()

    class Slow:
        name = "slow"

        def poll(self):
            begun.set()
            released.wait(10)

    with Watcher(Slow()) as watcher:
        assert begun.wait(5)
    assert watcher._thread.is_alive()
    released.set()
    watcher._thread.join(5)
    assert not watcher._thread.is_alive()
