"""Expert parallelism: losses and weights are those of one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.dist.cases import Case, check, each_of
from tests.dist.expert_parallel_cases import EXPERT_PARALLEL_CASES, HUB_EXPERT_CASES
from tests.dist.hub_jobs import hub_job
from tests.dist.language_jobs import language_job
from tests.dist.ranks import RankError, on_ranks
from tests.dist.test_checkpoints import check_resumes
from tests.dist.training import compare, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from gpuwise.runtime.parallel.experts_packed import split_packed
from gpuwise.strategy import Mesh, Strategy


@each_of((*EXPERT_PARALLEL_CASES, *HUB_EXPERT_CASES))
def test_split_experts_train_as_whole_ones(case: Case):
    check(case)


def test_more_ranks_than_experts_are_refused():
    with pytest.raises(RankError, match="over 3 devices does not divide 4 experts"):
        compare(Strategy(mesh=Mesh(dp_shard=3, ep=3)), partial(language_job, "mixtral"), steps=1, samples=3)


class Experts(nn.Module):
    """Four linear layers in one tensor, called as Hugging Face's experts are."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts = 4
        self.weight = nn.Parameter(torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        outputs = torch.einsum("eoi,ni->neo", self.weight, hidden_states).tanh()
        chosen = outputs.gather(1, top_k_index[..., None].expand(-1, -1, 8))
        return (chosen * top_k_weights[..., None]).sum(1)


def of_chosen(experts_of_ranks: list[list[list[int]]], ranks: int) -> dict[str, np.ndarray]:
    """Outputs, and gradients of rows, weights and experts, on this rank; its tokens choose experts_of_ranks[rank]."""
    experts, rank = Experts(), torch.distributed.get_rank()
    if ranks > 1:
        split_packed(experts, init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",)))
    generator = torch.Generator().manual_seed(1)
    outputs, leaves = [], []
    for number, chosen in enumerate(experts_of_ranks):
        rows = torch.randn(len(chosen), 8, generator=generator).requires_grad_()
        weights = torch.rand(len(chosen), len(chosen[0]), generator=generator).requires_grad_()
        if ranks == 1 or number == rank:
            outputs.append(experts(rows, torch.tensor(chosen), weights))
            leaves.append((rows, weights))
    torch.cat(outputs).square().sum().backward()
    (gradient,) = (p.grad for p in experts.parameters())
    parts = {"rows": torch.cat([r.grad for r, _ in leaves]), "weights": torch.cat([w.grad.flatten() for _, w in leaves])}
    return whole({**parts, "outputs": torch.cat(outputs), "experts": gradient})


@pytest.mark.parametrize(
    "chosen",
    [
        [[[0, 1], [2, 3], [1, 2]], [[3, 0], [0, 2]]],
        [[[0, 1], [1, 0], [0, 1]], [[1, 0]]],  # the second rank's experts get no rows
        [[[0], [1]], [[3], [2], [3]]],
    ],
)
def test_ranks_compute_the_rows_of_all_that_chose_their_experts(chosen: list[list[list[int]]]):
    (expected,) = on_ranks(1, of_chosen, chosen, 1)
    first, second = on_ranks(2, of_chosen, chosen, 2)
    for name in ("outputs", "rows", "weights"):
        np.testing.assert_allclose(np.concatenate([first[name], second[name]]), expected[name], rtol=1e-5, atol=1e-6)
    for rank in (first, second):
        np.testing.assert_allclose(rank["experts"], expected["experts"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("before", [Mesh(dp_shard=2, ep=2), Mesh(dp_shard=4, ep=2)], ids=str)
def test_experts_in_one_tensor_are_saved_for_any_mesh(before: Mesh, tmp_path: Path):
    check_resumes(tmp_path, before, [Mesh(), Mesh(dp_shard=2), Mesh(dp_shard=4, ep=4), before], partial(hub_job, "Mixtral"))


@pytest.mark.slow
def test_experts_of_pipeline_stages_are_saved_for_other_meshes(tmp_path: Path):
    """Of as many data ranks: how many rows an expert of this mixture takes follows from the micro-batch."""
    meshes = [Mesh(dp_shard=2), Mesh(dp_shard=2, ep=2), before := Mesh(pp=2, dp_shard=2, ep=2)]
    check_resumes(tmp_path, before, meshes, partial(language_job, "mixtral"), accumulation=4)
