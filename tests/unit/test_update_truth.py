"""gpuwise trains as a plain PyTorch loop does: every optimizer, precision and kind of kernels, with what goes with them.

All cases, some of them compiled: python -m benchmarks.update_truth --compiled, or this file with -m slow.
"""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.update_truth import __main__ as script
from benchmarks.update_truth import plain as plain_loop
from benchmarks.update_truth.cases import (
    PRECISIONS,
    TECHNIQUES,
    TOLERANCES,
    Case,
    cases,
    compiled_cases,
    covering,
    deviation,
    job_of,
    plain,
    run,
    train_ours,
)

import gpuwise.strategy.kernels

COVERING = covering()


@pytest.mark.parametrize("case", COVERING, ids=lambda case: case.name)
def test_it_trains_as_the_plain_loop(case: Case) -> None:
    assert run(case) <= case.tolerance


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [*(case for case in cases() if case not in COVERING), *compiled_cases()], ids=lambda case: case.name
)
def test_the_rest_of_the_cases_too(case: Case) -> None:
    assert run(case) <= case.tolerance


@pytest.mark.parametrize("what", ["optimizer", "precision", "kernels"])
def test_the_covering_part_has_every_pair(what: str) -> None:
    def pairs(some: list[Case]) -> set[tuple[str, str]]:
        return {(getattr(case, what), case.technique.name) for case in some}

    assert pairs(COVERING) == pairs(cases())
    alone = [(case.optimizer, case.kernels, case.precision) for case in COVERING if case.technique.name == "plain"]
    assert set(alone) == {(case.optimizer, case.kernels, case.precision) for case in cases()}


def test_the_plain_loop_knows_nothing_of_gpuwise() -> None:
    tree = ast.parse(Path(plain_loop.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any("gpuwise" in name for name in imported)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_plain_loop_learns_and_moves_every_matrix(precision: str) -> None:
    trained = plain(plain_loop.Recipe("momentum", precision))
    assert sum(trained.losses[-4:]) < sum(trained.losses[:4])
    assert all((trained.final[name] != value).any() for name, value in trained.initial.items() if value.dim() > 1)


@pytest.mark.parametrize("overflow", [0, 9])
def test_the_overflow_is_one(overflow: int) -> None:
    recipe = plain_loop.Recipe("adamw", "amp-fp16")
    assert plain(recipe).scale == 2 * plain(replace(recipe, overflow=overflow)).scale


class SkipsBlocks(torch.optim.SGD):
    """Planted: whole blocks of 8 numbers are left as they are."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                tail = p.numel() // 8 * 8
                p.view(-1)[tail:] -= group["lr"] * p.grad.view(-1)[tail:]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_update_that_leaves_blocks_out_is_found(precision: str) -> None:
    case = Case("sgd", "foreach", precision, TECHNIQUES[0])
    job = replace(job_of(case), optimizer=lambda some: SkipsBlocks(some, lr=plain_loop.LEARNING_RATES["sgd"]))
    result = deviation(
        train_ours(case, job, replace(case.strategy, optimizer=None, optimizer_kernels=None)), plain(case.recipe)
    )
    assert result > 0.9 > TOLERANCES[precision]


def skips_16_bit_blocks() -> bool:
    """Whether PyTorch's fused SGD does so on this processor."""
    parameter = torch.nn.Parameter(torch.zeros(256, dtype=torch.bfloat16))
    parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD([parameter], lr=1.0, fused=True).step()
    return bool((parameter == 0).any())


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_fused_sgd_in_16_bits_is_found(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not skips_16_bit_blocks():
        pytest.skip("PyTorch's fused SGD is right here")
    monkeypatch.setattr(gpuwise.strategy.kernels, "fused_sgd_fault", lambda **where: None)
    assert run(Case(optimizer, "fused", "bf16", TECHNIQUES[0])) > TOLERANCES["bf16"]


def test_momentum_that_an_overflow_leaves_uninitialised_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not initialised is filled with NaN for once."""
    empty_like = torch.empty_like
    monkeypatch.setattr(gpuwise.strategy.kernels, "fused_sgd_fault", lambda **where: None)
    monkeypatch.setattr(
        torch,
        "empty_like",
        lambda tensor, **more: (
            empty_like(tensor, **more).fill_(torch.nan) if tensor.is_floating_point() else empty_like(tensor, **more)
        ),
    )
    technique = next(technique for technique in TECHNIQUES if technique.recipe.get("overflow") == 0)
    assert run(Case("momentum", "fused", "amp-fp16", technique)) == torch.inf
    assert run(Case("momentum", "foreach", "amp-fp16", technique)) <= TOLERANCES["amp-fp16"]


def test_the_page_is_that_of_the_results() -> None:
    data = json.loads(script.RESULTS.read_text(encoding="utf-8"))
    assert script.PAGE.read_text(encoding="utf-8") == script.page(data)
    rows = {(row["optimizer"], row["kernels"], row["precision"], row["technique"]) for row in data["rows"]}
    known = [*cases(), *compiled_cases()]
    assert {(case.optimizer, case.kernels, case.precision, case.technique.name) for case in known} <= rows
    assert all(row["deviation"] <= row["tolerance"] for row in data["rows"])
