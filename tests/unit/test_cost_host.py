"""What the host needs to launch a step: eager, compiled, as CUDA graphs."""

import numpy as np
import pytest

from gpuwise.cost.host import host_s
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header
from gpuwise.trace.tables import COLUMNS, KINDS, PHASES, Operations, OperationSequence, Storages
from gpuwise.trace.trace import Trace

CATALOG = Catalog()
H100 = CATALOG.chip("h100-80gb-sxm")
FIGURES = parameters()


def step(phases, *, kernels=1, accumulation=1, compiled=False, mode="train"):
    """A step of elementwise operations, one a phase named, in both micro-batches; the optimizer's once."""
    row = [kernels if name == "kernels" else 1000 for name in COLUMNS]
    operations = Operations(("aten.add.Tensor",), np.array([KINDS.index("elementwise")]), ("float32",), np.array([row]))
    model = [PHASES.index(phase) for phase in phases if phase != "optimizer"]
    phase = [*model, *model, *(PHASES.index("optimizer") for p in phases if p == "optimizer")]
    micro = [0] * len(model) + [1] * len(model) + [2] * (len(phase) - 2 * len(model))
    zeros = np.zeros(len(phase), dtype=np.int64)
    strategy = Strategy(accumulation=accumulation, compile=compiled, mode=mode)
    nothing = np.zeros(0, dtype=np.int64)
    header = Header("hand", "", {"micro_batch": 1}, strategy, 10, 10)
    return Trace(
        header, operations, OperationSequence(zeros, zeros, np.array(phase), np.array(micro)), Storages(*[nothing] * 5), ("",)
    )


def test_an_eager_step_pays_for_every_call_and_every_kernel():
    took = host_s(step(["forward", "forward", "backward", "optimizer"], kernels=3), H100, FIGURES)
    calls = FIGURES.host_operation_s
    expected = 2 * calls["forward"] + calls["backward"] + calls["optimizer"] + 12 * FIGURES.host_kernel_s
    assert took == pytest.approx(expected)


def test_every_micro_batch_is_launched_again_and_the_update_once():
    figures, phases = FIGURES.host_operation_s, ["forward", "backward", "optimizer"]
    more = host_s(step(phases, accumulation=5), H100, FIGURES) - host_s(step(phases), H100, FIGURES)
    assert more == pytest.approx(4 * (figures["forward"] + figures["backward"] + 2 * FIGURES.host_kernel_s))


def test_a_compiled_step_pays_for_its_graphs_and_kernels():
    took = host_s(step(["forward"] * 100 + ["backward"] * 200, kernels=2, compiled=True), H100, FIGURES)
    assert took == pytest.approx(2 * FIGURES.host_compiled["graph_s"] + 600 * FIGURES.host_compiled["kernel_s"])
    inference = host_s(step(["forward"] * 10, compiled=True, mode="infer"), H100, FIGURES)
    assert inference == pytest.approx(FIGURES.host_compiled["graph_s"] + 10 * FIGURES.host_compiled["kernel_s"])


def test_the_update_of_a_compiled_model_stays_eager():
    model, whole = (step(phases, compiled=True) for phases in (["forward"], ["forward", "optimizer"]))
    update = FIGURES.host_operation_s["optimizer"] + FIGURES.host_kernel_s
    assert host_s(whole, H100, FIGURES) - host_s(model, H100, FIGURES) == pytest.approx(update)


def test_only_gpus_wait_for_a_host():
    for name in ("i9-10940x", "tpu-v4"):
        assert host_s(step(["forward"]), CATALOG.chip(name), FIGURES) == 0
