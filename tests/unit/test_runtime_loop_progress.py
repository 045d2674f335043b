"""What a run shows: never too often, and the forecast beside what is measured."""

import io

import pytest

from gpuwise.cost.forecast import Interval
from gpuwise.errors import InputError
from gpuwise.runtime.progress import BAR_EVERY_S, Bar, Lines, Silent, Update, beside, display
from gpuwise.runtime.result import measured_step_time

FORECAST = Interval(0.038, 0.031, 0.052)
UPDATE = Update(41, 100, 1312, 0.25, 0.041, 780.0, 2.0, FORECAST)


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


def test_plain_line():
    stream = io.StringIO()
    Lines(stream).show(UPDATE)
    assert stream.getvalue() == ("step 41/100 · loss 0.25 · 780 samples/s · 2 s left · step 41 ms; forecast 38 ms (31 to 52)\n")


def test_bar_shows_the_same_and_gives_the_cursor_back():
    stream = Terminal()
    with Bar(stream) as bar:
        bar.note("data [is] synthetic")
        bar.show(UPDATE)
    text = stream.getvalue()
    assert "41/100" in text
    assert "step 41 ms; forecast 38 ms (31 to 52)" in text
    assert "data [is] synthetic" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_drawn_a_few_times_a_second_at_most():
    bar = Bar(Terminal())
    assert bar.due(100.0)
    assert not bar.due(100.0 + BAR_EVERY_S / 2)
    assert bar.due(100.0 + BAR_EVERY_S)
    assert BAR_EVERY_S >= 0.1


def test_kind_follows_the_stream():
    assert isinstance(display(stream=Terminal()), Bar)
    assert isinstance(display(stream=io.StringIO()), Lines)
    silent = io.StringIO()
    with display("silent", silent) as shown:
        shown.show(UPDATE)
        shown.note("anything")
    assert isinstance(shown, Silent)
    assert silent.getvalue() == ""
    with pytest.raises(InputError, match="unknown kind"):
        display("fancy")


def test_measured_leaves_the_warm_up_out():
    measured = measured_step_time([9.0, 9.0, 9.0, *(float(i) for i in range(11))])
    assert (measured.median_s, measured.low_s, measured.high_s, measured.steps) == (5.0, 1.0, 9.0, 11)


def test_short_runs_are_measured_by_their_last_step():
    assert measured_step_time([9.0, 2.0]).median_s == 2.0
    assert measured_step_time([9.0]).steps == 1
