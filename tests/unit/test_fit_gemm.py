"""The fit of matrix products: its derivatives, and figures that carry over to chips that it has not seen."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.fit.gemm import DESIGN, Table
from benchmarks.fit.operator_tables import Rows

from gpuwise.cost.kernels import gemm
from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes
from gpuwise.measure.fitting.entry_model import EntryModel, ParameterBlock

# Multiprocessors, clock, bandwidth, peak and cache of three chips unlike each other.
CHIPS = {
    "slow": Hardware(2e14, 2.0e12, 100.0, 4e7, clock_hz=1.4e9),
    "wide": Hardware(2e15, 8.0e12, 150.0, 1.2e8, clock_hz=1.9e9),
    "cached": Hardware(5e14, 1.5e12, 190.0, 1.3e8, clock_hz=2.6e9),
}
CLOCKS, WAVE_CLOCKS, TRAFFIC, ARITHMETIC, FLOOR_S = 1.5, 600.0, 1.15, 1.2, 2e-6


def shapes_of(count: int, seed: int = 0) -> Shapes:
    m, n, k = np.ceil(2 ** np.random.default_rng(seed).uniform(4, 13, (3, count)))
    one = np.ones(count)
    return Shapes(2 * m * n * k, 2 * (m * k + n * k), 2 * m * n, one, one, m, n, k, 0 * one, 2 * one)


def truth_s(shapes: Shapes, hardware: Hardware) -> np.ndarray:
    """The same physics on every chip, written down apart: waits in clocks on top of the longer of arithmetic and bytes."""
    waves = np.ceil(np.ceil(shapes.m / 128) * np.ceil(shapes.n / 128) / hardware.units)
    arithmetic = ARITHMETIC * shapes.flops / hardware.peak_flops_per_s
    seconds = gemm.terms(shapes, hardware).seconds
    clocks = CLOCKS * shapes.k + WAVE_CLOCKS * waves + FLOOR_S * 1.8e9
    return clocks / hardware.clock_hz + np.maximum(TRAFFIC * seconds["traffic"], arithmetic)


def table_of(chips: dict[str, Hardware], count: int = 300) -> Table:
    shapes = shapes_of(count)
    name = np.repeat(list(chips), count)
    every = Shapes(**{key: np.tile(np.broadcast_to(value, count), len(chips)) for key, value in vars(shapes).items()})
    hardware = Hardware(**{key: np.array([vars(chips[c])[key] for c in name]) for key in vars(CHIPS["slow"])})
    none = np.zeros(len(name))
    seconds = np.concatenate([truth_s(shapes, each) for each in chips.values()])
    rows = Rows(name, np.full(len(name), "linear"), every, seconds, none, none, none.astype(bool))
    return Table(rows, gemm.terms(every, hardware), None)


def test_derivatives_are_those_of_the_seconds_latencies_included():
    terms = table_of(CHIPS, 20).terms
    index, one = np.arange(60), np.ones(60)
    model = EntryModel(DESIGN, DESIGN.start(), ParameterBlock(terms, one * terms.floor, index, one))
    vector = model.prior + 0.05 * np.sin(np.arange(len(model.prior)))
    _, slopes = model.seconds(vector, 60)
    for parameter in range(len(vector)):
        step = np.zeros(len(vector))
        step[parameter] = 1e-5
        up, down = (model.seconds(vector + sign * step, 60)[0] for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, parameter], (up - down) / 2e-5, rtol=2e-4, atol=1e-13)


def test_the_fit_and_the_forecast_give_the_same_seconds():
    terms = table_of(CHIPS, 20).terms
    index, one = np.arange(60), np.ones(60)
    model = EntryModel(DESIGN, DESIGN.start(), ParameterBlock(terms, one * terms.floor, index, one))
    entry = model.entry(model.prior)
    forecast = entry.floor_s * terms.floor + entry.join_s(entry.parts_s(terms.seconds, terms.features))
    np.testing.assert_allclose(forecast, model.seconds(model.prior, 60)[0], rtol=5e-4)


@pytest.mark.parametrize("unseen", list(CHIPS))
def test_waits_in_clocks_carry_over_to_a_chip_that_was_left_out(unseen: str):
    table = table_of(CHIPS)
    weight = (table.rows.chip != unseen) / 600.0
    entries = table.fit(None, weight)
    errors = table.of(table.rows.chip == unseen).log_errors(entries)
    assert np.median(np.abs(errors)) < 0.03
    assert np.quantile(np.abs(errors), 0.9) < 0.12


def test_rows_without_weight_do_not_move_the_figures():
    table = table_of(CHIPS, 60)
    weight = (table.rows.chip != "wide") / 120.0
    wrong = np.where(table.rows.chip == "wide", 9 * table.rows.seconds, table.rows.seconds)
    other = replace(table, rows=replace(table.rows, seconds=wrong))
    assert table.fit(None, weight) == other.fit(None, weight)


def test_figures_of_a_family_never_make_better_hardware_slower():
    shapes, random = shapes_of(300, seed=3), np.random.default_rng(3)
    start = DESIGN.start()
    scaled = {name: replace(term, scale=term.scale * random.uniform(0.5, 2)) for name, term in start.terms.items()}
    entry = replace(start, terms=scaled)

    def forecast(hardware: Hardware) -> np.ndarray:
        terms: KernelTerms = gemm.terms(shapes, hardware)
        return entry.floor_s * terms.floor + entry.join_s(entry.parts_s(terms.seconds, terms.features))

    base = CHIPS["slow"]
    for name in ("peak_flops_per_s", "bandwidth_bytes_per_s", "cache_bytes", "clock_hz"):
        better = replace(base, **{name: 1.4 * getattr(base, name)})
        assert np.all(forecast(better) <= forecast(base) * (1 + 1e-9)), name
