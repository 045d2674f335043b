"""Tables of what targets call the catalog's chips."""

from __future__ import annotations

import re

import pytest

from gpuwise.errors import UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.launch.device_names import device_name, device_tables

TABLES = device_tables()


@pytest.mark.parametrize("table", TABLES)
def test_every_name_is_that_of_a_chip_and_has_a_source(table: str):
    chips, names = load_catalog().chips, TABLES[table]
    assert [chip for chip in (*names.names, *names.unsure) if chip not in chips] == []
    assert not set(names.names) & set(names.unsure)
    assert len(names.source) > 20
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", names.as_of)


def test_labels_of_nodes_are_labels_and_name_one_chip():
    """kubernetes.io/docs/concepts/overview/working-with-objects/labels: 63 characters of a set."""
    values = list(TABLES["kubernetes"].names.values())
    assert [value for value in values if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value)] == []
    assert len(set(values)) == len(values)


def test_a_chip_without_a_name_is_named_with_the_ways_out():
    with pytest.raises(UnsupportedError, match="Kubernetes has no name for mi25") as caught:
        device_name("kubernetes", "mi25", speaker="Kubernetes", ways_out=["--set node-label=KEY=VALUE"])
    assert caught.value.ways_out == ("--set node-label=KEY=VALUE",)


def test_a_name_of_several_chips_is_refused():
    """SkyPilot's list of Vast has one name for the A100 with 40 and with 80 GB."""
    with pytest.raises(UnsupportedError, match="calls a100-80gb-pcie A100, as it calls other chips"):
        device_name("skypilot-vast", "a100-80gb-pcie", speaker="SkyPilot at vast")
