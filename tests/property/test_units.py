"""Laws of parsing and printing quantities."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.units import (
    format_bytes,
    format_count,
    format_duration,
    format_flops,
    format_usd,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_rate,
    parse_usd,
    rounded,
)

PARSERS = [parse_bytes, parse_duration, parse_usd, parse_count]


@given(st.integers(1, 10**6), st.sampled_from([("GB", 10**9), ("GiB", 2**30), ("MB", 10**6), ("MiB", 2**20), ("", 1)]))
def test_bytes_are_number_times_unit(number: int, unit: tuple[str, int]) -> None:
    assert parse_bytes(f"{number}{unit[0]}") == number * unit[1] == parse_bytes(f" {number} {unit[0].lower()} ")


@given(st.integers(1, 1000), st.sampled_from([("s", 1), ("min", 60), ("h", 3600), ("d", 86400), ("w", 604800)]))
def test_durations_are_number_times_unit(number: int, unit: tuple[str, int]) -> None:
    assert parse_duration(f"{number}{unit[0]}") == number * unit[1]


@given(st.integers(1, 10**5), st.sampled_from([("k", 10**3), ("M", 10**6), ("B", 10**9), ("T", 10**12), ("", 1)]))
def test_counts_are_number_times_unit(number: int, unit: tuple[str, int]) -> None:
    assert parse_count(f"{number}{unit[0]}") == number * unit[1]


@given(st.floats(0, 1e12, allow_nan=False))
def test_dollars_read_back(value: float) -> None:
    assert parse_usd(f"${value!r}") == value


@given(st.text(max_size=20), st.sampled_from(PARSERS))
def test_any_text_is_a_number_or_an_input_error(text: str, parse: object) -> None:
    try:
        value = parse(text)  # type: ignore[operator]
    except InputError:
        return
    assert math.isfinite(value)
    assert value >= 0


@pytest.mark.parametrize("text", ["", "-5", "nan", "inf", "1e999", "12 parsecs", "0", "five"])
@pytest.mark.parametrize("parse", [parse_bytes, parse_duration, parse_count])
def test_nonsense_is_refused(text: str, parse: object) -> None:
    with pytest.raises(InputError):
        parse(text)  # type: ignore[operator]


def test_a_duration_needs_its_unit_and_sense() -> None:
    for text in ("30", "200000d"):
        with pytest.raises(InputError, match="30d"):
            parse_duration(text)


@given(st.floats(1e-6, 1e17, allow_nan=False), st.sampled_from([format_bytes, format_count, format_duration, format_flops]))
def test_printed_numbers_keep_three_digits(value: float, form: object) -> None:
    text = form(value)  # type: ignore[operator]
    assert text
    assert "e+" not in text


def test_printing() -> None:
    assert format_bytes(24 * 2**30) == "24 GiB"
    assert format_duration(90) == "1.5 min"
    assert [format_duration(days * 86_400) for days in (0.9999, 1, 1.01)] == ["1 day", "1 day", "1.01 days"]
    assert format_duration(float("inf")) == "never"
    assert format_count(8.03e9) == "8.03B"
    assert format_usd(1834.2) == "$1,834"
    assert format_usd(0.42) == "$0.42"
    assert format_flops(989e12) == "989 TFLOP"
    assert [rounded(value) for value in (0.351, 4.21, 12.4, 120.4, 1234)] == ["0.35", "4.2", "12", "120", "1,234"]


@pytest.mark.parametrize(
    ("parse", "text"), [(parse_bytes, "0GB"), (parse_duration, "0d"), (parse_count, "0"), (parse_rate, "0/s")]
)
def test_nothing_is_refused_with_what_to_write(parse: Callable[[str], float], text: str):
    with pytest.raises(InputError, match="must be above zero") as caught:
        parse(text)
    assert caught.value.ways_out[0].startswith("write it like ")
