"""An optimizer's state by parameter name, and checkpoints of version 1, which numbered parameters."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fault.checkpoint_faults import Quick, same
from tests.training_samples import toy
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from gpuwise.errors import InputError
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.checkpoint import Checkpoint, CheckpointStore, pack
from gpuwise.runtime.checkpoint.manifest import dump_json
from gpuwise.runtime.checkpoint.optimizer_state import named_state, numbered_state
from gpuwise.runtime.checkpoint.program_state import load_program, program_state
from gpuwise.strategy import Strategy


def trained(make: Any, *, steps: int = 2) -> tuple[nn.Module, torch.optim.Optimizer, dict[int, str]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = make(model)
    for _ in range(steps):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, {id(p): name for name, p in model.named_parameters()}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.dim() == 2]
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.dim() < 2]}]
    )


@pytest.mark.parametrize("make", [adamw, lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)])
def test_names_are_those_of_pytorchs_own_checkpoints(make: Any):
    model, optimizer, names = trained(make)
    state, expected = named_state(optimizer, names), get_optimizer_state_dict(model, optimizer)
    assert same(dict(sorted(state["state"].items())), dict(sorted(expected["state"].items())))
    assert [group["params"] for group in state["groups"].values()] == [group["params"] for group in expected["param_groups"]]


@pytest.mark.parametrize("make", [adamw, lambda model: torch.optim.LBFGS(model.parameters())])
def test_numbers_are_back_as_they_were(make: Any):
    _, optimizer, names = trained(make) if make is adamw else (nn.Linear(2, 1), make(nn.Linear(2, 1)), {})
    again = numbered_state(named_state(optimizer, names), optimizer, names)
    assert same(dict(again), optimizer.state_dict())


def test_an_optimizer_with_part_of_the_parameters_takes_its_own():
    model, optimizer, names = trained(adamw)
    saved = named_state(optimizer, names)
    part = torch.optim.AdamW(list(model[1].parameters()))
    with pytest.raises(InputError, match=r"its state of 0\.bias is not here"):
        numbered_state(saved, part, names)
    part.load_state_dict(dict(numbered_state(saved, part, names, partial=True)))
    assert part.state[model[1].weight]["exp_avg"].equal(optimizer.state[model[1].weight]["exp_avg"])
    assert part.param_groups[0]["weight_decay"] == 0.1


def test_state_of_a_parameter_that_was_not_saved_is_refused():
    model, optimizer, names = trained(adamw)
    saved = named_state(optimizer, names)
    other = torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.zeros(2))])
    with pytest.raises(InputError, match=r"it lacks the state of #4"):
        numbered_state(saved, other, names)


def program() -> Program:
    torch.manual_seed(3)
    return build(toy(), Strategy(), "cpu")


def as_version_1(folder: Path) -> None:
    """The same checkpoint with the manifest of version 1, which knew neither ranks nor meshes."""
    content = json.loads((folder / "manifest.json").read_bytes())["content"]
    del content["ranks"], content["mesh"]
    content["version"] = 1
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    (folder / "manifest.json").write_bytes(dump_json({"checksum": checksum, "content": content}))


def test_a_checkpoint_of_version_1_is_read_as_before(tmp_path: Path):
    first, job = program(), toy()
    batches = [job.batch(first.strategy.micro_batch)]
    first.step(batches)
    state = {**program_state(first), "optimizer": first.optimizer.state_dict()}  # by number, as version 1 had it
    written = CheckpointStore(tmp_path, files=Quick()).write(pack(state), step=1)
    as_version_1(written.path)
    saved = Checkpoint(written.path, 1)
    assert (saved.manifest.ranks, saved.manifest.mesh) == (1, "dp=1")
    second = program()
    load_program(second, saved.load())  # type: ignore[arg-type]
    for each in (first, second):
        torch.manual_seed(5)
        each.step(batches)
    assert same(program_state(second)["model"], program_state(first)["model"])
    assert same(second.optimizer.state_dict(), first.optimizer.state_dict())
