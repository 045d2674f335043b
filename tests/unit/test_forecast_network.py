"""The network in a forecast's JSON: which links, whose bandwidth, which figures, and where each comes from."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.cli.main import main
from gpuwise.cost.network.provenance import LINK_PROVENANCE

NUMBER = (int, float)
LINK = {
    "link": (str,),
    "where": (str,),
    "axes": (list,),
    "bytes_per_s": (*NUMBER, type(None)),
    "bytes_per_s_source": (str,),
    "serves": (str,),
    "busbw_bytes_per_s": (*NUMBER, type(None)),
    "efficiency": (*NUMBER, type(None)),
    "latency_s": (*NUMBER, type(None)),
    "technology": (str,),
    "low": NUMBER,
    "high": NUMBER,
    "provenance": (str,),
    "source": (str,),
}


def forecast(job: str, *arguments: str) -> dict:
    result = CliRunner().invoke(main, ["forecast", job, *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_each_axis_has_its_link_with_the_figures_behind_it():
    answer = forecast("llama3-70b", "--on", "h100-sxm:8x8", "--mesh", "dp_shard=8,tp=8", "--recompute", "full")
    inside, between = answer["network"]
    assert (inside["where"], inside["axes"], inside["serves"]) == ("inside", ["tp"], "device")
    assert (between["where"], between["axes"], between["serves"]) == ("between", ["dp_shard"], "machine")
    assert inside["bytes_per_s"] == 450e9  # NVLink 4: 18 links of 25 GB/s, one way
    assert inside["provenance"] == "fitted on its technology"
    assert answer["provenance"]["communication"] == between["provenance"] == "fitted on its technology"


def test_a_network_that_nobody_measured_is_the_least_sure_link():
    answer = forecast("gpt2", "--on", "h100-sxm:8x2", "--network", "100 Gbit Ethernet")
    assert "nobody measured" in " ".join(answer["assumptions"])
    assert answer["provenance"]["communication"] == answer["network"][-1]["provenance"] == "assumed"


def test_one_group_over_both_links_names_both():
    links = forecast("llama3-8b", "--on", "h100-sxm:8x2", "--mesh", "dp_shard=16", "--recompute", "full")["network"]
    assert [(link["where"], link["axes"]) for link in links] == [("inside", ["dp_shard"]), ("between", ["dp_shard"])]


@pytest.mark.parametrize(
    ("network", "bytes_per_s", "serves"),
    [
        ("100 Gbit Ethernet", 12.5e9, "machine"),
        ("8 x 400 Gbit InfiniBand", 400e9, "machine"),
        ("400 Gbit InfiniBand a device", 50e9, "device"),
    ],
)
def test_the_network_that_is_named_is_the_one_that_is_priced(network: str, bytes_per_s: float, serves: str):
    answer = forecast("gpt2", "--on", "h100-sxm:8x2", "--network", network)
    between = answer["network"][-1]
    assert (between["bytes_per_s"], between["serves"]) == (bytes_per_s, serves)
    assert between["low"] <= 1 <= between["high"]


def test_a_link_with_a_bus_bandwidth_of_its_own_names_that():
    links = forecast("gpt2", "--on", "mi300x:8")["network"]
    assert links[-1]["provenance"] == "measured on this link"
    assert links[-1]["busbw_bytes_per_s"] > 0
    assert links[-1]["efficiency"] is None


def test_one_device_has_no_network():
    answer = forecast("gpt2", "--on", "h100-sxm")
    assert answer["network"] == []
    assert "communication" not in answer["provenance"]


@pytest.mark.parametrize(
    ("job", "on", "mesh"),
    [
        ("llama3-8b", "h100-sxm:8x8", "dp=2,dp_shard=4,tp=4,pp=2"),
        ("llama3-8b", "h100-sxm:8x2", "dp_shard=2,cp=8"),
        ("mixtral-8x7b", "h100-sxm:8x4", "dp_shard=32,ep=8"),
        ("llama3-405b", "h100-sxm:8x2048", "dp_shard=128,tp=8,pp=16"),
        ("gpt2", "tpu-v5e:16", "dp=16"),
    ],
)
def test_the_contract_holds_on_several_devices(job: str, on: str, mesh: str):
    answer = forecast(job, "--on", on, "--mesh", mesh)
    step = answer["step_time_s"]
    assert 0 < step["low"] <= step["value"] <= step["high"]
    assert sum(answer["breakdown"].values()) == pytest.approx(step["value"])
    assert all(seconds >= 0 for seconds in answer["breakdown"].values())
    assert sum(answer["bound"].values()) == pytest.approx(1)
    assert answer["count"] == gpuwise.Mesh.parse(mesh).devices
    assert {"step_time_s", "memory", "energy_j", "communication"} >= set(answer["provenance"]) >= {"step_time_s", "memory"}
    waited = {name.removeprefix("communication_") for name in answer["breakdown"] if name.startswith("communication_")}
    assert waited <= {axis for link in answer["network"] for axis in link["axes"]}
    for link in answer["network"]:
        assert {name: type(value) in LINK[name] for name, value in link.items()} == dict.fromkeys(LINK, True)
        assert link["provenance"] in LINK_PROVENANCE
        assert link["source"]
        assert link["where"] in ("inside", "between")
        assert link["bytes_per_s"] or link["busbw_bytes_per_s"]
        assert (link["efficiency"] is None) is (link["technology"] == "")
