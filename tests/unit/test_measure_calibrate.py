"""A made-up machine whose operations take known times is found again from what it showed."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

pytest.importorskip("torch")

from calibration_samples import CPU, FACTORS, GPU, NAMES, samples

from gpuwise.cost.calibration import Calibration, CalibrationEntry, Term, calibration
from gpuwise.cost.calibration.files import CalibrationFile
from gpuwise.cost.kernels.shapes import Shapes
from gpuwise.cost.parameters import parameters
from gpuwise.measure import calibrate as module
from gpuwise.measure.calibrate import FEWEST_NETWORKS, LARGEST_FACTOR, LEAST_SPREAD, MachineFit, calibrate
from gpuwise.measure.samples import StepSamples, by_class


@pytest.fixture(scope="module")
def of_cpu() -> MachineFit:
    return calibrate(samples(), CPU)


def kind_of(key: str) -> str:
    return key.partition(".")[0].split("_")[0]


@pytest.mark.slow
def test_networks_that_the_fit_did_not_see_are_forecast(of_cpu):
    assert {name.removesuffix(", fp32, train") for name in of_cpu.errors} == set(NAMES)
    assert max(map(abs, of_cpu.errors.values())) < 0.08
    assert np.median(np.abs(list(of_cpu.errors.values()))) < 0.04


def test_every_class_of_a_cpu_has_an_entry_that_explains_it(of_cpu):
    assert {"gemm.fp32", "attention.fp32", "elementwise", "norm_layer", "optimizer"} <= set(of_cpu.entries)
    assert "other" not in of_cpu.entries
    assert not of_cpu.scale
    for entry in of_cpu.entries.values():
        low, high = entry.spread
        assert low <= 1 / LEAST_SPREAD + 1e-3 < 1 < LEAST_SPREAD - 1e-3 <= high
        assert "operations observed" in entry.evidence["source"]
    low, high = of_cpu.entries["gemm.fp32"].spread
    assert low > 0.8
    assert high < 1.25


def test_spreads_are_of_the_errors_and_hold_1(of_cpu):
    assert {(s.family, s.level, s.mode, s.rows) for s in of_cpu.spreads} == {
        ("cpu", "machine", mode, len(NAMES)) for mode in ("train", "infer")
    }
    errors = 1 / (1 + np.array(list(of_cpu.errors.values())))
    for spread in of_cpu.spreads:
        assert spread.low <= 1 / LEAST_SPREAD + 1e-3
        assert spread.high >= LEAST_SPREAD
        inside = (spread.low <= errors + 1e-3) & (errors - 1e-3 <= spread.high)
        assert inside.mean() > 0.8


def test_an_earlier_measurement_of_this_machine_is_not_what_the_fit_starts_from(monkeypatch):
    requests = []
    monkeypatch.setattr(module, "calibration", lambda chip: requests.append(chip) or calibration(chip))
    calibrate(samples()[-1:], replace(CPU, calibration="/nowhere/at-all.toml"))
    assert [chip.calibration for chip in requests] == [""]


@pytest.mark.slow
def test_the_factors_of_a_gpu_are_found_again():
    result = calibrate(samples("accelerator"), GPU)
    assert not result.entries
    for key in ("gemm.bf16", "attention.bf16", "attention_backward.bf16", "norm_layer", "elementwise", "optimizer"):
        # The floor of a kernel is not scaled: it is the launch, which is the driver's.
        assert result.scale[key] == pytest.approx(FACTORS[kind_of(key)], rel=0.1), key
    for key in ("reduction", "copy_cast", "embedding"):
        assert result.scale[key] == pytest.approx(1.0, rel=0.05), key
    assert "other" not in result.scale
    assert max(map(abs, result.errors.values())) < 0.08
    assert {s.family for s in result.spreads} == {"gpu"}


def test_every_factor_of_a_gpu_reaches_its_class(monkeypatch):
    """Also that of a class without shipped figures of its own, which runs like a wider one."""
    shipped_files = [replace(file, entries=without_casts(file.entries)) for file in calibration(GPU).files]
    known = Calibration(tuple(shipped_files))
    monkeypatch.setattr(module, "calibration", lambda chip: known)
    result = calibrate(samples("accelerator"), GPU)
    ours = Calibration((CalibrationFile("here", "machine", GPU.id, {}, result.scale), *known.files))
    own = {key for file in known.files for key in file.entries}
    assert set(result.scale) - own, "of such classes there are some"
    for key, factor in result.scale.items():
        kernel_class, _, figure = key.partition(".")
        shipped, got = known.find(kernel_class, figure), ours.find(kernel_class, figure)
        assert (got.level, got.entry, got.scale) == ("machine", shipped.entry, pytest.approx(factor * shipped.scale)), key


def without_casts(entries):
    return {key: entry for key, entry in entries.items() if not key.startswith("copy_cast")}


def test_a_factor_has_bounds():
    last = samples("accelerator")[-1]
    for second, factor in ((1e3, LARGEST_FACTOR), (1e-12, 1 / LARGEST_FACTOR)):
        classes = tuple(
            (name, dtype, result | {"seconds": [second] * len(result["count"])}) for name, dtype, result in last.classes
        )
        assert set(calibrate([replace(last, classes=classes)], GPU).scale.values()) == {factor}


def test_few_networks_tell_no_errors():
    result = calibrate(samples("accelerator")[: FEWEST_NETWORKS - 1], GPU)
    assert result.scale
    assert not result.errors
    assert result.spreads == ()


def test_a_class_that_nothing_is_known_of_starts_in_the_middle_and_one_of_other_terms_keeps_what_it_has():
    design = module.design_of("gemm.fp32")
    assert design.start(None) == design.start()
    prior = design.start(CalibrationEntry({"compute": Term(3.0), "unheard of": Term(9.0)}, 2.0, 1e-6))
    assert prior.terms == {**design.start().terms, "compute": Term(3.0)}
    assert (prior.sharpness, prior.floor_s) == (2.0, 1e-6)


@pytest.mark.parametrize("logs", [[0.5, 0.6], [-0.7, -0.5], [0.0, 0.0], [0.001, -0.001]])
def test_an_interval_holds_1_whatever_it_saw(logs):
    low, high = module._interval(np.array(logs))
    assert 0 < low < 1 < high
    assert low <= np.exp(min(logs)) + 0.05
    assert high >= np.exp(max(logs)) - 0.05


def test_designs_are_of_terms_and_features_that_the_class_has():
    for key, part in by_class(samples(), CPU, parameters()).items():
        for name, term in module.design_of(key).terms.items():
            assert name in part.terms.seconds, key
            assert {curve.over for curve in term.curves} <= set(part.terms.features), key


def test_each_mode_has_the_spread_of_its_own_errors_and_of_all_where_they_are_few():
    errors = {"train": [0.1, -0.1, 0.05, 0.0, 0.02], "infer": [0.5, 0.4, 0.6, 0.45]}
    train, infer = module._spreads("cpu", errors)
    assert (train.mode, train.rows, infer.mode, infer.rows) == ("train", 5, "infer", 4)
    assert train.low > 0.85
    assert infer.low < 0.65
    assert infer.high == LEAST_SPREAD
    few, _ = module._spreads("cpu", {"train": errors["train"][:3], "infer": errors["infer"]})
    assert few.rows == 7


def test_what_a_grouped_convolution_of_any_size_costs_is_a_floor():
    """oneDNN puts operands into another order at each call. Where the floor had no room, arithmetic took its time, and larger
    convolutions were forecast at several times theirs."""
    generator, law = np.random.default_rng(0), (1.5e-4, 4e-11)  # seconds a call, and an operation
    count = 40
    groups, m = generator.integers(4, 60, count), generator.integers(16, 800, count)
    n, k = np.full(count, 8.0), np.full(count, 72.0)
    flops = 2.0 * groups * m * n * k
    moved = 4.0 * groups * (m * k / 9 + n * k + m * n)
    ones, zeros = np.ones(count), np.zeros(count)
    columns = dict(zip((f.name for f in fields(Shapes)), zeros[None].repeat(len(fields(Shapes)), 0).tolist(), strict=True))
    sizes = {"flops": flops, "bytes_read": moved, "kernels": ones, "batch": groups, "m": m, "n": n, "k": k}
    columns |= {name: np.asarray(values, float).tolist() for name, values in sizes.items()}
    columns |= {"element_bytes": (4 * ones).tolist(), "images": ones.tolist(), "count": ones.tolist()}
    noise = np.exp(generator.normal(0.0, 0.05, count))
    columns["seconds"] = ((law[0] + law[1] * flops) * noise).tolist()
    classes = (("conv_grouped", "float32", columns),)
    step = StepSamples("groups", "fp32", "infer", (sum(columns["seconds"]),) * 3, 0.0, 0.0, int(flops.sum()), classes)
    one_core = replace(CPU, sm_count=1, peak_flops_per_s={"fp32": 1e11}, memory_bandwidth_bytes_per_s=2e10)
    entry = calibrate([step], one_core).entries["conv_grouped.fp32"]
    assert entry.floor_s == pytest.approx(law[0], rel=0.25)
    larger = {**columns, "m": (4 * np.array(columns["m"])).tolist(), "flops": (4 * flops).tolist()}
    larger["bytes_read"] = (4 * moved).tolist()
    (part,) = by_class([replace(step, classes=(("conv_grouped", "float32", larger),))], one_core, parameters()).values()
    ratio = module.predicted_s(entry, part) / (law[0] + 4 * law[1] * flops)
    assert np.median(ratio) == pytest.approx(1.0, abs=0.2)
    assert ratio.max() < 1.5
