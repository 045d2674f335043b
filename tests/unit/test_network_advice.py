"""Which axis of a mesh costs most, what would lower it, and the warning of model parallelism across machines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwise
from gpuwise.cost.network.advice import crosses_machines, inside_machines
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import AXES, Mesh

H100 = load_catalog().chip("h100-80gb-sxm")
DEGREES = st.sampled_from([1, 2, 4, 8, 16])
MESHES = st.builds(Mesh, dp_replicate=DEGREES, dp_shard=DEGREES, tp=DEGREES, pp=DEGREES, cp=DEGREES)


def machines_of(mesh: Mesh, axis: str, devices_per_machine: int) -> int:
    """Machines with ranks that differ from rank 0 along one axis alone."""
    origin = mesh.coordinates(0)
    group = [
        rank
        for rank in range(mesh.devices)
        if all(position == origin[name] for name, position in mesh.coordinates(rank).items() if name != axis)
    ]
    return len({rank // devices_per_machine for rank in group})


@settings(deadline=None, max_examples=30)
@given(MESHES.filter(lambda mesh: 8 <= mesh.devices <= 1024), st.sampled_from(AXES))
def test_an_axis_crosses_machines_where_its_ranks_are_in_several(mesh: Mesh, axis: str):
    cluster = Cluster(H100, 8, mesh.devices // 8)
    if getattr(mesh, axis) > 1:
        assert crosses_machines(axis, mesh, cluster) == (machines_of(mesh, axis, 8) > 1)


@settings(deadline=None)
@given(MESHES, st.sampled_from([1, 4, 6, 8, 16]))
def test_the_mesh_that_is_advised_has_as_many_devices_and_stays_inside(mesh: Mesh, devices_per_machine: int):
    advised = inside_machines(mesh, devices_per_machine)
    assert advised.devices == mesh.devices
    assert advised.tp * advised.cp <= devices_per_machine
    assert (advised.pp, advised.dp_replicate) == (mesh.pp, mesh.dp_replicate)
    if mesh.tp * mesh.cp <= devices_per_machine and devices_per_machine % (mesh.tp * mesh.cp) == 0:
        assert advised == mesh


def test_tensor_parallelism_over_ethernet_is_warned_of_with_its_cost_and_the_mesh_without():
    across = gpuwise.forecast("llama2-7b", on="a100-80gb-sxm:8x2", mesh="tp=16", network="100 Gbit Ethernet", micro_batch=8)
    warning = next(note for note in across.warning_notes if note.kind == "model-parallel-across-machines")
    assert warning.figures["mesh"] == "dp_shard=2,tp=8"
    assert warning.figures["cost_s"] == pytest.approx(across.breakdown["communication_tp"])
    assert warning.figures["share"] == pytest.approx(across.step_shares["communication_tp"])
    assert "100GbE" in warning.text
    assert "tp=16 between machines (100GbE)" in across.why
    assert "--mesh dp_shard=2,tp=8 would keep it inside a machine" in across.why
    inside = gpuwise.forecast(
        "llama2-7b", on="a100-80gb-sxm:8x2", mesh="dp_shard=2,tp=8", network="100 Gbit Ethernet", micro_batch=8
    )
    assert "model-parallel-across-machines" not in {note.kind for note in inside.warning_notes}
    assert inside.throughput > across.throughput


@pytest.mark.parametrize(
    ("job", "settings_", "words"),
    [
        (
            "llama3-8b",
            {"on": "h100-sxm:8x4", "mesh": "dp_shard=32", "network": "eth-100"},
            ("dp_shard=32", "--mesh dp=4,dp_shard=8"),
        ),
        (
            "gpt2",
            {"on": "rtx-4090:8", "mesh": "dp=8", "micro_batch": 1},
            ("dp=8 inside the machine (PCIe", "--compress-gradients"),
        ),
        ("gpt2", {"on": "rtx-4090:8", "mesh": "dp_shard=8", "micro_batch": 1}, ("dp_shard=8 inside", "--micro-batch")),
        (
            "llama3-8b",
            {"on": "h100-sxm:8x2", "mesh": "cp=16", "network": "eth-100", "recompute": "full"},
            ("for shards over cp=16 between machines (100GbE) alone",),
        ),
    ],
)
def test_the_sentence_names_the_axis_that_costs_most(job: str, settings_: dict, words: tuple[str, ...]):
    why = gpuwise.forecast(job, **settings_).why
    assert why.startswith("communication bounds")
    assert all(word in why for word in words)


@pytest.mark.parametrize(
    ("job", "on", "mesh", "kept_inside"),
    [
        ("llama3-8b", "h100-sxm:8x2", "cp=16", "dp_shard=2,cp=8"),
        ("llama3-8b", "h100-sxm:8x2", "tp=2,cp=8", "dp_shard=2,tp=2,cp=4"),
        ("mixtral-8x7b", "h100-sxm:2x8", "dp_shard=16,ep=8", "dp_shard=16,ep=2"),
    ],
)
def test_context_and_expert_parallelism_over_ethernet_are_warned_of_with_their_cost(
    job: str, on: str, mesh: str, kept_inside: str
):
    forecast = gpuwise.forecast(job, on=on, mesh=mesh, network="100 Gbit Ethernet", recompute="full")
    (note,) = [note for note in forecast.warning_notes if note.kind == "model-parallel-across-machines"]
    axis = note.figures["axis"]
    assert note.figures["cost_s"] == pytest.approx(forecast.breakdown[f"communication_{axis}"])
    assert note.figures["mesh"] == kept_inside
    inside = gpuwise.forecast(job, on=on, mesh=kept_inside, network="100 Gbit Ethernet", recompute="full")
    assert inside.breakdown[f"communication_{axis}"] < forecast.breakdown[f"communication_{axis}"] / 3
    assert "model-parallel-across-machines" not in {note.kind for note in inside.warning_notes}


def test_the_pipeline_is_named_where_its_idle_time_costs_most_of_the_mesh():
    why = gpuwise.forecast("llama3-8b", on="h100-sxm:8x4", mesh="pp=16,dp_shard=2", recompute="full", micro_batch=2).why
    assert "Of the mesh, the pipeline costs most" in why
    assert "--accumulate 32" in why
