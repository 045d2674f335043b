"""Laws of networks in words."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.network import parse_network

CATALOG = load_catalog()
QUICK = settings(deadline=None)
PORTS = sorted(link.id for link in CATALOG.links.values() if link.kind == "scale-out" and link.serves == "port")
UNITS = [
    ("Gbit/s", 1e9 / 8),
    ("Gbit", 1e9 / 8),
    ("gbps", 1e9 / 8),
    ("Gb/s", 1e9 / 8),
    ("G", 1e9 / 8),
    ("GB/s", 1e9),
    ("Mbit", 1e6 / 8),
]
UNITS += [("Tbit/s", 1e12 / 8), ("GBps", 1e9)]


def rate_of(text: str) -> float:
    rate = parse_network(text, catalog=CATALOG).link.per_direction_bytes_per_s
    assert rate is not None
    return rate


@QUICK
@given(st.integers(1, 8000), st.sampled_from(UNITS), st.sampled_from(["", " Ethernet", " InfiniBand", " RoCE", " network"]))
def test_a_rate_is_number_times_unit(number: int, unit: tuple[str, float], technology: str) -> None:
    assert rate_of(f"{number} {unit[0]}{technology}") == pytest.approx(number * unit[1])
    assert rate_of(f"{technology} {number}{unit[0]}") == pytest.approx(number * unit[1])


@QUICK
@given(st.integers(1, 64), st.integers(1, 1600), st.sampled_from(["x", "×", " x ", "*"]))
def test_ports_add_up(ports: int, gbit: int, times: str) -> None:
    assert rate_of(f"{ports}{times}{gbit} Gbit InfiniBand") == pytest.approx(ports * rate_of(f"{gbit} Gbit InfiniBand"))


@QUICK
@given(st.sampled_from(PORTS), st.sampled_from(["", " a machine", " per device", "/GPU", " each device", " a node"]))
def test_every_link_between_machines_is_named_by_its_id(network: str, serves: str) -> None:
    parsed = parse_network(f"{network}{serves}", catalog=CATALOG)
    assert parsed.link == CATALOG.links[network]
    assert parsed.serves == ("device" if "device" in serves or "GPU" in serves else "machine")


@QUICK
@given(st.text(max_size=40) | st.from_regex(r"[0-9x .]{0,8}[A-Za-z/ 0-9]{0,20}", fullmatch=True))
def test_any_text_is_a_network_or_exactly_an_error(text: str) -> None:
    try:
        rate = rate_of(text)
    except (InputError, UnknownNameError):
        return
    assert 0 < rate < math.inf


@pytest.mark.parametrize("network", ["100 Gbit Ethernet", "100GbE", "eth-100", "Ethernet 100 Gbps", "12.5 GB/s ethernet"])
def test_one_network_has_many_words(network: str) -> None:
    assert parse_network(network, catalog=CATALOG).link.id == "eth-100"
