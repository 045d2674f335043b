"""Stop signals: which count, what a second does, and that handlers are put back."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuwise.runtime.interruption.signals import SAME_REQUEST_S, STOP_SIGNALS, StopSignals


@pytest.fixture(autouse=True)
def _signals_arrive():
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def handlers():
    return {number: signal.getsignal(number) for number in STOP_SIGNALS}


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_is_kept_and_told(number):
    messages = []
    with StopSignals(lambda: messages.append("first")) as stop:
        assert stop.received is None
        signal.raise_signal(number)
        assert stop.received is number
    assert messages == ["first"]
    assert set(handlers().values()) == {signal.SIG_DFL}


@pytest.mark.parametrize("first", STOP_SIGNALS)
@pytest.mark.parametrize("second", STOP_SIGNALS)
def test_a_second_ends_at_once(first, second):
    clock = Clock()
    with StopSignals(clock=clock) as stop:
        signal.raise_signal(first)
        clock.now_s = 1.0
        with pytest.raises(KeyboardInterrupt if second is signal.SIGINT else SystemExit) as raised:
            signal.raise_signal(second)
        assert stop.received is first
    if second is not signal.SIGINT:
        assert raised.value.code == 128 + second


def test_the_same_signal_delivered_twice_is_one_request():
    clock = Clock()
    with StopSignals(clock=clock):
        signal.raise_signal(signal.SIGTERM)
        clock.now_s = SAME_REQUEST_S / 2
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):  # another signal is another request
            signal.raise_signal(signal.SIGINT)


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.received is None
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_handlers_are_put_back_when_the_run_fails():
    mine = lambda number, frame: None  # noqa: E731
    signal.signal(signal.SIGUSR1, mine)
    with pytest.raises(ZeroDivisionError), StopSignals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGUSR1) is mine


def test_outside_the_main_thread_nothing_changes():
    def run():
        with StopSignals() as stop:
            return stop.received, handlers()

    before = handlers()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result() == (None, before)
