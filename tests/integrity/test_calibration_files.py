"""The calibration files that are shipped: whole, about chips of the catalog, and usable by the terms they name."""

from __future__ import annotations

from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest

from gpuwise.cost.calibration import LEVELS, CalibrationFile, names_of, shipped, shipped_steps, step_spread
from gpuwise.cost.calibration.steps import FAMILIES, FILE, MODES
from gpuwise.cost.kernels.classes import terms_of
from gpuwise.cost.kernels.times import hardware_of
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import family
from gpuwise.cost.single_kernel import one_shape
from gpuwise.hardware.catalog import Catalog
from gpuwise.trace.tables import KINDS

CATALOG = Catalog(user_files=())
FILES = sorted(shipped().values(), key=lambda file: file.name)
PRICED = [chip for chip in CATALOG.chips.values() if chip.memory_bandwidth_bytes_per_s]


def chips_of(file: CalibrationFile):
    return [chip for chip in PRICED if names_of(chip)[file.level] == file.of]


def test_every_file_is_about_something_of_its_own():
    folder = files("gpuwise.cost").joinpath("data/calibration")
    names = {path.name for path in folder.iterdir() if path.name.endswith(".toml")} - {FILE}
    assert {file.name for file in FILES} == names  # of two about the same, one would be lost


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_about_chips_of_the_catalog(file):
    assert file.level in LEVELS
    assert chips_of(file), f"{file.name} is of no chip"
    assert file.name.startswith(f"{file.level}-")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_terms_and_features_of_an_entry_exist(file):
    """A curve over a feature that no term function gives would only fail when a step is priced."""
    chip = chips_of(file)[0]
    for key, entry in file.entries.items():
        kernel_class, _, numerics = key.partition(".")
        shapes = one_shape(
            kernel_class.split("_")[0],
            "bfloat16" if numerics else "float32",
            flops=2 * 64**3,
            bytes_read=16384,
            bytes_written=8192,
            batch=1,
            m=64,
            n=64,
            k=64,
        )
        terms = terms_of(kernel_class, shapes, hardware_of(chip, parameters()), family(chip))
        assert set(entry.terms) <= set(terms.seconds), f"{file.name}: {key}"
        over = {curve.over for term in entry.terms.values() for curve in term.curves}
        assert over <= set(terms.features), f"{file.name}: {key}"
        seconds = entry.join_s(entry.parts_s(terms.seconds, terms.features))
        assert np.isfinite(seconds).all()
        assert (seconds > 0).all(), f"{file.name}: {key}"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_figures_for_every_kind(name):
    keys = {key.split(".")[0].split("_")[0] for key in shipped()["family", name].entries}
    assert set(KINDS) - {"other"} <= keys


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_spreads_never_narrow_with_the_level(name, mode):
    """Where both rest on rows, or both are assumed: what was measured may be narrower than what was assumed above it."""
    for compiled in (False, True):
        results = [step_spread(level, family=name, mode=mode, compiled=compiled) for level in ("machine", *LEVELS)]
        for near, far in pairwise(results):
            if bool(near.rows) == bool(far.rows):
                assert far.high / far.low >= 0.95 * near.high / near.low


def test_spreads_are_of_known_levels_once():
    keys = [(spread.family, spread.level, spread.mode, spread.compiled, spread.several) for spread in shipped_steps()]
    assert len(keys) == len(set(keys))
