"""Quantities as people write them: parsed to base units (bytes, seconds, dollars, counts), and printed back.

GB is 10^9 bytes and GiB is 2^30: the two are never mixed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime

from gpuwise.errors import InputError

_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ%]*)")
LONGEST = 100  # characters of a quantity
RAREST, FASTEST = 1 / (366 * 86400), 1e9  # how often a second: clocks of loads beyond them lose the digits of latencies

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "pib": 2**50,
}
_SECONDS = {
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "sec": 1,
    "second": 1,
    "seconds": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "minutes": 60,
    "h": 3600,
    "hr": 3600,
    "hour": 3600,
    "hours": 3600,
    "d": 86400,
    "day": 86400,
    "days": 86400,
    "w": 604800,
    "week": 604800,
    "weeks": 604800,
}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def _parse(text: str, scale: Mapping[str, float], kind: str, examples: str) -> float:
    text = str(text).strip()
    match = _NUMBER.fullmatch(text) if len(text) <= LONGEST else None
    if not match or match[2].lower() not in scale:
        raise InputError(f"cannot read {text!r} as {kind}.", [f"write it like {examples}"])
    value = float(match[1].replace("_", "")) * scale[match[2].lower()]
    if not math.isfinite(value):
        raise InputError(f"{kind} {text!r} is not finite.", [f"write it like {examples}"])
    return value


def _positive(value: float, text: str, kind: str, examples: str) -> float:
    if value <= 0:
        raise InputError(f"{kind} must be above zero, got {text!r}.", [f"write it like {examples}"])
    return value


def parse_bytes(text: str) -> int:
    """'24GB' -> 24_000_000_000, '24GiB' -> 25_769_803_776. Raises InputError."""
    return round(_positive(_parse(text, _BYTES, "a memory size", "24GB or 24GiB"), text, "a memory size", "24GB or 24GiB"))


def parse_duration(text: str) -> float:
    """'3d', '12h', '90min' -> seconds; a unit is required. Raises InputError."""
    kind, examples = "a duration", "30d, 12h or 90min"
    return _below_a_century(_positive(_parse(text, _SECONDS, kind, examples), text, kind, examples), text)


def parse_deadline(text: str, *, now: datetime) -> float:
    """'3d', or a day such as '2027-01-31', until whose end it is -> seconds from now. Raises InputError."""
    try:
        day = datetime.strptime(text.strip(), "%Y-%m-%d")
    except ValueError:
        return parse_duration(text)
    left_s = (day - now).total_seconds() + 86400
    if left_s <= 0:
        raise InputError(f"the deadline {text.strip()} has passed.", ["a later day", "a duration, such as 30d"])
    return _below_a_century(left_s, text)


def parse_usd(text: str) -> float:
    """'20000', '$20k', '1.5M' -> dollars. Raises InputError."""
    value = _parse(
        str(text).strip().removeprefix("$"),
        {"": 1, "usd": 1, "k": 10**3, "m": 10**6},
        "an amount of dollars",
        "20000, $500 or 20k",
    )
    if value < 0:
        raise InputError(f"an amount of dollars cannot be negative, got {text!r}.")
    return value


def parse_count(text: str, kind: str = "a count") -> int:
    """'20B' -> 20_000_000_000, '50k' -> 50_000; at least 1 and below 1e18. Raises InputError."""
    examples = "20B, 1.5M or 50000"
    value = _positive(_parse(text, _COUNTS, kind, examples), text, kind, examples)
    if value < 1 or value >= 1e18:
        raise InputError(f"{kind} {text!r} is not a sensible number.", [f"write it like {examples}"])
    return round(value)


def parse_rate(text: str) -> float:
    """'5/s', '90/min', '10k/day' -> how often a second, from one a year to a billion. Raises InputError."""
    (count, slash, period), examples = str(text).partition("/"), "5/s, 90/min or 10k/day"
    if not slash:
        raise InputError(f"cannot read {text!r} as a rate.", [f"write it like {examples}"])
    often = _positive(_parse(count, _COUNTS, "a rate", examples), text, "a rate", examples)
    rate = often / parse_duration(f"1{period.strip()}")
    if not RAREST <= rate <= FASTEST:
        raise InputError(f"a rate of {text!r} is not between one a year and a billion a second.", [examples])
    return rate


def _below_a_century(seconds: float, text: str) -> float:
    if seconds > 100 * 365 * 86400:
        raise InputError(f"a duration of {text!r} is over a century.", ["write it like 30d, 12h or 90min"])
    return seconds


def _scaled(value: float, steps: list[tuple[float, str]], digits: int) -> str:
    """The value in the largest unit that it reaches after rounding, never in powers of ten."""
    rounded = float(f"{value:.{digits}g}")
    factor, unit = next((step for step in steps if abs(rounded) >= step[0]), steps[-1])
    number = float(f"{value / factor:.{digits}g}")
    return f"{number:,.0f} {unit}" if abs(number) >= 100 else f"{number:.{digits}g} {unit}"


def format_bytes(value: float) -> str:
    """Bytes in GiB, MiB or KiB with three digits, e.g. '23.6 GiB'."""
    large = [(2**60, "EiB"), (2**50, "PiB"), (2**40, "TiB")]
    return _scaled(value, [*large, (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")], 3)


def format_duration(seconds: float) -> str:
    """Seconds in the unit a person would choose, e.g. '3.4 days', '2.1 h', '12 ms'."""
    if not math.isfinite(seconds):
        return "never"
    text = _scaled(seconds, [(86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")], 3)
    return "1 day" if text == "1 days" else text


def format_count(value: float) -> str:
    """A count with k, M, B, T, e.g. '8.03B'."""
    return _scaled(value, [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1, "")], 3).replace(" ", "")


def rounded(value: float) -> str:
    """Two digits, and all of a larger whole number: "0.35", "4.2", "120"."""
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def counted(count: float, noun: str) -> str:
    """'1 device', '16,384 devices'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_usd(value: float) -> str:
    """Dollars with as many digits as matter, e.g. '$1,834', '$0.42'."""
    return f"${value:,.0f}" if abs(value) >= 100 else f"${value:,.2f}"


def format_flops(value: float) -> str:
    """Floating-point operations, or a rate of them when the caller appends '/s', e.g. '989 TFLOP'."""
    return _scaled(value, [(1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP")], 3)
