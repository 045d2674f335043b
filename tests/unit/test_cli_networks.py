"""--network: what joins machines, and what is refused."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gpuwise.cli.main import main

JOB = ("forecast", "llama3-8b", "--recompute", "full", "--mesh", "dp_shard=16")


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def forecast(*arguments: str) -> dict:
    result = run(*JOB, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def kinds(answer: dict) -> dict[str, dict]:
    return {note["kind"]: note for note in answer["assumption_notes"]}


def test_a_slower_network_makes_a_slower_step():
    fast, slow = (forecast("--on", "h100-sxm:8x2", "--network", network) for network in ("8 x ib-ndr", "10 Gbit Ethernet"))
    assert slow["step_time_s"]["value"] > 5 * fast["step_time_s"]["value"]
    assert slow["bound"]["communication"] > 0.5
    named = kinds(slow)["named-network"]
    assert named["flag"] == "--network"
    assert named["figures"]["bytes_per_s"] == 1.25e9


def test_a_figure_of_a_device_is_worth_as_many_as_the_machine_has():
    device, machine = (forecast("--on", "h100-sxm:8x2", "--network", n) for n in ("100 Gbit a device", "8 x 100 Gbit"))
    assert device["step_time_s"] == machine["step_time_s"]


def test_a_rate_that_the_catalog_lacks_is_priced_as_its_technology():
    for network, technology in (
        ("15 Gbit Ethernet", "ethernet"),
        ("200 Gbit RoCE", "roce"),
        ("500 Gbit Ethernet", "roce"),  # as 400 Gbit Ethernet is
        ("250 Gbit InfiniBand", "infiniband"),
    ):
        note = kinds(forecast("--on", "h100-sxm:8x2", "--network", network))["network-not-in-catalog"]
        assert note["figures"]["technology"] == technology
    assert "network-not-in-catalog" not in kinds(forecast("--on", "h100-sxm:8x2", "--network", "10 Gbit Ethernet"))


def test_a_network_that_nobody_measured_says_which_figure_is_taken_and_widens_the_interval():
    ethernet, infiniband = (forecast("--on", "h100-sxm:8x2", "--network", n) for n in ("15 Gbit Ethernet", "8 x ib-ndr"))
    assumed = [note for note in ethernet["assumption_notes"] if note["kind"] == "assumed-link-efficiency"]
    assert any("nobody measured it" in note["text"] and "of its line rate" in note["text"] for note in assumed)
    wide, narrow = (answer["step_time_s"]["high"] / answer["step_time_s"]["value"] for answer in (ethernet, infiniband))
    assert wide > narrow


def test_the_network_of_an_offer_is_assumed_and_said_with_its_source():
    note = kinds(forecast("--on", "h100-sxm:8x2"))["assumed-network"]
    assert "GB/s a machine" in note["text"]
    assert note["text"].endswith("--network changes it")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("carrier pigeons", 'say its rate: --network "100 Gbit Ethernet"'),
        ("100 Gbit Ethrnet", "nearest: ethernet"),
        ("infiniband", "one of: ib-edr, ib-hdr, ib-ndr, ib-xdr"),
        ("nvlink4", "does not join machines"),
        ("0 x ib-ndr", "has no ports"),
        ("efa2 a device", "is a machine's, not a device's"),
        ("0 Gbit", "makes no sense"),
        ("", "cannot read the network"),
    ],
)
def test_a_network_that_cannot_be_read_is_refused(network: str, message: str):
    result = run(*JOB, "--on", "h100-sxm:8x2", "--network", network)
    assert result.exit_code == 2
    assert message in result.stderr


def test_one_machine_has_no_network():
    result = run("forecast", "llama3-8b", "--on", "h100-sxm:8", "--network", "100 Gbit Ethernet")
    assert result.exit_code == 2
    assert "is one machine" in result.stderr
    assert "h100-80gb-sxm:8x2" in result.stderr


def test_machines_without_a_known_network_are_refused_until_it_is_named():
    unknown = run(*JOB, "--on", "rtx-4090:8x2")
    assert unknown.exit_code == 2
    assert 'say it: --network "100 Gbit Ethernet"' in unknown.stderr
    answer = forecast("--on", "rtx-4090:8x2", "--network", "100 Gbit Ethernet")
    assert answer["count"] == 16
    assert run("fit", "llama3-8b", "--on", "rtx-4090:8x2", "--mesh", "dp_shard=16").exit_code == 2


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("h100-sxm:12", "write h100-80gb-sxm:8x2"),
        ("rtx-4090:64x1000", "write rtx-4090:16x4000"),
        ("h100-sxm:8x900000", "at most 1,000,000 make sense"),
        ("h100-sxm:0x4", "cannot read the count"),
    ],
)
def test_machines_that_do_not_exist_in_such_numbers_are_refused(on: str, message: str):
    result = run("forecast", "llama3-8b", "--on", on)
    assert result.exit_code == 2
    assert message in result.stderr
