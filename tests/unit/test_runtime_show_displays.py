"""What a run shows: never too often, the forecast beside what is measured, and no harm when nobody can see it."""

import io
from dataclasses import replace

import pytest

from gpuwise.cost.forecast import Interval
from gpuwise.errors import InputError
from gpuwise.runtime.show.displays import LINE_EVERY_S, LineDisplay, Silent
from gpuwise.runtime.show.kinds import display
from gpuwise.runtime.show.panel import Panel
from gpuwise.runtime.show.update import LastCheckpoint, ProgressUpdate, beside

FORECAST = Interval(0.038, 0.031, 0.052)
UPDATE = ProgressUpdate(
    step=41, steps=100, samples=1312, loss=0.25, step_time_s=0.041, samples_per_s=780.0, remaining_s=2.0, forecast=FORECAST
)
FULL = replace(
    UPDATE,
    learning_rate=3e-4,
    mfu=0.413,
    memory_bytes=13 * 2**30,
    memory_capacity_bytes=24 * 2**30,
    data_share=0.031,
    usd_spent=1.13,
    usd_left=3.2,
    checkpoint=LastCheckpoint(40, 32.0),
    metrics={"accuracy": 0.9123},
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("step_time_s", "forecast", "shown"),
    [
        (0.041, FORECAST, "step 41 ms; forecast 38 ms (31 to 52)"),
        (0.041, None, "step 41 ms"),
        (2.5e-5, FORECAST, "step 25 µs; forecast 38,000 µs (31,000 to 52,000)"),
        (90.0, Interval(60, 30, 120), "step 1.5 min; forecast 1 min (0.5 to 2)"),
    ],
)
def test_beside(step_time_s, forecast, shown):
    assert beside(step_time_s, forecast) == shown


def printed(*updates):
    stream = io.StringIO()
    lines = LineDisplay(stream)
    for update in updates:
        lines.show(update)
    return stream.getvalue().splitlines()


def test_plain_line():
    assert printed(UPDATE) == ["step 41/100 · loss 0.25 · 780 samples/s · 2 s left · step 41 ms; forecast 38 ms (31 to 52)"]


def test_plain_line_with_all_that_can_be_known():
    assert printed(FULL) == [
        "step 41/100 · loss 0.25 · lr 0.0003 · accuracy 0.9123 · 780 samples/s · MFU 41 % · 3 % waiting for data · 2 s left · "
        "step 41 ms; forecast 38 ms (31 to 52) · 13 GiB of 24 GiB · $1.13 spent, $3.20 left · step 40 saved 32 s ago"
    ]


def test_what_is_not_known_or_over_is_left_out():
    bare = replace(UPDATE, remaining_s=None, forecast=None)
    assert printed(bare) == ["step 41/100 · loss 0.25 · 780 samples/s · step 41 ms"]
    assert "left" not in printed(replace(FULL, step=100))[0]


def test_metrics_are_told_when_they_change():
    lines = printed(FULL, FULL, replace(FULL, metrics={"accuracy": 0.95}))
    assert ["accuracy" in line for line in lines] == [True, False, True]


def test_a_failed_save_is_told():
    assert "not saved: No space left on device" in printed(replace(FULL, checkpoint_problem="No space left on device"))[0]


def test_a_stream_without_unicode_gets_plain_characters():
    file = io.BytesIO()
    stream = io.TextIOWrapper(file, encoding="ascii")
    lines = LineDisplay(stream)
    lines.show(replace(UPDATE, step_time_s=2.5e-5))
    lines.note("データ")
    assert b"25 us; forecast" in file.getvalue()
    assert file.getvalue().endswith(b"note: ???\n")


@pytest.mark.parametrize("kind", ["plain", "panel"])
def test_a_name_that_is_no_text_is_shown_as_far_as_it_is(kind):
    file = io.BytesIO()
    with display(kind, io.TextIOWrapper(file, encoding="utf-8")) as shown:
        shown.note("the file \udc80abc")
        shown.show(UPDATE)
        assert shown.due(0.0)
    assert b"the file ?abc" in file.getvalue()


def test_lines_come_every_ten_seconds():
    lines = LineDisplay(io.StringIO())
    assert lines.due(100.0)
    assert not lines.due(100.0 + LINE_EVERY_S / 2)
    assert lines.due(100.0 + LINE_EVERY_S)


@pytest.mark.parametrize("kind", ["plain", "panel"])
def test_a_stream_that_is_gone_ends_the_showing_only(kind):
    class Gone(Terminal):
        def write(self, text):
            raise BrokenPipeError

    with display(kind, Gone()) as shown:
        shown.note("anything")
        shown.show(UPDATE)
        assert not shown.due(0.0)


@pytest.mark.parametrize("kind", ["plain", "panel"])
def test_a_closed_stream_ends_the_showing_only(kind):
    stream = Terminal()
    with display(kind, stream) as shown:
        shown.show(UPDATE)
        stream.close()
        shown.show(UPDATE)
        shown.note("anything")


def test_kind_follows_the_stream(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display(stream=Terminal()), Panel)
    assert isinstance(display("bar", io.StringIO()), Panel)
    assert isinstance(display(stream=io.StringIO()), LineDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(display(stream=Terminal()), LineDisplay)
    silent = io.StringIO()
    with display("silent", silent) as shown:
        shown.show(UPDATE)
        shown.note("anything")
    assert isinstance(shown, Silent)
    assert silent.getvalue() == ""
    with pytest.raises(InputError, match="unknown kind"):
        display("fancy")
