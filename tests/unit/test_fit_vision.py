"""The fit of whole vision steps: versions of one step, classes that stay, and products' memory within what cards reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.fit import vision
from benchmarks.fit.pieces import Context
from benchmarks.fit.steps import fit_steps
from benchmarks.fit.vision_designs import PRODUCT_MEMORY, designs
from benchmarks.support.published_case import Case
from test_fit_steps import TRUE, made

from gpuwise.cost.calibration import shipped
from gpuwise.cost.kernels.shapes import KernelTerms
from gpuwise.hardware.catalog import Catalog
from gpuwise.strategy import Strategy


def rows(seconds: dict[str, float]) -> vision.Rows:
    """One step as several versions of PyTorch ran it."""
    table = replace(made(steps=len(seconds)), seconds=np.array(list(seconds.values())))
    step = Strategy(mode="infer")
    cases = [Case("timm infer", "timm:a", step, (), "rtx-3090", 1, 1, s, torch=torch) for torch, s in seconds.items()]
    return vision.Rows(table, cases)


@pytest.mark.parametrize(
    ("seconds", "merged"),
    [
        ({"2.1.0": 1.0, "2.4.0": 1.1}, 1.1**0.5),
        ({"2.1.0": 3.0, "2.4.0": 1.0}, 1.0),  # convolutions of another cuDNN
        ({"2.10.0": 1.0, "2.9.1": 3.0}, 1.0),
    ],
)
def test_of_a_step_that_several_versions_ran_the_newest_counts_where_they_differ(seconds, merged):
    both = rows(seconds)
    once = both.merged(np.ones(len(seconds), dtype=bool))
    assert once.seconds == pytest.approx([merged])


def test_classes_that_are_not_named_stay():
    context = Context(Path(), Path(), Catalog(), classes=("pool", "copy_turned", "gemm"))
    keys = ["pool", "pool_backward", "copy", "copy_turned", "conv.fp16", "gemm.fp16"]
    assert set(vision._designs(keys, context)) == {"pool", "copy_turned", "gemm.fp16"}
    assert set(vision._designs(keys, replace(context, classes=()))) == set(keys)


def test_memory_of_products_stays_within_what_cards_reach():
    """Other things make steps slow: here they take three times what memory gives, the rest of the step is priced right."""
    table = made()
    seconds = {"compute": np.full(600, 1e-6), "memory": 10 ** np.random.default_rng(1).uniform(-4, -3, 600)}
    part = table.parts["conv.fp16"]
    features = {"k": np.full(600, 1024.0), "waves": np.full(600, 16.0)}
    product = replace(part, terms=KernelTerms(seconds, features))
    table = replace(table, parts={"gemm.fp16": product, "elementwise": table.parts["elementwise"]})
    fixed = {"elementwise": TRUE["elementwise"]}
    slow = np.bincount(part.step, weights=part.count * 3 * seconds["memory"], minlength=len(table))
    table = replace(table, seconds=slow + table.part_s("elementwise", TRUE["elementwise"]))
    entries, _ = fit_steps(table, designs(["gemm.fp16"]), fixed, pull=1e-6, smooth=0.0, iterations=60)
    assert entries["gemm.fp16"].terms["memory"].scale <= PRODUCT_MEMORY[1] * 1.001


def test_shipped_memory_of_products_is_within_what_cards_reach():
    learned = {key: file for key, file in shipped().items() if key[0] == "chip" and "conv.fp16" in file.entries}
    assert len(learned) >= 3
    for file in learned.values():
        for key in ("gemm.fp16", "gemm.bf16"):
            entry = file.entries.get(key)
            assert entry is None or "memory" not in entry.terms or entry.terms["memory"].scale <= PRODUCT_MEMORY[1]
