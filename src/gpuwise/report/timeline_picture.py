"""A StepTimeline as an SVG picture, as text for a terminal, and as a trace for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from gpuwise.cost.timeline.step import StepTimeline, TimelineLane, TimelineSpan
from gpuwise.report.parts import strategy_words
from gpuwise.report.picture import check_picture, save_text
from gpuwise.report.svg_chart import ticks
from gpuwise.units import format_duration

FLAG = "--timeline"
SUFFIXES = (".svg", ".json")
# Colour, and the letter in text.
LOOK = {
    "forward": ("#5aa377", "F"),
    "backward": ("#e3a13c", "B"),
    "recompute": ("#f0d28c", "r"),
    "optimizer": ("#33508a", "O"),
    "communication": ("#8d6cab", "c"),
    "input": ("#5f5f5f", "i"),
    "offload": ("#9c6b4f", "o"),
}
_WIDTH, _LEFT, _RIGHT, _TOP = 1200.0, 110.0, 20.0, 84.0
_COLUMNS = 96
_PROCESS = 1
_BUSY = 0.05  # of a column of text: less is waiting
_NEAR = 0.02  # seconds drawn that differ by less from the forecast's are not told apart
_NARROW = 0.25  # of a unit of the picture: spans of one kind that are no further apart are drawn as one


def save_timeline(timeline: StepTimeline, path: str | os.PathLike[str]) -> Path:
    """Writes the picture, or the trace; the file is whole or is not there.

    Raises InputError for another ending or a folder that cannot be written.
    """
    target = check_picture(path, FLAG, SUFFIXES)
    text = svg(timeline) if target.suffix.lower() == ".svg" else json.dumps(chrome_trace(timeline))
    return save_text(text, target)


def chrome_trace(timeline: StepTimeline) -> dict[str, object]:
    """The timeline in the Trace Event Format (Google, "Trace Event Format", 2016): complete events, times in microseconds.

    Processes and threads are numbered from 1: Perfetto takes 0 for the idle task of Linux, and has merged thread 0 with
    thread 1 (github.com/google/perfetto, issue 394 and pull request 2278).
    """
    events = [_metadata("process_name", 1, name=_title(timeline))]
    for number, lane in enumerate(timeline.lanes, start=1):
        events += [_metadata("thread_name", number, name=lane.name), _metadata("thread_sort_index", number, sort_index=number)]
        events += [
            {
                "name": span.name,
                "cat": span.kind,
                "ph": "X",
                "ts": span.start_s * 1e6,
                "dur": (span.end_s - span.start_s) * 1e6,
                "pid": _PROCESS,
                "tid": number,
            }
            for span in lane.spans
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _metadata(what: str, thread: int, **args: str | int) -> dict[str, object]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": thread, "args": args}


def svg(timeline: StepTimeline) -> str:
    """The picture: a row for each lane, time from left to right."""
    lanes, whole_s = timeline.lanes, timeline.whole_s or 1.0
    row = max(10.0, min(30.0, 600.0 / len(lanes)))
    bottom = _TOP + row * len(lanes)
    scale = (_WIDTH - _LEFT - _RIGHT) / whole_s
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {bottom + 40:.0f}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="20" y="26" font-size="16" font-weight="bold">{escape(_title(timeline))}</text>',
        f'<text x="20" y="44" font-size="11" fill="#555">{escape(_subtitle(timeline))}</text>',
        _legend(timeline),
    ]
    for second in ticks(0, whole_s, 8):
        x = _LEFT + second * scale
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom:.1f}" stroke="black" stroke-opacity="0.15"/>')
        words = format_duration(second) if second else "0"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18:.1f}" font-size="10" fill="#555" text-anchor="middle">{words}</text>')
    for number, lane in enumerate(lanes):
        top = _TOP + number * row
        size = min(11.0, row - 1)
        parts.append(
            f'<text x="{_LEFT - 8:.0f}" y="{top + row / 2 + size / 3:.1f}" font-size="{size:.0f}" text-anchor="end">'
            f"{escape(lane.name)}</text>"
        )
        for span in joined(lane.spans, _NARROW / scale):
            left, width = _LEFT + span.start_s * scale, max(0.1, (span.end_s - span.start_s) * scale)
            box = f'x="{left:.2f}" y="{top + 1:.1f}" width="{width:.2f}" height="{row - 2:.1f}" fill="{LOOK[span.kind][0]}"'
            words = f"{span.name}, {format_duration(span.end_s - span.start_s)}"
            edge = ' stroke="white" stroke-width="0.6"' if width > 3 else ""
            parts.append(f"<rect {box}{edge}><title>{escape(words)}</title></rect>")
    return "\n".join([*parts, "</svg>\n"])


def joined(spans: Sequence[TimelineSpan], gap_s: float) -> list[TimelineSpan]:
    """The spans, those that are too narrow to be seen with their neighbours of the same kind."""
    result: list[TimelineSpan] = []
    for span in spans:
        last = result[-1] if result else None
        narrow = last is not None and min(span.end_s - span.start_s, last.end_s - last.start_s) <= 4 * gap_s
        if last is not None and narrow and last.kind == span.kind and span.start_s - last.end_s <= gap_s:
            result[-1] = TimelineSpan(span.kind, span.kind, last.start_s, span.end_s)
        else:
            result.append(span)
    return result


def _title(timeline: StepTimeline) -> str:
    count = timeline.forecast.count
    return f"{timeline.job} on {timeline.device}" + (f" x {count}" if count > 1 else "")


def _subtitle(timeline: StepTimeline) -> str:
    forecast_s, drawn_s = timeline.forecast.step_time_s.value, timeline.whole_s
    drawn = f", {format_duration(drawn_s)} of it drawn" if drawn_s < (1 - _NEAR) * forecast_s else ""
    if drawn_s > (1 + _NEAR) * forecast_s:
        drawn = f", drawn as {format_duration(drawn_s)}: the host launches each row when its turn comes"
    return f"{strategy_words(timeline.strategy)}: {timeline.remark}; a step of {format_duration(forecast_s)}{drawn}"


def _kinds(timeline: StepTimeline) -> list[str]:
    there = {span.kind for lane in timeline.lanes for span in lane.spans}
    return [kind for kind in LOOK if kind in there]


def _legend(timeline: StepTimeline) -> str:
    parts, x = [], _LEFT
    for kind in _kinds(timeline):
        parts.append(f'<rect x="{x:.0f}" y="56" width="12" height="12" fill="{LOOK[kind][0]}"/>')
        parts.append(f'<text x="{x + 17:.0f}" y="66" font-size="11">{kind}</text>')
        x += 34 + 7 * len(kind)
    return "".join(parts)


def text_timeline(timeline: StepTimeline) -> str:
    """The picture in letters: what a lane does for most of each of equal parts of the step."""
    wide = max((len(lane.name) for lane in timeline.lanes), default=0)
    lines = [f"{_title(timeline)}: {_subtitle(timeline)}", ""]
    lines += [f"{lane.name:>{wide}} |{_letters(lane, timeline.whole_s)}|" for lane in timeline.lanes]
    legend = ", ".join(f"{LOOK[kind][1]} {kind}" for kind in _kinds(timeline))
    return "\n".join([*lines, "", f"{legend}; a space waits"])


def _letters(lane: TimelineLane, whole_s: float) -> str:
    each_s = whole_s / _COLUMNS if whole_s else 1.0
    seconds: list[dict[str, float]] = [{} for _ in range(_COLUMNS)]
    for span in lane.spans:
        first, last = int(span.start_s / each_s), min(_COLUMNS - 1, int(span.end_s / each_s))
        for column in range(first, last + 1):
            share_s = min(span.end_s, (column + 1) * each_s) - max(span.start_s, column * each_s)
            seconds[column][span.kind] = seconds[column].get(span.kind, 0.0) + share_s
    return "".join(_letter(of_column, each_s) for of_column in seconds)


def _letter(seconds: Mapping[str, float], whole_s: float) -> str:
    """Of the kind that takes most of these seconds; a space where next to all of them pass in waiting. The rows of a step that
    its host limits are short, with waits between them."""
    if sum(seconds.values()) < _BUSY * whole_s:
        return " "
    return LOOK[max(seconds, key=lambda kind: seconds[kind])][1]
