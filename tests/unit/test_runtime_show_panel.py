"""The live panel: whole on any width and in any encoding, and cheap."""

import io
import math
import re
import sys
from dataclasses import replace

import pytest
from rich.cells import cell_len
from tests.unit.test_runtime_show_displays import FULL, UPDATE, Terminal

from gpuwise.runtime.show.panel import MOST_SHARE, PANEL_EVERY_S, Panel, packed
from gpuwise.runtime.show.spark import DownsampledCurve, sparkline


def frame(update, *, width, monkeypatch, encoding=None, losses=(), title="gpt2"):
    """The lines of the last drawing."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = type("Stream", (Terminal,), {"encoding": encoding})()
    with Panel(stream, title=title) as panel:
        for loss in losses:
            panel.show(replace(update, loss=loss))
        panel.show(update)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "")
    last = plain[plain.rindex("╭" if encoding is None else "+- ") :]
    return last.rstrip("\n").splitlines()


@pytest.mark.parametrize(("width", "drawn"), [(20, 20), (40, 40), (80, 80), (100, 100), (250, 100)])
def test_the_frame_is_whole_on_every_width(monkeypatch, width, drawn):
    lines = frame(FULL, width=width, monkeypatch=monkeypatch, losses=range(1, 60))
    assert {cell_len(line) for line in lines} == {drawn}
    assert lines[0].startswith("╭")
    assert lines[-1].startswith("╰")


def test_all_is_there_on_80_columns(monkeypatch):
    text = "\n".join(frame(FULL, width=80, monkeypatch=monkeypatch))
    for words in (
        "gpt2 · step 41/100 · 41 %",
        "0.25 · lr 0.0003",
        "accuracy 0.9123",
        "780 samples/s · MFU 41 %",
        "3 % waiting for data",
        "41 ms · forecast 38 ms (31 to 52)",
        "13 GiB of 24 GiB",
        "2 s left",
        "$1.13 spent, $3.20 left",
        "step 40 saved 32 s ago",
    ):
        assert words in text, words


def test_all_is_there_on_40_columns_too(monkeypatch):
    text = " ".join(line[2:-2].strip() for line in frame(FULL, width=40, monkeypatch=monkeypatch))
    for words in ("step 41/100", "loss 0.25 · lr 0.0003", "forecast 38 ms (31 to 52)", "memory 13 GiB of 24 GiB"):
        assert words in text, words


def test_an_encoding_without_blocks_gets_ascii(monkeypatch):
    lines = frame(replace(FULL, step_time_s=2.5e-5), width=80, monkeypatch=monkeypatch, encoding="latin-1", losses=range(1, 99))
    assert all(line.isascii() for line in lines)
    assert {len(line) for line in lines} == {80}
    assert any("25 us" in line for line in lines)


def test_little_is_known_at_first(monkeypatch):
    bare = replace(UPDATE, step=1, remaining_s=None, forecast=None, loss=math.nan)
    assert "step 1/100 · 1 %" in frame(bare, width=80, monkeypatch=monkeypatch, title="")[0]


def test_a_note_is_printed_once_as_it_is():
    stream = Terminal()
    with Panel(stream) as panel:
        panel.note("data [is] synthetic")
        for _ in range(2):
            panel.show(UPDATE)
    assert stream.getvalue().count("data [is] synthetic") == 1


def test_the_cursor_is_given_back():
    stream = Terminal()

    def interrupted():
        with Panel(stream) as panel:
            panel.show(UPDATE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_drawn_four_times_a_second_at_most():
    panel = Panel(Terminal())
    assert panel.due(100.0)
    assert not panel.due(100.0 + PANEL_EVERY_S / 2)
    assert panel.due(100.0 + PANEL_EVERY_S)


def test_a_slow_terminal_is_drawn_on_less_often():
    now_s = iter((0.0, 0.05))
    panel = Panel(Terminal(), clock=lambda: next(now_s))
    assert panel.due(100.0)
    panel.show(UPDATE)
    assert not panel.due(100.0 + 0.9 * 0.05 / MOST_SHARE)
    assert panel.due(100.0 + 1.1 * 0.05 / MOST_SHARE)


def test_packed_loses_no_word():
    words = ["alpha", "beta", "a longer one of several words", "gamma"]
    lines = packed(words, 12, " · ")
    assert max(map(len, lines)) <= 12
    assert " ".join(lines).replace(" · ", " ").split() == " ".join(words).split()


def test_a_curve_keeps_its_length_and_its_course():
    curve = DownsampledCurve(most=8)
    for value in range(1000):
        curve.add(float(value))
    curve.add(math.nan)
    points = curve.points()
    assert len(points) <= 9
    assert points == sorted(points)


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([1.0], "a"), ([5.0, 5.0], "aa"), ([0.0, 1.0, 2.0], "abc"), ([1.0, 10.0, 100.0], "abc"), ([3.0, -1.0], "ca")],
)
def test_sparkline(values, drawn):
    assert sparkline(values, cells=3, glyphs="abc") == drawn


@pytest.mark.parametrize("stdout", [Terminal, io.StringIO])
def test_what_the_job_prints_goes_above_the_panel_or_where_it_was_sent(monkeypatch, stdout):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    monkeypatch.setattr("sys.stdout", out := stdout())
    with Panel() as panel:
        panel.show(UPDATE)
        print("from the job")
        panel.show(UPDATE)
    assert ("from the job" in stream.getvalue()) == out.isatty()
    assert ("from the job" in out.getvalue()) != out.isatty()


def test_what_the_job_prints_to_a_terminal_that_is_gone_is_dropped(monkeypatch):
    class Going(Terminal):
        def write(self, text):
            if there:
                return super().write(text)
            raise BrokenPipeError

    there = True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Going())
    monkeypatch.setattr("sys.stdout", Going())
    with Panel() as panel:
        panel.show(UPDATE)
        there = False
        panel.show(UPDATE)
        print("from the job")
        assert not panel.due(math.inf)
    there = True
    print("after it")
    assert sys.stdout.getvalue() == "after it\n"
