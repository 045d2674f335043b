"""The data file of the cost model: complete, in range, and each fitted figure with its evidence."""

import tomllib
from importlib.resources import files

import pytest

from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import CONTRACTIONS, sustained_share, sustained_tensor_share
from gpuwise.hardware.catalog import Catalog
from gpuwise.trace.trace import KINDS, PHASES

RAW = tomllib.loads(files("gpuwise.cost").joinpath("data/efficiency.toml").read_text(encoding="utf-8"))


def test_every_kind_of_operation_has_a_bandwidth_on_a_gpu():
    assert set(KINDS) <= set(parameters().bandwidth["gpu"])
    assert all("other" in table for table in parameters().bandwidth.values())


def test_every_class_of_units_knows_every_contraction():
    for name, rate in parameters().rates.items():
        for kind in CONTRACTIONS:
            assert 0 < parameters().efficiency(name, kind, backward=True) <= 1
            assert 0 < parameters().efficiency(name, kind, backward=False) <= 1
        assert rate.fill >= 0


def test_shares_are_shares():
    tables = [*parameters().bandwidth.values(), parameters().power_share]
    assert all(0 < value <= 1 for table in tables for value in table.values())
    for low, high in parameters().spread.values():
        assert 0.2 < low < 1 < high < 5


def test_host_time_covers_every_phase():
    assert set(parameters().host_operation_s) == set(PHASES)


@pytest.mark.parametrize("name", RAW["evidence"])
def test_evidence_names_figures_that_exist_and_what_they_rest_on(name):
    entry = RAW["evidence"][name]
    for key in entry["figures"].split(", "):
        value = RAW
        for part in key.split("."):
            value = value[part]
        assert isinstance(value, int | float | list)
    assert entry["source"]
    assert "median error" in entry["seen"]
    assert entry["kept_out"]


def test_named_chips_are_in_the_catalog():
    chips = Catalog().chips
    assert set(parameters().context_bytes) - {"gpu", "cpu", "systolic"} <= set(chips)
    architectures = {chip.architecture for chip in chips.values()}
    assert set(parameters().architecture_efficiency) | set(parameters().matrix_fp32_per_vector) <= architectures


def test_desktop_cards_sustain_their_clock_and_low_power_cards_do_not():
    chips = Catalog().chips
    for name in ("rtx-3090", "rtx-4090", "rtx-2080-ti", "v100-sxm2-32gb", "gtx-1080-ti", "xeon-8380", "mi300x"):
        assert sustained_share(chips[name], parameters()) > 0.95
    for name in ("t4", "l4", "p4"):
        assert sustained_share(chips[name], parameters()) < 0.7
    assert (
        sustained_tensor_share(chips["h100-80gb-pcie"], parameters())
        < sustained_tensor_share(chips["h100-80gb-sxm"], parameters())
        < 1
    )
