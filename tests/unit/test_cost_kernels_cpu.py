"""Terms of CPU kernels, and the shipped figures for them: cores, caches, weights, compiled against eager."""

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.cost.calibration import calibration
from gpuwise.cost.kernels import cpu, kernel_times
from gpuwise.cost.kernels.classes import classes, terms_of
from gpuwise.cost.kernels.shapes import Hardware, Shapes
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header
from gpuwise.trace.tables import COLUMNS, KINDS, Operations, OperationSequence, Storages
from gpuwise.trace.trace import Trace

CATALOG = Catalog()
DESKTOP = CATALOG.chip("i9-10940x")
CPUS = [chip for chip in CATALOG.chips.values() if chip.kind == "cpu"]
HARDWARE = Hardware(peak_flops_per_s=1e12, bandwidth_bytes_per_s=1e11, units=8, cache_bytes=16e6)


def product(m, n, k, batch=1.0):
    m, n, k, batch = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, float)) for x in (m, n, k, batch)))
    one = np.ones(m.shape)
    return Shapes(
        flops=2 * batch * m * n * k,
        bytes_read=4 * batch * (m * k + n * k),
        bytes_written=4 * batch * m * n,
        kernels=one,
        batch=batch,
        m=m,
        n=n,
        k=k,
        causal=0 * one,
        element_bytes=4 * one,
    )


def step(*operations, compiled=False, target="cpu"):
    """A trace of operations (name, kind, m, n, k, batch), each run once."""
    values = np.zeros((len(operations), len(COLUMNS)), dtype=np.int64)
    for row, (_, kind, m, n, k, batch) in enumerate(operations):
        flops = 2 * batch * m * n * k if kind in ("gemm", "conv", "attention") else 0
        values[row] = [flops, 4 * batch * (m * k + n * k), 4 * batch * m * n, 0, 1, batch, m, n, k, 0]
    kinds = np.array([KINDS.index(kind) for _, kind, *_ in operations])
    none = np.zeros(0, dtype=np.int64)
    index, zeros = np.arange(len(operations)), np.zeros(len(operations), dtype=np.int64)
    strategy = Strategy(precision="fp32", micro_batch=1, mode="infer", compile=compiled)
    header = Header("drawn", "", {"micro_batch": 1}, strategy, 1, 1, target=target)
    return Trace(
        header,
        Operations(tuple(o[0] for o in operations), kinds, ("float32",) * len(operations), values),
        OperationSequence(index, zeros, zeros, zeros),
        Storages(none, none, none, none, none),
        ("net",),
    ).check()


CONV = ("aten.convolution.default", "conv", 3136, 64, 576, 1)


def test_weights_are_apart_from_what_else_moves():
    terms = cpu.terms("gemm", product(1, 1000, 2048), HARDWARE)
    assert terms.seconds["weights"] == pytest.approx(4 * 1000 * 2048 / 1e11)
    assert terms.seconds["memory"] == pytest.approx(4 * (2048 + 1000) / 1e11)
    assert terms.seconds["compute"] == pytest.approx(2 * 1000 * 2048 / 1e12)


def test_a_kernel_takes_longer_to_launch_on_more_cores():
    floors = [float(cpu.terms("copy", product(8, 8, 8), replace(HARDWARE, units=units)).floor) for units in (1, 2, 16, 128)]
    assert floors == [1, 2, 5, 8]


def test_a_cache_is_full_where_it_is_as_large_as_what_moves():
    moved = np.array([16e6, 1.6e6])
    assert cpu.cached(moved, HARDWARE) == pytest.approx([1.0, 0.1])
    assert cpu.cached(moved, replace(HARDWARE, cache_bytes=0)) == pytest.approx(moved / cpu.UNKNOWN_CACHE_BYTES)


@pytest.mark.parametrize("kernel_class", ["gemm", "conv_depthwise", "attention_backward", "elementwise", "optimizer"])
def test_every_class_has_terms_that_grow_with_its_rows(kernel_class):
    small, large = (terms_of(kernel_class, product(m, 64, 64), HARDWARE, "cpu") for m in (100, 200))
    for name, seconds in small.seconds.items():
        assert (large.seconds[name] >= seconds).all(), name
    assert all((feature > 0).all() for feature in small.features.values())


def test_a_compiled_convolution_is_channels_last():
    assert ("conv", "float32") in classes(step(CONV))
    assert ("conv_channels_last", "float32") in classes(step(CONV, compiled=True))
    assert ("conv_channels_last", "float32") in classes(step(CONV, compiled=True, target="accelerator"))


@pytest.mark.parametrize("chip", CPUS, ids=lambda chip: chip.id)
def test_every_cpu_of_the_catalog_prices_eager_and_compiled_steps(chip):
    operations = [
        CONV,
        ("aten.mm", "gemm", 256, 1024, 1024, 1),
        ("aten.bmm", "gemm", 64, 64, 64, 12),
        ("sdpa", "attention", 256, 256, 64, 12),
        ("aten.relu", "elementwise", 3136, 64, 1, 1),
        ("aten.native_layer_norm", "norm", 256, 1024, 1, 1),
        ("aten.sum", "reduction", 256, 1024, 1, 1),
    ]
    for compiled in (False, True):
        times = kernel_times(step(*operations, compiled=compiled), chip, parameters())
        assert (times.device_s > 0).all()
        assert (times.device_s < 1).all()
        assert "generic" not in {result.level for result in times.figures}


def test_a_chip_that_was_measured_has_figures_of_its_own():
    assert calibration(DESKTOP).find("conv_channels_last", "fp32").level == "chip"
    assert calibration(CATALOG.chip("xeon-8380")).find("conv_channels_last", "fp32").level == "family"


@pytest.mark.parametrize("grown", ["m", "n", "k", "batch"])
def test_a_larger_product_is_never_quicker(grown):
    """With the shipped figures: every factor 1.3 more of one size, over five orders of magnitude."""
    sizes = 1.3 ** np.arange(0, 44)
    for chip in (DESKTOP, CATALOG.chip("epyc-9654")):
        for kernel_class in ("gemm", "conv", "conv_channels_last", "gemm_batched", "attention"):
            shape = {"m": 49.0, "n": 64.0, "k": 64.0, "batch": 1.0, grown: sizes}
            result = calibration(chip).find(kernel_class, "fp32")
            terms = cpu.terms(kernel_class, product(**shape), HARDWARE)
            seconds = result.entry.join_s(result.entry.parts_s(terms.seconds, terms.features))
            assert (np.diff(seconds) >= -1e-12).all(), (chip.id, kernel_class)


def test_turns_of_a_gather_are_dealt_to_the_cores_and_its_table_counts():
    shapes = product([1000.0, 2000.0], 50_000, 16)
    terms = cpu.terms("embedding", shapes, HARDWARE)
    assert terms.seconds["rows"] == pytest.approx([1000 * cpu.TURN_S / 8, 2000 * cpu.TURN_S / 8])
    assert terms.features["table"] == pytest.approx(50_000 * 16 * 4 / 16e6)
    assert "rows" not in cpu.terms("copy", shapes, HARDWARE).seconds
