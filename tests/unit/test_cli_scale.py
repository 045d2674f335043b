"""scale: forecasts on ever more devices, where they stop paying, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwise
from gpuwise.cli.main import main
from gpuwise.notes.scaling import scaling_stops
from gpuwise.plan.scaling.points import device_counts, mesh_at
from gpuwise.strategy import Mesh
from gpuwise.units import format_bytes

JOB = ("scale", "llama3-8b", "--recompute", "full")


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def scale(*arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_each_point_is_the_forecast_of_so_many_devices():
    points = scale(*JOB, "--on", "h100-sxm:8x4")["points"]
    assert [point["devices"] for point in points] == [1, 2, 4, 8, 16, 32]
    assert [point["machines"] for point in points] == [1, 1, 1, 1, 2, 4]
    assert [point["mesh"] for point in points[1:]] == [f"dp_shard={n}" for n in (2, 4, 8, 16, 32)]
    for on, point in (("h100-sxm:8", points[3]), ("h100-sxm:8x4", points[5])):
        forecast = gpuwise.forecast("llama3-8b", on=on, mesh=point["mesh"], recompute="full", micro_batch=1)
        assert point["step_time_s"]["value"] == pytest.approx(forecast.step_time_s.value)
        assert point["throughput"]["value"] == pytest.approx(forecast.throughput)
        assert point["fits"] == forecast.memory.fits
    assert points[0]["fits"] is False  # 16 bytes a parameter are 120 GiB
    assert points[0]["efficiency"] is None
    first = points[1]
    assert first["efficiency"] == 1
    for point in points[1:]:
        assert point["efficiency"] == pytest.approx(point["throughput_per_device"] / first["throughput_per_device"])
        assert point["usd_per_hour"] / point["devices"] == pytest.approx(points[-1]["usd_per_hour"] / 32)


def test_a_slow_network_ends_scaling_at_one_machine():
    curve = scale(*JOB, "--on", "h100-sxm:8x16", "--network", "25 Gbit Ethernet")
    assert curve["stops_paying_at"] == 8
    assert curve["conclusion_note"]["kind"] == "scaling-stops"
    one, two = (next(p for p in curve["points"] if p["devices"] == n) for n in (8, 16))
    assert curve["conclusion_note"]["figures"]["gain"] == pytest.approx(
        two["throughput"]["value"] / one["throughput"]["value"] - 1
    )
    fast = scale(*JOB, "--on", "h100-sxm:8x16", "--network", "8 x 400 Gbit InfiniBand")
    assert fast["stops_paying_at"] is None
    assert fast["conclusion_note"]["kind"] == "scaling-pays"


def test_strong_scaling_keeps_the_global_batch_and_names_what_cannot_be_divided():
    curve = scale("scale", "gpt2", "--on", "a100-80gb-sxm:8x16", "--micro-batch", "8", "--global-batch", "96")
    assert curve["scaling"] == "strong"
    assert {point["global_batch"] for point in curve["points"]} == {96}
    for point in curve["points"]:
        assert point["micro_batch"] * point["accumulation"] * point["devices"] == 96
    assert [point["devices"] for point in curve["points"]] == [1, 2, 4, 8, 16, 32]
    note = next(note for note in curve["assumption_notes"] if note["kind"] == "no-sample-for-each")
    assert note["figures"]["devices"] == "64, 128"


def test_what_the_mesh_names_stays_as_it_is():
    points = scale(*JOB, "--on", "h100-sxm:8x4", "--mesh", "dp_shard=2,tp=4", "--sequence-parallel")["points"]
    assert [point["mesh"] for point in points] == ["tp=4", "dp_shard=2,tp=4", "dp=2,dp_shard=2,tp=4", "dp=4,dp_shard=2,tp=4"]
    piped = scale(*JOB, "--on", "h100-sxm:8x2", "--mesh", "pp=4", "--global-batch", "64")["points"]
    assert all(point["accumulation"] >= 4 for point in piped)
    assert any(point["bubble"] > 0 for point in piped)


@settings(deadline=None)
@given(
    st.integers(0, 6),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
)
def test_a_mesh_has_all_devices_and_keeps_what_is_fixed(doublings: int, tp: int, pp: int, cp: int, shard: int, shards: bool):
    fixed = Mesh(tp=tp, pp=pp, cp=cp, dp_shard=shard)
    most = tp * pp * cp * 2**doublings
    counts = device_counts(most, fixed)
    assert counts == [tp * pp * cp * 2**n for n in range(doublings + 1)]
    for devices in counts:
        mesh = mesh_at(fixed, devices, shards=shards)
        assert mesh is not None
        assert mesh.devices == devices
        assert (mesh.tp, mesh.pp, mesh.cp) == (tp, pp, cp)
        assert mesh.dp_shard <= max(shard, 1) or shard == 1


def test_the_curve_as_table_and_pictures(tmp_path: Path):
    path = tmp_path / "curve.svg"
    result = run(*JOB, "--on", "h100-sxm:16", "--plot", str(path))
    assert result.exit_code == 0, result.output
    assert "a million tokens" in result.stdout
    assert "scaling pays up to 16 devices, the most with a forecast" in " ".join(result.stdout.split())
    texts = [element.text for element in ElementTree.parse(path).iter() if element.text]
    assert {"efficiency", "linear", "devices", "a million tokens"} <= set(texts)
    drawn = run(*JOB, "--on", "h100-sxm:16", "--plot", "-")
    assert "● " in drawn.stdout
    assert "16 devices" in drawn.stdout
    assert "scaling pays" in str(gpuwise.scale("llama3-8b", on="h100-sxm:16", recompute="full"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on", "h100-sxm"), "it is one device"),
        (("--on", "cpu:4"), "how ranks share a CPU is known of this machine's alone"),
        (("--on", "cpu:1x4"), "does not say how machines of"),
        (("--on", "cpu"), "--on here:2"),
        (("--on", "h100-sxm:12"), "write h100-80gb-sxm:8x2"),
        (("--on", "rtx-4090:32"), "say it: --network"),
        (("--on", "h100-sxm:32", "--mesh", "tp=3"), "no multiple of the 3"),
        (("--on", "h100-sxm:32", "--mesh", "dp=4"), "replicas are what grows"),
        (("--on", "h100-sxm:32", "--mesh", "tp=16"), "does not divide"),
        (("--on", "h100-sxm:32", "--global-batch", "0"), "at least 1"),
        (("--on", "h100-sxm:32", "--global-batch", "8", "--accumulate", "2"), "leave out --accumulate"),
        (("--on", "h100-sxm:8", "--network", "100 Gbit"), "is one machine"),
        (("--on", "h100-sxm:32", "--plot", "curve.png"), "a picture is a .svg file"),
        (("--on", "h100-sxm:32", "--plot", "-", "--json"), "nothing but JSON"),
    ],
)
def test_senseless_curves_are_refused(arguments: tuple[str, ...], message: str):
    result = run(*JOB, *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_ranks_on_this_cpu_share_it_and_machines_like_it_do_not():
    shared = scale("scale", "tabular-mlp", "--on", "here:4", "--precision", "fp32")["points"]
    assert [(point["devices"], point["machines"]) for point in shared] == [(1, 1), (2, 1), (4, 1)]
    for point in shared[1:]:
        alone = gpuwise.forecast("tabular-mlp", on=f"here:{point['devices']}", precision="fp32")
        assert point["step_time_s"]["value"] == pytest.approx(alone.step_time_s.value)
        assert alone.memory == gpuwise.forecast("tabular-mlp", on="here", mesh=point["mesh"], precision="fp32").memory
    apart = scale("scale", "tabular-mlp", "--on", "here:1x4", "--precision", "fp32", "--network", "10GbE")["points"]
    assert [(point["devices"], point["machines"]) for point in apart] == [(1, 1), (2, 2), (4, 4)]
    assert apart[0]["step_time_s"] == shared[0]["step_time_s"]


def test_a_gain_that_is_almost_half_does_not_read_as_half():
    note = scaling_stops(devices=64, gain=0.4996, dearer=1.3357)
    assert "adds 49.9 %" in note.text
    assert "at least 1.33 times" in note.text


def test_memory_that_is_counted_is_marked():
    """Fragments are missing there: forecasts of the same steps, for which the allocator is replayed, need more."""
    table, points = run(*JOB, "--on", "h100-sxm:2").stdout, scale(*JOB, "--on", "h100-sxm:2")["points"]
    for point in points:
        assert (f"~{format_bytes(point['device_bytes'])}" in table) == point["counted_only"]
    assert "~ tensors are counted, without fragments" in table
    replayed = gpuwise.forecast("llama3-8b", on="h100-sxm:2", mesh="dp_shard=2", recompute="full", micro_batch=1).memory
    assert (points[1]["counted_only"], replayed.counted_only) == (True, False)
    assert points[1]["device_bytes"] < replayed.device_bytes
