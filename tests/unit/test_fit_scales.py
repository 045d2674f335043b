"""Scales of classes learned from whole steps: known ones are found, unknown ones stay."""

import numpy as np
import pytest
from benchmarks.fit.scales import fit_scales, forecast_s, rescaled
from benchmarks.fit.steps import Part, Table

from gpuwise.cost.calibration import CalibrationEntry, EfficiencyCurve, Term, names_of
from gpuwise.cost.kernels.shapes import KernelTerms
from gpuwise.hardware.catalog import Catalog

CATALOG = Catalog()
A100, H100, V100 = "a100-80gb-sxm", "h100-80gb-sxm", "v100-sxm2-16gb"


def steps(chips, shares, *, truth, seed=0, noise=0.0, host_s=0.0):
    """Steps of two classes, of which `gemm.bf16` takes the given share; truth: what each class is off by on each chip."""
    random = np.random.default_rng(seed)
    chip = np.repeat(chips, len(shares))
    share = np.tile(shares, len(chips))
    parts = {"gemm.bf16": share, "elementwise": 1 - share}
    seconds = sum(parts[key] * np.array([truth[c][key] for c in chip]) for key in parts)
    seconds = np.maximum(seconds, host_s) * np.exp(noise * random.standard_normal(len(chip)))
    none = Part(KernelTerms({}, {}), *[np.zeros(0)] * 4)
    names = np.array(chip, dtype=object)
    return Table(seconds, np.full(len(chip), host_s), names, names, names, dict.fromkeys(parts, none)), parts


SHARES = np.linspace(0.05, 0.95, 10)


def learned(table, parts, chosen=None):
    scales = fit_scales(table, parts, np.ones(len(table), dtype=bool) if chosen is None else chosen, CATALOG)
    return scales, np.log(table.seconds / forecast_s(table, parts, scales, CATALOG))


def test_what_every_chip_is_off_by_is_learned_for_all():
    truth = {key: {"gemm.bf16": 1.2, "elementwise": 0.9} for key in (A100, H100, V100)}
    scales, errors = learned(*steps([A100, H100, V100], SHARES, truth=truth))
    assert np.abs(errors).max() < 0.02
    unseen = names_of(CATALOG.chip("l4"))
    assert scales.of(unseen, "gemm.bf16") == pytest.approx(1.2, rel=0.05)
    assert scales.of(unseen, "elementwise") == pytest.approx(0.9, rel=0.05)


def test_what_one_chip_is_off_by_stays_with_it():
    right = {"gemm.bf16": 1.0, "elementwise": 1.0}
    scales, errors = learned(
        *steps([A100, H100, V100], SHARES, truth={A100: right, V100: right, H100: {**right, "gemm.bf16": 1.3}})
    )
    assert np.abs(errors).max() < 0.05
    hopper, turing = (scales.of(names_of(CATALOG.chip(c)), "gemm.bf16") for c in ("h100-80gb-pcie", "t4"))
    assert 1.0 <= turing < 1.1 < hopper < 1.3 < scales.of(names_of(CATALOG.chip(H100)), "gemm.bf16") * 1.02


def test_without_steps_nothing_changes_and_a_class_that_does_not_occur_keeps_its_figure():
    truth = {A100: {"gemm.bf16": 1.4, "elementwise": 1.4}}
    table, parts = steps([A100], SHARES, truth=truth)
    scales, _ = learned(table, parts)
    assert scales.of(names_of(CATALOG.chip(A100)), "softmax") == 1.0


def test_one_wild_row_does_not_carry_the_rest_away():
    truth = {A100: {"gemm.bf16": 1.0, "elementwise": 1.0}}
    table, parts = steps([A100], SHARES, truth=truth, noise=0.01)
    table.seconds[3] *= 3
    _scales, errors = learned(table, parts)
    assert np.median(np.abs(errors)) < 0.04


def test_steps_that_wait_for_the_host_teach_nothing():
    truth = {A100: {"gemm.bf16": 1.0, "elementwise": 1.0}}
    table, parts = steps([A100], SHARES, truth=truth, host_s=5.0)
    scales, errors = learned(table, parts)
    assert np.abs(errors).max() < 1e-6
    assert scales.of(names_of(CATALOG.chip(A100)), "gemm.bf16") == pytest.approx(1.0, abs=1e-3)


def test_a_rescaled_entry_takes_that_much_longer():
    entry = CalibrationEntry(
        {"memory": Term(1.5, (EfficiencyCurve("cached", (0.5, 2.0), (0.8, 1.2)),)), "compute": Term(1.2)}, 3.0, 2e-6
    )
    seconds, features = {"memory": np.array([1e-4]), "compute": np.array([5e-5])}, {"cached": np.array([1.0])}
    before, after = (e.floor_s + e.join_s(e.parts_s(seconds, features)) for e in (entry, rescaled(entry, 1.25)))
    assert after == pytest.approx(1.25 * before, rel=1e-3)
