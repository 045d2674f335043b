"""What is kept of an observed step: everything that a forecast prices, as plain numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from calibration_samples import CPU, GPU, NAMES, observed, recorded, samples

from gpuwise.cost.calibration import calibration, shipped
from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.kernels.classes import groups
from gpuwise.cost.parameters import parameters
from gpuwise.measure.calibrate import _shipped, predicted_s
from gpuwise.measure.samples import (
    LONG_STEP_S,
    MOST_STRETCH,
    SHORT_STEP_S,
    StepSamples,
    by_class,
    samples_of,
    stretch_of,
    unseen_of,
)

CHIPS = {"cpu": CPU, "accelerator": GPU}
TARGETS = pytest.mark.parametrize("target", list(CHIPS))


@TARGETS
def test_they_travel_as_json(target):
    for sample in samples(target):
        assert StepSamples.from_dict(json.loads(json.dumps(sample.to_dict()))) == sample


@TARGETS
@pytest.mark.parametrize("name", NAMES)
def test_every_operation_that_launches_something_is_there_with_its_count(name, target):
    trace, result = recorded(name, target), samples(target)[NAMES.index(name)]
    assert (result.network, result.precision, result.mode) == (name, trace.header.strategy.precision, "train")
    assert result.flops == trace.model_flops
    launching = trace.operations.column("kernels") > 0
    runs = np.bincount(trace.sequence.operation, minlength=len(trace.operations))
    assert sum(sum(columns["count"]) for _, _, columns in result.classes) == runs[launching].sum()
    assert sum(len(columns["seconds"]) for _, _, columns in result.classes) == (launching & (runs > 0)).sum()
    assert {(kernel_class, dtype) for kernel_class, dtype, _ in result.classes} <= {
        (group.kernel_class, group.dtype) for group in groups(trace)
    }
    assert all(len(set(map(len, columns.values()))) == 1 for _, _, columns in result.classes)


def test_seconds_are_the_median_step_and_the_mean_of_the_runs_in_it():
    trace = recorded("ViT")
    operation = trace.sequence.operation
    usual = np.where(np.arange(len(operation)) % 2, 1e-3, 3e-3)
    result = samples_of("x", replace(observed(trace, CPU), seconds=np.stack([usual, 100 * usual, usual])))
    for group, (_, _, columns) in zip(groups(trace), result.classes, strict=True):
        kept = group.rows[trace.operations.column("kernels")[group.rows] > 0]
        assert columns["seconds"] == pytest.approx([usual[operation == row].mean() for row in kept])


@TARGETS
def test_keys_are_those_of_calibration_files(target):
    result = by_class(samples(target), CHIPS[target], parameters())
    known = {key.partition(".") for file in shipped().values() for key in file.entries}
    kinds, numerics = {key[0].split("_")[0] for key in known}, {key[2] for key in known}
    for key, part in result.items():
        kernel_class, _, figure = key.partition(".")
        assert key == "other" or (kernel_class.split("_")[0] in kinds and figure in numerics), key
        sizes = {len(x) for x in (part.seconds, part.count, part.step, part.kernels, part.shapes.flops)}
        sizes |= {len(x) for x in (*part.terms.seconds.values(), *part.terms.features.values())}
        assert len(sizes) == 1
        assert set(part.step.tolist()) <= set(range(len(NAMES)))


@TARGETS
def test_entries_price_samples_as_they_price_the_step(target):
    """Else a fit would be of something that forecasts do not use."""
    chip = CHIPS[target]
    table, known = by_class(samples(target), chip, parameters()), calibration(chip)
    total_s = np.zeros(len(NAMES))
    for key, part in table.items():
        entry = _shipped(known, key)
        assert entry is not None
        total_s += np.bincount(part.step, weights=part.count * predicted_s(entry, part), minlength=len(NAMES))
    for name, predicted in zip(NAMES, total_s, strict=True):
        trace = recorded(name, target)
        count = np.bincount(trace.sequence.operation, minlength=len(trace.operations))
        device_s = float(count @ kernel_times(trace, chip, parameters()).device_s)
        assert predicted == pytest.approx(device_s, rel=1e-3), name  # some kernels stand at the least their bytes take


def test_what_others_take_of_long_steps_stretches_their_operations():
    one = samples()[0]

    def taking(step_s, stretch):
        scale = step_s / one.operations_s / stretch
        classes = tuple(
            (key, dtype, result | {"seconds": (scale * np.array(result["seconds"])).tolist()})
            for key, dtype, result in one.classes
        )
        return replace(one, classes=classes, step_s=(step_s,) * 3)

    assert one.operations_s == pytest.approx(np.median(one.step_s), rel=0.02)
    several = [taking(2 * LONG_STEP_S, 1.2), taking(3 * LONG_STEP_S, 1.2), taking(LONG_STEP_S / 2, 9.0)]
    assert stretch_of(several) == pytest.approx(1.2)
    assert stretch_of([taking(2 * LONG_STEP_S, 9.0)]) == MOST_STRETCH
    assert stretch_of([taking(2 * LONG_STEP_S, 0.5)]) == 1.0
    assert stretch_of([taking(LONG_STEP_S / 2, 1.4)]) == 1.0
    assert stretch_of([]) == 1.0
    longer = taking(2 * LONG_STEP_S, 1.25)
    total_s = sum(float(part.seconds @ part.count) for part in by_class([longer], CPU, parameters()).values())
    assert total_s == pytest.approx(2 * LONG_STEP_S)


def test_what_a_call_takes_beside_its_kernel_is_told_by_short_steps():
    short, *_ = samples()
    short = replace(short, step_s=(SHORT_STEP_S / 2,))
    assert unseen_of([replace(short, unseen_s=s) for s in (1e-6, 2e-6, 9e-6)]) == 2e-6
    assert unseen_of([replace(short, unseen_s=-1e-6)]) == 0.0
    assert unseen_of([replace(short, unseen_s=5e-6, step_s=(2 * SHORT_STEP_S,))]) == 0.0
    assert unseen_of([]) == 0.0
    ours = [replace(short, unseen_s=2e-6)]
    for key, part in by_class(ours, CPU, parameters()).items():
        without = by_class([replace(short, unseen_s=0.0)], CPU, parameters())[key]
        assert part.seconds == pytest.approx(without.seconds + 2e-6)


def test_each_mode_has_what_its_own_short_steps_show_of_a_call():
    """A pass without gradients has no autograd beside its kernels."""
    one = samples()[0]
    steps = [replace(one, mode=mode, unseen_s=s, step_s=(1e-3,)) for mode, s in (("train", 9e-6), ("infer", 2e-6))]
    long = [replace(one, mode="infer", unseen_s=1e-3, step_s=(1.0,))]
    bare = by_class([replace(one, unseen_s=0.0, step_s=(1e-3,))], CPU, parameters())
    for key, part in by_class([*steps, *long], CPU, parameters()).items():
        scale = stretch_of([*steps, *long])
        for index, unseen_s in enumerate((9e-6, 2e-6, 2e-6)):
            assert part.seconds[part.step == index] == pytest.approx(scale * bare[key].seconds + unseen_s)


def test_a_mode_without_short_steps_has_what_those_of_the_other_show():
    one = samples()[0]
    steps = [replace(one, unseen_s=3e-6, step_s=(1e-3,)), replace(one, mode="infer", unseen_s=1e-3, step_s=(0.05,))]
    for part in by_class(steps, CPU, parameters()).values():
        assert part.seconds[part.step == 1] == pytest.approx(part.seconds[part.step == 0])
