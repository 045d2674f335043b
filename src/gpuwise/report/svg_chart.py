"""Curves over optimizer steps as inline SVG, coloured by the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from gpuwise.cost.forecast import Interval

Point = tuple[float, float]
Projection = Callable[[float], float]  # from a value to a coordinate of the picture

STYLE = """:root { --curve: #33508a; --mark: #cf5a56; --band: #e3a13c; --good: #3f8f63 }
@media (prefers-color-scheme: dark) { :root { --curve: #8fb0f0; --mark: #ef8580; --band: #e9b765; --good: #7cc79c } }
figure { margin: 0; background: var(--panel); border-radius: 8px; padding: .8em 1em .4em }
figcaption { font-weight: 600 } figcaption span { font-weight: 400; color: var(--dim) }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif } svg text { fill: var(--dim) }
.grid { stroke: var(--rule) } .raw { stroke: var(--curve); opacity: .35; fill: none }
.curve { stroke: var(--curve); stroke-width: 2; fill: none; stroke-linejoin: round } .dot { fill: var(--curve) }
.band { fill: var(--band); opacity: .18 } .expected { stroke: var(--band); stroke-dasharray: 6 4; stroke-width: 1.5 }
.trouble { fill: var(--mark) } .saved { stroke: var(--good); stroke-width: 1.5 }
.resumed { stroke: var(--mark); stroke-dasharray: 3 3 }"""

_LEFT, _RIGHT, _TOP, _BOTTOM = 68.0, 30.0, 14.0, 34.0
_HEIGHT = 240.0
_BUCKETS = 400  # of points of a long curve: each is drawn by its lowest and its highest
_SMOOTHED = 0.03  # of the curve's length, on either side: what the thick line is the mean of
_LOG_FROM = 20.0  # times the lowest value: a curve that spans more has a logarithmic scale
_OUTLIERS = 0.01  # of the points on each side: where clipped, the scale does not follow them


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step. kind: saved (a tick below), resumed (a line across) or trouble (a triangle above)."""

    step: float
    kind: str
    text: str


@dataclass(frozen=True)
class Chart:
    """One quantity over steps.

    show: a value in words, for the axis. unit: what round numbers of the axis are round in, 2**30 for bytes. note: beside
    the title. expected: drawn as a line in a band. logarithmic: where the values span enough. clipped: outliers do not set
    the scale. from_zero: the scale begins there. smoothed: a thick line of means over the thin one of single values.
    width: in the unit in which letters are 12 high.
    """

    title: str
    points: Sequence[Point]
    show: Callable[[float], str]
    note: str = ""
    unit: float = 1.0
    expected: Interval | None = None
    logarithmic: bool = False
    clipped: bool = False
    from_zero: bool = False
    smoothed: bool = True
    width: float = 560.0

    def svg(self, marks: Sequence[Mark], steps: tuple[float, float]) -> str:
        """A <figure>. steps: what the axis reaches from and to."""
        low, high, log = self._range()
        first, last = steps if steps[1] > steps[0] else (steps[0] - 1, steps[0] + 1)

        def x(step: float) -> float:
            return _LEFT + (step - first) / (last - first) * (self.width - _LEFT - _RIGHT)

        def y(value: float) -> float:
            value = min(max(value, low), high)
            share = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
            return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

        parts = [self._axes(x, y, (low, high, log), (first, last)), self._band(y)]
        parts += [_drawn(mark, x(mark.step)) for mark in _apart(marks, x) if first <= mark.step <= last]
        corners = [(x(step), y(value)) for step, value in envelope(self.points)]
        if len(corners) == 1:
            parts.append(f'<circle class="dot" cx="{corners[0][0]:.1f}" cy="{corners[0][1]:.1f}" r="3"/>')
        else:
            parts.append(_path("raw" if self.smoothed else "curve", corners))
        if self.smoothed and len(self.points) > 2:
            parts.append(_path("curve", [(x(step), y(value)) for step, value in smooth(self._within(low, high))]))
        note = f" <span>{escape(self.note)}</span>" if self.note else ""
        title, box = escape(self.title), f'viewBox="0 0 {self.width:.0f} {_HEIGHT:.0f}"'
        drawn = "\n".join(filter(None, parts))
        return (
            f"<figure><figcaption>{title}{note}</figcaption>\n"
            f'<svg {box} role="img" aria-label="{title} over steps">{drawn}</svg></figure>'
        )

    def _range(self) -> tuple[float, float, bool]:
        """The ends of the vertical axis, and whether it is logarithmic."""
        values = sorted(value for _, value in self.points)
        outside = int(_OUTLIERS * len(values)) if self.clipped else 0
        low, high = values[outside], values[len(values) - 1 - outside]
        if self.expected is not None:
            low, high = min(low, self.expected.low), max(high, self.expected.high)
        log = self.logarithmic and low > 0 and high > _LOG_FROM * low
        if log:
            return low / 1.1, high * 1.1, True
        low = 0.0 if self.from_zero else low
        margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin, False

    def _within(self, low: float, high: float) -> Sequence[Point]:
        return [(step, min(max(value, low), high)) for step, value in self.points] if self.clipped else self.points

    def _axes(self, x: Projection, y: Projection, up: tuple[float, float, bool], across: Point) -> str:
        low, high, log = up
        values = decades(low, high) if log else [self.unit * tick for tick in ticks(low / self.unit, high / self.unit, 5)]
        right, bottom = self.width - _RIGHT, _HEIGHT - _BOTTOM
        lines = [
            f'<line class="grid" x1="{_LEFT:.0f}" x2="{right:.0f}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text x="{_LEFT - 8:.0f}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(self.show(value))}</text>'
            for value in values
        ]
        lines += [
            f'<text x="{x(step):.1f}" y="{bottom + 20:.0f}" text-anchor="middle">{step:,.0f}</text>'
            for step in ticks(*across, 6)
            if step == int(step)
        ]
        return "\n".join(lines)

    def _band(self, y: Projection) -> str:
        if self.expected is None:
            return ""
        top, bottom, right = y(self.expected.high), y(self.expected.low), self.width - _RIGHT
        sentence = (
            f"forecast {self.show(self.expected.value)} ({self.show(self.expected.low)} to {self.show(self.expected.high)})"
            if self.expected.low < self.expected.high
            else f"forecast {self.show(self.expected.value)}"
        )
        line = f'y1="{y(self.expected.value):.1f}" y2="{y(self.expected.value):.1f}"'
        return (
            f'<g><title>{escape(sentence)}</title><rect class="band" x="{_LEFT:.0f}" y="{top:.1f}" '
            f'width="{right - _LEFT:.0f}" height="{bottom - top:.1f}"/>'
            f'<line class="expected" x1="{_LEFT:.0f}" x2="{right:.0f}" {line}/></g>'
        )


def envelope(points: Sequence[Point], buckets: int = _BUCKETS) -> list[Point]:
    """The points, or of a long curve the lowest and the highest of each bucket: no spike is lost."""
    if len(points) <= 2 * buckets:
        return list(points)
    kept: list[Point] = []
    for bucket in range(buckets):
        part = points[bucket * len(points) // buckets : (bucket + 1) * len(points) // buckets]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return kept


def smooth(points: Sequence[Point], most: int = _BUCKETS) -> list[Point]:
    """Means over neighbours on both sides; at most `most` points, the first and the last among them.

    The window opens with the curve, which is steep at its beginning; at its end it closes on the right alone.
    """
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    wide = max(1, int(_SMOOTHED * len(points)))
    last = len(points) - 1
    indices = sorted({round(i * last / (most - 1)) for i in range(most)}) if last >= most else range(last + 1)
    windows = [(index, max(0, index - wide), min(last, index + min(wide, index)) + 1) for index in indices]
    return [(points[index][0], (sums[end] - sums[begin]) / (end - begin)) for index, begin, end in windows]


def ticks(low: float, high: float, about: int) -> list[float]:
    """About so many round numbers between low and high."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [apart * number for number in range(math.ceil(low / apart), math.floor(high / apart) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten between low and high, with their doubles and fives where those are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    apart = 1 + len(powers) // 8
    values = [factor * 10.0**power for power in powers if power % apart == 0 for factor in factors]
    return [value for value in values if low <= value <= high]


def _apart(marks: Sequence[Mark], x: Projection) -> list[Mark]:
    """One mark of a kind a place: thousands of checkpoints are not thousands of ticks."""
    return list({(mark.kind, round(x(mark.step))): mark for mark in marks}.values())


def _drawn(mark: Mark, x: float) -> str:
    bottom = _HEIGHT - _BOTTOM
    shape = {
        "saved": f'<line class="saved" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.0f}" y2="{bottom + 6:.0f}"/>',
        "resumed": f'<line class="resumed" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP:.0f}" y2="{bottom:.0f}"/>',
        "trouble": f'<path class="trouble" d="M{x - 5:.1f} 2h10l-5 8z"/>',
    }[mark.kind]
    return f"<g><title>{escape(mark.text)}</title>{shape}</g>"


def _path(name: str, corners: Sequence[Point]) -> str:
    return f'<path class="{name}" d="M' + "L".join(f"{across:.1f} {up:.1f}" for across, up in corners) + '"/>'
