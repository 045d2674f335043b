"""Fitting on whole steps: known figures come back, what has no design stays, and a copy of the batch is not counted."""

import numpy as np
import pytest

pytest.importorskip("torch")

from dataclasses import replace

from benchmarks.fit.steps import Part, Step, Table, fit_steps, table_of

from gpuwise.cost.calibration import CalibrationEntry, EfficiencyCurve, Term
from gpuwise.cost.kernels.shapes import KernelTerms
from gpuwise.hardware.catalog import Catalog
from gpuwise.measure.fitting.design import CurveDesign, Design, TermDesign
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header
from gpuwise.trace.tables import CATEGORIES, COLUMNS, KINDS, Operations, OperationSequence, Storages
from gpuwise.trace.trace import Trace

KNOTS = (1.0, 8.0, 64.0)
TRUE = {
    "conv.fp16": CalibrationEntry(
        {"compute": Term(1.6, (EfficiencyCurve("k", KNOTS, (1.3, 1.0, 0.8)),)), "memory": Term(1.9)}, 2.0, 3e-6
    ),
    "elementwise": CalibrationEntry({"memory": Term(1.25)}, 4.0, 2e-6),
}
DESIGNS = {
    "conv.fp16": Design(
        {"compute": TermDesign((0.8, 6.0), (CurveDesign("k", KNOTS, (-0.5, 0.5)),)), "memory": TermDesign((0.8, 6.0))}
    ),
    "elementwise": Design({"memory": TermDesign((0.8, 6.0))}),
}


def made(steps: int = 120, seed: int = 0) -> Table:
    """Steps of a few operations of each class that take what TRUE says."""
    draw = np.random.default_rng(seed)

    def part(names: tuple[str, ...], operations: int) -> Part:
        seconds = {name: 10 ** draw.uniform(-5, -2.5, operations) for name in names}
        features = {"k": 2 ** draw.uniform(0, 6, operations)}
        step = np.concatenate([np.arange(steps), draw.integers(0, steps, operations - steps)])
        count = draw.integers(1, 5, operations).astype(float)
        return Part(KernelTerms(seconds, features), np.ones(operations), step, count, np.zeros(operations))

    parts = {"conv.fp16": part(("compute", "memory"), 600), "elementwise": part(("memory",), 400)}
    names = np.array([f"model{i}" for i in range(steps)], dtype=object)
    empty = Table(np.ones(steps), np.zeros(steps), names, names, names, parts)
    return replace(empty, seconds=empty.step_s(TRUE))


def test_limits_of_the_hardware_are_fitted_within():
    """A fit counts the seconds that no kernel falls below, as forecasts do."""
    table = made()
    part = table.parts["elementwise"]
    limited = replace(table, parts={**table.parts, "elementwise": replace(part, least=1.5 * part.terms.seconds["memory"])})
    limited = replace(limited, seconds=limited.step_s(TRUE))
    entries, errors = fit_steps(limited, DESIGNS, {}, pull=1e-6, smooth=0.0, iterations=150)
    assert np.abs(errors).max() < 0.02
    assert np.abs(np.log(limited.step_s(entries) / limited.seconds)).max() < 0.02
    assert entries["conv.fp16"].terms["memory"].scale == pytest.approx(1.9, rel=0.05)


def test_known_figures_are_recovered():
    table = made()
    entries, errors = fit_steps(table, DESIGNS, {}, pull=1e-6, smooth=0.0, iterations=150)
    assert np.abs(errors).max() < 0.02
    conv = entries["conv.fp16"]
    assert conv.terms["compute"].scale == pytest.approx(1.6, rel=0.05)
    assert conv.terms["compute"].curves[0].factor == pytest.approx((1.3, 1.0, 0.8), rel=0.05)
    assert entries["elementwise"].terms["memory"].scale == pytest.approx(1.25, rel=0.03)


def test_classes_without_a_design_are_priced_by_their_prior_and_stay():
    table = made()
    entries, errors = fit_steps(table, {"conv.fp16": DESIGNS["conv.fp16"]}, TRUE, pull=1e-6, smooth=0.0, iterations=100)
    assert list(entries) == ["conv.fp16"]
    assert np.abs(errors).max() < 0.02


def test_chosen_steps_keep_their_operations():
    table = made()
    chosen = np.arange(len(table)) % 3 == 0
    assert table.of(chosen).step_s(TRUE) == pytest.approx(table.step_s(TRUE)[chosen])


def test_a_step_is_no_quicker_than_its_host():
    table = replace(made(), host_s=np.full(120, 10.0))
    assert (table.step_s(TRUE) == 10.0).all()


def test_a_prior_of_another_form_gives_what_it_has():
    known = CalibrationEntry({"memory": Term(2.5), "rows": Term(1.0)}, 3.0, 4e-6)
    prior = DESIGNS["conv.fp16"].start(known)
    assert set(prior.terms) == {"compute", "memory"}
    assert prior.terms["memory"].scale == 2.5
    assert prior.terms["compute"] == DESIGNS["conv.fp16"].start().terms["compute"]


def test_the_copy_of_the_batch_to_the_device_is_left_out():
    operations = Operations(
        ("aten._to_copy.default", "aten.relu.default"),
        np.array([KINDS.index("copy"), KINDS.index("elementwise")]),
        ("float32", "float32"),
        np.array([[0, 4096, 4096, 0, 1, 0, 0, 0, 0, 0], [0, 2**28, 2**28, 0, 1, 0, 0, 0, 0, 0]]),
    )
    assert operations.values.shape[1] == len(COLUMNS)
    zeros = np.zeros(2, dtype=int)
    sequence = OperationSequence(np.array([0, 1]), zeros, zeros, zeros)
    storages = Storages(np.array([4096]), np.array([CATEGORIES.index("input")]), np.array([0]), np.array([0]), np.array([1]))
    header = Header("relu", "", {"micro_batch": 2}, Strategy(precision="fp32", mode="infer"), 0, 0)
    step = Step(Catalog().chip("rtx-3090"), Trace(header, operations, sequence, storages, ("",)), 1e-3, "relu")
    table = table_of([step, step])
    assert list(table.parts) == ["elementwise"]
    assert table.parts["elementwise"].count.tolist() == [1.0, 1.0]
    bandwidth = step.chip.memory_bandwidth_bytes_per_s
    assert table.parts["elementwise"].terms.seconds["memory"] == pytest.approx([2**29 / bandwidth] * 2)
