"""What scales of classes do to calibration files: every chip is priced by the product of those that are its own."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.fit.language import put
from benchmarks.fit.pieces import Context
from benchmarks.fit.scales import Scales
from benchmarks.fit.store import Store

from gpuwise.cost.calibration import CalibrationEntry, CalibrationFile, Term
from gpuwise.hardware.catalog import Catalog

CONTEXT = Context(Path(), Path(), Catalog())
KEYS = ("gemm.fp16", "gemm.bf16", "gemm_unaligned.fp16", "softmax", "softmax_backward")
H100, H100_PCIE, A100, V100 = "h100-80gb-sxm", "h100-80gb-pcie", "a100-80gb-sxm", "v100-sxm2-16gb"
CHIPS = (H100, H100_PCIE, A100, V100)


def entry(seconds):
    return CalibrationEntry({"memory": Term(seconds)}, 4.0, 0.0)


def store():
    """Figures of a family, and of one chip on its own."""
    family = {"gemm.bf16": entry(1.0), "softmax": entry(2.0)}
    chip = {"gemm.bf16": entry(3.0), "softmax_backward": entry(5.0)}
    files = [CalibrationFile("f", "family", "gpu", family, {}), CalibrationFile("c", "chip", H100, chip, {"softmax": 1.5})]
    return Store({(file.level, file.of): file for file in files})


def seconds(found, chip, key):
    kernel_class, _, numerics = key.partition(".")
    got = found.calibration(CONTEXT.catalog.chip(chip)).find(kernel_class, numerics)
    return got.scale * got.entry.join_s(got.entry.parts_s({"memory": np.ones(1)}, {}))[0]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("key", KEYS)
def test_every_chip_is_rescaled_by_its_own_levels(chip, key):
    log = {
        ("family", "gpu", "gemm.fp16"): 0.1,
        ("architecture", "sm_90", "gemm.fp16"): 0.2,
        ("chip", H100, "gemm.fp16"): 0.3,
        ("chip", A100, "gemm.fp16"): -0.2,
        ("architecture", "sm_80", "gemm_unaligned.fp16"): 1.0,
        ("family", "gpu", "softmax_backward"): 0.5,
        ("chip", A100, "softmax_backward"): -0.3,
        ("chip", H100, "softmax"): 0.4,
    }
    scales, changed = Scales(log), store()
    put(scales, [k for k in KEYS if k != "gemm.bf16"], CONTEXT, changed, learned=CHIPS)
    from gpuwise.cost.calibration import names_of

    factor = scales.of(names_of(CONTEXT.catalog.chip(chip)), key)
    assert seconds(changed, chip, key) == pytest.approx(factor * seconds(store(), chip, key), rel=0.01)


def test_what_was_measured_on_a_chip_without_such_steps_stays():
    changed = store()
    put(Scales({("family", "gpu", "gemm.fp16"): 0.3}), ["gemm.fp16"], CONTEXT, changed, learned=(V100,))
    assert seconds(changed, H100, "gemm.fp16") == seconds(store(), H100, "gemm.fp16")
    assert seconds(changed, V100, "gemm.fp16") == pytest.approx(np.exp(0.3) * seconds(store(), V100, "gemm.fp16"), rel=0.01)


def test_scales_of_nearly_one_change_no_file():
    changed = store()
    scales = Scales({("family", "gpu", "softmax"): 0.001, ("chip", A100, "softmax"): -0.002})
    put(scales, ["softmax"], CONTEXT, changed, learned=CHIPS)
    assert not changed.changed
    assert not changed.rescaled
