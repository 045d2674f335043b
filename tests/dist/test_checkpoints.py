"""Checkpoints of several ranks: what four save, one, two or eight go on from, whatever the mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.dist.ranks import RankError, on_ranks
from tests.dist.tiny_decoder import decoder_job
from tests.dist.training import mean_loss, micro_batches, relative, whole
from tests.fault.checkpoint_faults import Killed, Quick
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gpuwise.job import Job
from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.checkpoint import Checkpoint, CheckpointStore, RankReader, RankSaver, Saved, Saver
from gpuwise.runtime.checkpoint.program_state import load_program, program_state
from gpuwise.runtime.parallel.regions import Region, shard_of
from gpuwise.runtime.parallel.world import make_world
from gpuwise.runtime.ranks import Ranks
from gpuwise.strategy import Mesh, Strategy

SAMPLES = 16
BEFORE, AFTER = 3, 3  # steps before the save, and after it


@dataclass(frozen=True)
class Continued:
    """What a run came to: losses of the steps after the save, and all of its state by name, whole, before and after them."""

    losses: list[float]
    at_save: dict[str, np.ndarray]
    at_end: dict[str, np.ndarray]


def program_of(make_job: Callable[[], Job], mesh: Mesh, options: dict[str, Any]) -> Program:
    strategy = Strategy(mesh=mesh, micro_batch=SAMPLES // mesh.data_parallel // options.get("accumulation", 1), **options)
    world = make_world(mesh, "cpu") if mesh.devices > 1 else None
    torch.manual_seed(0)
    program = build(make_job(), strategy, "cpu", world)
    if world is not None:
        torch.manual_seed(1 + world.data_rank)
    return program


def ranks_here() -> Ranks:
    store = dist.distributed_c10d._get_default_store()
    return Ranks(dist.get_rank(), dist.get_world_size(), store=dist.PrefixStore("ranks", store), host="here")


def steps(program: Program, first: int, count: int) -> list[float]:
    job = program.job
    return [mean_loss(program, program.step(micro_batches(job, program, step))) for step in range(first, first + count)]


def state_of(program: Program) -> dict[str, np.ndarray]:
    """Parameters, averages and optimizer state, whole, by name."""
    model = {f"model/{plain_name(name)}": p for name, p in program.model.named_parameters()}
    model |= {f"buffer/{name}": value for name, value in program.model.state_dict().items() if "running" in name}
    names = program.names_of_updated()
    update = {
        f"optimizer/{names[id(p)]}/{key}": value
        for p, values in program.optimizer.state.items()
        for key, value in values.items()
    }
    average = {} if program.average is None else {f"average/{plain_name(n)}": t for n, t in program.average.tensors.items()}
    return whole({**model, **update, **average})


def save_and_go_on(make_job: Callable[[], Job], mesh: Mesh, options: dict[str, Any], folder: str) -> Continued:
    program, ranks = program_of(make_job, mesh, options), ranks_here()
    steps(program, 0, BEFORE)
    store = CheckpointStore(folder, files=Quick())
    saver = RankSaver(store, ranks, mesh=str(mesh)) if ranks.several else Saver(store)
    saver.begin(BEFORE, program_state(program))
    at_save = state_of(program)
    losses = steps(program, BEFORE, AFTER)  # while the checkpoint is written
    (outcome,) = saver.finish()
    assert isinstance(outcome, Saved), outcome
    return Continued(losses, at_save, state_of(program))


def load_and_go_on(make_job: Callable[[], Job], mesh: Mesh, options: dict[str, Any], folder: str) -> Continued:
    program, ranks = program_of(make_job, mesh, options), ranks_here()
    store = CheckpointStore(folder)
    checkpoint = (RankReader(store, ranks) if ranks.several else store).latest()
    assert checkpoint is not None
    state = checkpoint.open(rank=ranks.rank) if ranks.several else checkpoint.load()
    if checkpoint.manifest.mesh != str(mesh):
        state.pop("random", None)
    load_program(program, state)
    loaded = state_of(program)
    return Continued(steps(program, BEFORE, AFTER), loaded, state_of(program))


def union(results: list[Continued], which: str) -> dict[str, np.ndarray]:
    """What several ranks have is that of the first, whose running means of batch norm count."""
    return {name: values for result in reversed(results) for name, values in getattr(result, which).items()}


def check_resumes(
    folder: Path, before: Mesh, meshes: list[Mesh], make_job: Callable[[], Job] = decoder_job, **options: Any
) -> None:
    """What one mesh saves, others go on from: the same state to the bit, the same losses but for rounding, on the same mesh
    to the bit."""
    saved = on_ranks(before.devices, save_and_go_on, make_job, before, options, str(folder))
    for mesh in meshes:
        loaded = on_ranks(mesh.devices, load_and_go_on, make_job, mesh, options, str(folder))
        expected = union(saved, "at_save")
        values = union(loaded, "at_save")
        assert set(values) == set(expected)
        for name in expected:
            assert np.array_equal(values[name], expected[name]), f"{name} on {mesh}"
        if mesh == before:
            assert [each.losses for each in loaded] == [each.losses for each in saved]
            at_end, after = union(saved, "at_end"), union(loaded, "at_end")
            assert all(np.array_equal(after[name], at_end[name]) for name in at_end)
        else:
            for each in loaded:
                assert relative(np.array(each.losses), np.array(saved[0].losses)) < 1e-5


def test_what_two_shards_save_one_process_goes_on_from(tmp_path: Path):
    check_resumes(tmp_path, Mesh(dp_shard=2), [Mesh()], partial(decoder_job, ema_decay=0.9))


def test_two_shards_go_on_to_the_bit_with_their_random_numbers(tmp_path: Path):
    check_resumes(tmp_path, Mesh(dp_shard=2), [Mesh(dp_shard=2)], partial(decoder_job, dropout=0.1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Mesh(), [Mesh(dp_shard=2), Mesh(dp_replicate=2)]),
        (Mesh(dp_shard=4), [Mesh(), Mesh(dp_shard=2), Mesh(dp_shard=8), Mesh(dp_replicate=2, dp_shard=2)]),
        (Mesh(dp_replicate=2, dp_shard=2), [Mesh(), Mesh(dp_shard=2), Mesh(dp_replicate=2, dp_shard=2)]),
        (Mesh(dp_replicate=4), [Mesh(), Mesh(dp_shard=2)]),
    ],
    ids=str,
)
def test_what_one_mesh_saves_others_go_on_from(before: Mesh, after: list[Mesh], tmp_path: Path):
    check_resumes(tmp_path, before, after, partial(decoder_job, ema_decay=0.9))


@pytest.mark.slow
def test_four_replicas_go_on_to_the_bit(tmp_path: Path):
    check_resumes(tmp_path, Mesh(dp_replicate=4), [Mesh(dp_replicate=4)])


class NormalisedBlock(nn.Module):
    """Its normalisation has a running mean, a buffer that each step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(torch.tanh(self.linear(x)))


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(NormalisedBlock() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def rows_of(samples: int, *, seed: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(samples, 8, generator=torch.Generator().manual_seed(seed))}


def normalised_job() -> Job:
    return Job(Normalised, rows_of, lambda model, batch: (model(batch["x"]) ** 2).mean(), learning_rate=1e-2)


@pytest.mark.slow
def test_stages_save_the_buffers_of_their_own_blocks(tmp_path: Path):
    check_resumes(tmp_path, Mesh(pp=2), [Mesh(), Mesh(pp=2)], normalised_job, accumulation=4)


@pytest.mark.slow
@pytest.mark.parametrize("before", [Mesh(pp=2), Mesh(pp=2, dp_shard=2), Mesh(pp=4)], ids=str)
def test_stages_save_what_one_process_goes_on_from(before: Mesh, tmp_path: Path):
    check_resumes(tmp_path, before, [Mesh(), Mesh(dp_shard=2), before], partial(decoder_job, ema_decay=0.9), accumulation=4)


@pytest.mark.slow
@pytest.mark.parametrize("before", [Mesh(tp=2), Mesh(dp_shard=2, tp=2), Mesh(pp=2, tp=2), Mesh(cp=2)], ids=str)
def test_tensor_and_context_parallel_ranks_save_what_one_process_goes_on_from(before: Mesh, tmp_path: Path):
    check_resumes(tmp_path, before, [Mesh(), Mesh(dp_shard=2), before], decoder_job, accumulation=2)


@pytest.mark.slow
def test_shards_and_tensor_parallel_shards_go_over_into_each_other(tmp_path: Path):
    check_resumes(tmp_path, Mesh(dp_shard=4), [Mesh(dp_shard=2, tp=2), Mesh(tp=2), Mesh(dp_replicate=2, dp_shard=2, tp=2)])


def parts_of_uneven_shards() -> list[tuple[list[int], list[int]]]:
    """FSDP2 over tensor parallelism, of sizes that do not divide: each rank has the rows that its region says."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape))
    whole_weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    shapes = []
    for name, parameter in model.named_parameters():
        region = shard_of(parameter).region
        assert parameter.to_local().equal(whole_weights[name][region.slices(Region.whole(parameter.shape))]), name
        shapes.append((list(region.offset), list(region.shape)))
    return shapes


def test_regions_of_strided_shards_are_what_ranks_hold():
    ranks = on_ranks(4, parts_of_uneven_shards)
    assert [shapes[0] for shapes in ranks] == [([0, 0], [3, 6]), ([5, 0], [3, 6]), ([3, 0], [2, 6]), ([8, 0], [2, 6])]
    # Of a row-wise weight tensor parallelism splits the columns.
    assert [shapes[2] for shapes in ranks] == [([0, 0], [3, 5]), ([0, 5], [3, 5]), ([3, 0], [3, 5]), ([3, 5], [3, 5])]


def both_ways(mesh: Mesh, folder: str) -> bool:
    """Whether PyTorch's own checkpoints (DCP) bring back the same tensors under the same names."""
    program, ranks = program_of(decoder_job, mesh, {}), ranks_here()
    steps(program, 0, BEFORE)
    saver = RankSaver(CheckpointStore(f"{folder}/ours", files=Quick()), ranks, mesh=str(mesh))
    outcome = saver.save_now(BEFORE, program_state(program))
    assert isinstance(outcome, Saved), outcome
    model, update = get_state_dict(program.model, program.optimizer)
    dcp.save({"model": model, "optimizer": update}, checkpoint_id=f"{folder}/dcp")
    other = program_of(decoder_job, mesh, {})
    steps(other, 7, 1)
    model, update = get_state_dict(other.model, other.optimizer)
    dcp.load({"model": model, "optimizer": update}, checkpoint_id=f"{folder}/dcp")
    ours: Any = Checkpoint(Path(folder) / "ours" / f"step-{BEFORE:08d}", BEFORE).load()
    assert set(ours["model"]) == set(model)
    assert set(ours["optimizer"]["state"]) == set(update["state"])
    pairs = [(ours["model"][name], value) for name, value in model.items()]
    pairs += [
        (ours["optimizer"]["state"][name][key], value)
        for name, values in update["state"].items()
        for key, value in values.items()
    ]
    return all(torch.equal(own, value.full_tensor() if isinstance(value, DTensor) else value) for own, value in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [Mesh(dp_shard=2), Mesh(dp_shard=2, tp=2)], ids=str)
def test_the_same_tensors_come_back_as_from_pytorchs_own_checkpoints(mesh: Mesh, tmp_path: Path):
    assert on_ranks(mesh.devices, both_ways, mesh, str(tmp_path)) == [True] * mesh.devices


def killed_while_saving(mesh: Mesh, folder: str, at: int) -> None:
    """Rank 1 is killed at one of the system calls of its second save; the others end when they notice."""
    program, ranks = program_of(decoder_job, mesh, {}), ranks_here()
    steps(program, 0, 1)
    store = CheckpointStore(folder, files=Quick())
    saver = RankSaver(store, ranks, mesh=str(mesh))
    assert isinstance(saver.save_now(1, program_state(program)), Saved)
    steps(program, 1, 1)
    if ranks.rank == 1:
        store.files = Killed(at)
    saver.begin(2, program_state(program))
    steps(program, 2, 50)  # a collective that rank 1 does not take part in ends the others
    saver.finish()


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 4, 7, 10])
def test_a_rank_killed_while_it_saves_costs_that_checkpoint_alone(at: int, tmp_path: Path):
    with pytest.raises(RankError):
        on_ranks(2, killed_while_saving, Mesh(dp_shard=2), str(tmp_path), at)
    store = CheckpointStore(tmp_path)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1
    assert not store.notes
    latest.load()
    store.remove_leftovers()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
