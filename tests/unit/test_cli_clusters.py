"""compare and fit on clusters of several machines."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from gpuwise.cli.main import main

JOB = ("llama3-8b", "--recompute", "full")


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_compare_puts_clusters_side_by_side_with_what_a_device_delivers_and_costs():
    rows = answer("compare", *JOB, "--on", "h100-sxm:8x4,a100-80gb-sxm:16")["rows"]
    assert [row["device"] for row in rows] == ["h100-80gb-sxm:8x4", "a100-80gb-sxm:8x2"]
    for row, devices in zip(rows, (32, 16), strict=True):
        forecast = row["forecast"]
        assert forecast["count"] == devices
        assert forecast["strategy"]["mesh"]["dp_shard"] == devices
        assert forecast["throughput_per_device"] * devices == pytest.approx(forecast["throughput"]["value"])
        an_hour = forecast["throughput"]["value"] * 3600
        assert forecast["usd_per_million"] == pytest.approx(forecast["usd_per_hour"] / an_hour * 1e6)
    text = run("compare", *JOB, "--on", "h100-sxm:8x4,a100-80gb-sxm:16").stdout
    assert "a device" in text
    assert "a million tokens" in text
    assert "h100-80gb-sxm:8x4: price of 4 ×" in text


def test_compare_of_clusters_agrees_with_forecast():
    row = answer("compare", *JOB, "--on", "h100-sxm:8x4", "--micro-batch", "2")["rows"][0]["forecast"]
    alone = answer("forecast", *JOB, "--on", "h100-sxm:8x4", "--micro-batch", "2")
    assert row["step_time_s"] == alone["step_time_s"]
    assert row["usd_per_hour"] == alone["usd_per_hour"]


def test_compare_takes_a_mesh_and_a_network():
    flags = ("--mesh", "dp_shard=4,tp=8", "--network", "10 Gbit Ethernet", "--micro-batch", "1")
    slow = answer("compare", *JOB, "--on", "h100-sxm:8x4,a100-80gb-sxm:8x4", *flags)
    fast = answer("compare", *JOB, "--on", "h100-sxm:8x4,a100-80gb-sxm:8x4", *flags[:2], *flags[4:])
    for with_ethernet, without in zip(slow["rows"], fast["rows"], strict=True):
        assert with_ethernet["forecast"]["strategy"]["mesh"] == without["forecast"]["strategy"]["mesh"]
        assert with_ethernet["forecast"]["step_time_s"]["value"] > without["forecast"]["step_time_s"]["value"]


def test_the_network_of_a_comparison_is_of_its_clusters():
    assert answer("compare", *JOB, "--on", "h100-sxm:8,h100-sxm:8x2", "--network", "100 Gbit Ethernet")
    refused = run("compare", *JOB, "--on", "h100-sxm:8,a100-80gb-sxm:8", "--network", "100 Gbit Ethernet")
    assert refused.exit_code == 2
    assert "is one machine" in refused.stderr


def test_a_mesh_of_another_number_of_devices_is_refused():
    result = run("compare", *JOB, "--on", "h100-sxm:8x4,a100-80gb-sxm:8x2", "--mesh", "dp_shard=32")
    assert result.exit_code == 2
    assert "names 16" in result.stderr


def test_fit_on_machines_shards_what_does_not_fit_as_a_copy():
    result = answer("fit", *JOB, "--on", "h100-sxm:8x4")
    assert result["count"] == 32
    assert result["largest_micro_batch"] >= 4
    kinds = {note["kind"] for note in result["assumption_notes"]}
    assert {"assumed-mesh", "assumed-network"} <= kinds
    small = answer("fit", "gpt2", "--on", "a100-80gb-sxm:8x2")
    assert (
        next(note for note in small["assumption_notes"] if note["kind"] == "assumed-mesh")["figures"]["axis"] == "dp_replicate"
    )


def test_fit_names_the_fewest_devices_that_hold_the_job():
    job = ("llama3-70b", "--recompute", "full")
    refused = answer("fit", *job, "--on", "h100-sxm:8x2")
    assert refused["largest_micro_batch"] is None
    devices = refused["nearest_devices"]
    assert devices > 16
    for count, fits in ((devices // 2, False), (devices, True)):
        sharded = ("--on", f"h100-sxm:{count}", "--mesh", f"dp_shard={count}", "--micro-batch", "1")
        assert answer("forecast", *job, *sharded)["memory"]["fits"] is fits


def test_copies_that_do_not_fit_are_answered_with_shards():
    copies = answer("forecast", "llama3-8b", "--on", "h100-sxm:8", "--mesh", "dp=4,tp=2")
    assert copies["memory"]["fits"] is False
    change = copies["fits_with"]
    assert change["changes_training"] is False
    assert "--mesh dp_shard=4,tp=2" in change["command"]
    assert answer(*shlex.split(change["command"])[1:])["memory"]["fits"] is True
