"""Several servers on one processor: what each has of it, the best number against all of them, and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_serving_forward import small_job

from gpuwise.api.devices import device_of
from gpuwise.api.server_parts import server_part, servers_considered
from gpuwise.api.serving import serve_plan
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.types import AchievedRates
from gpuwise.report.printed import as_text

QUESTION = {"rate": "40/s", "slo": "latency=100ms", "image_size": 224}


def test_a_server_has_its_part_of_everything():
    device = device_of("ryzen-5950x", load_catalog())
    device = replace(device, spec=replace(device.spec, cluster=replace(device.cluster, memory_bytes=64 * 2**30)))
    part = server_part(device, 4)
    assert part.chip.sm_count == 4
    assert part.chip.memory_bandwidth_bytes_per_s == pytest.approx(device.chip.memory_bandwidth_bytes_per_s / 4)
    assert part.chip.peak_flops_per_s["fp32"] == pytest.approx(device.chip.peak_flops_per_s["fp32"] / 4)
    assert part.chip.l2_bytes == device.chip.l2_bytes // 4
    assert part.cluster.memory_bytes == 16 * 2**30
    assert server_part(device, 1) is device


def test_measured_figures_of_fewer_threads_than_cores():
    """Measured with 4 threads of 16 cores, a server on 4 of them has all that was measured."""
    device = device_of("ryzen-5950x", load_catalog())
    chip = replace(device.chip, achieved=AchievedRates({"fp32": 4e11}, memory_bandwidth_bytes_per_s=4e10, threads=4))
    device = replace(device, spec=replace(device.spec, cluster=replace(device.cluster, chip=chip)))
    for servers, share in ((2, 1.0), (4, 1.0), (8, 0.5)):
        achieved = server_part(device, servers).chip.achieved
        assert achieved.peak_flops_per_s["fp32"] == pytest.approx(share * 4e11)
        assert achieved.memory_bandwidth_bytes_per_s == pytest.approx(share * 4e10)


def test_numbers_of_servers_that_are_considered():
    catalog = load_catalog()
    processor = device_of("ryzen-5950x", catalog)
    assert servers_considered(processor, None) == [1, 2, 4, 8, 16]
    assert servers_considered(processor, 3) == [3]
    assert servers_considered(device_of("l4", catalog), None) == [1]
    with pytest.raises(UnsupportedError, match="16 cores"):
        servers_considered(processor, 17)


@pytest.mark.parametrize("device", ["ryzen-5950x", "xeon-6980p"])
def test_the_best_number_is_that_of_every_number_by_name(device: str):
    question = {**QUESTION, "slo": "latency=3s"}
    auto = serve_plan("resnet50", on=device, servers="auto", **question).rows[0]
    numbers = servers_considered(device_of(device, load_catalog()), None)
    rows = [serve_plan("resnet50", on=device, servers=str(number), **question).rows[0] for number in numbers]
    best = max(row.saturation_rate for row in rows)
    assert auto.saturation_rate == pytest.approx(best, rel=0.04)
    assert rows[numbers.index(auto.forward.servers)].saturation_rate == pytest.approx(best, rel=0.04)
    assert [row.forward.servers for row in rows] == numbers


def test_many_cores_serve_more_by_several_servers(monkeypatch: pytest.MonkeyPatch):
    one = serve_plan("resnet50", on="xeon-6980p", **QUESTION).rows[0]
    several = serve_plan("resnet50", on="xeon-6980p", servers="auto", **QUESTION)
    row = several.rows[0]
    assert row.forward.servers > 1
    assert row.forward.threads == 128 // row.forward.servers
    assert row.saturation_rate > one.saturation_rate
    # Without a queue, a pass on one core takes longer than on all of them.
    cores = serve_plan("resnet50", on="xeon-6980p", servers="128", **{**QUESTION, "slo": ""}).rows[0]
    assert cores.alone_latency_s > 3 * one.alone_latency_s
    monkeypatch.setenv("COLUMNS", "140")
    assert f"{row.replicas} of {row.forward.servers} servers" in as_text(several)
    assert f"xeon-6980p: {row.forward.servers} of {row.forward.threads} threads" in " ".join(several.assumptions)


def test_servers_of_this_machine_are_named_where_it_is_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # which would leave servers a part of its cores
    plan = serve_plan(small_job(), on="here", rate="10/s", servers="2")
    assert "with 2 servers on it" in plan.remarks[0]


def test_the_command_has_a_servers_threads():
    row = serve_plan(small_job(), on="ryzen-5950x", rate="10/s", servers="4", engine="onnxruntime").rows[0]
    assert "intra_op_num_threads = 4" in row.launch


@pytest.mark.parametrize("servers", ["0", "two", "-1", "1.5", "9999999"])
def test_no_number_of_servers(servers: str):
    with pytest.raises(InputError, match="no number of servers") as caught:
        serve_plan(small_job(), on="here", rate="1/s", servers=servers)
    assert caught.value.ways_out[0] == "--servers auto"


def test_servers_that_share_nothing():
    with pytest.raises(InputError, match="none of these devices is one"):
        serve_plan(small_job(), on="l4", rate="1/s", servers="2")
    with pytest.raises(UnsupportedError, match="--servers 2"):
        serve_plan(small_job(), on="ryzen-5950x:2", rate="1/s")
    with pytest.raises(UnsupportedError, match="more than the 16 cores"):
        serve_plan(small_job(), on="ryzen-5950x", rate="1/s", servers="64")
    with pytest.raises(InputError, match="times one server"):
        serve_plan(small_job(), on="here", rate="1/s", servers="auto", profile=True)
