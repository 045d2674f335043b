"""What the host needs to launch a step: eager, compiled, as CUDA graphs."""

import numpy as np
import pytest

from gpuwise.cost.host import CAST, CHECKPOINT, calls, collective_s, host_factor, host_s, micro_batch_s
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header, RankGroup
from gpuwise.trace.parallel.communication import Collective, Communication
from gpuwise.trace.parallel.launches import HostLaunches
from gpuwise.trace.tables import COLUMNS, KINDS, PHASES, Operations, OperationSequence, Storages
from gpuwise.trace.trace import Trace

CATALOG = Catalog()
H100 = CATALOG.chip("h100-80gb-sxm")
FIGURES = parameters()


def step(phases, *, kernels=1, accumulation=1, compiled=False, mode="train", name="aten.add.Tensor"):
    """A step of elementwise operations, one a phase named, in both micro-batches; the optimizer's once."""
    row = [kernels if name == "kernels" else 1000 for name in COLUMNS]
    operations = Operations((name,), np.array([KINDS.index("elementwise")]), ("float32",), np.array([row]))
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
    assert took == pytest.approx(host_factor(H100, FIGURES) * (expected + micro_batch_s(FIGURES)))


def test_every_micro_batch_is_launched_again_and_the_update_once():
    figures, phases = FIGURES.host_operation_s, ["forward", "backward", "optimizer"]
    more = host_s(step(phases, accumulation=5), H100, FIGURES) - host_s(step(phases), H100, FIGURES)
    each_s = figures["forward"] + figures["backward"] + 2 * FIGURES.host_kernel_s + micro_batch_s(FIGURES)
    assert more == pytest.approx(4 * host_factor(H100, FIGURES) * each_s)


def test_a_compiled_step_pays_for_its_graphs_and_kernels():
    took = host_s(step(["forward"] * 100 + ["backward"] * 200, kernels=2, compiled=True), H100, FIGURES)
    assert took == pytest.approx(2 * FIGURES.host_compiled["graph_s"] + 600 * FIGURES.host_compiled["kernel_s"])
    inference = host_s(step(["forward"] * 10, compiled=True, mode="infer"), H100, FIGURES)
    assert inference == pytest.approx(FIGURES.host_compiled["graph_s"] + 10 * FIGURES.host_compiled["kernel_s"])


def test_the_update_of_a_compiled_model_stays_eager():
    model, whole = (step(phases, compiled=True) for phases in (["forward"], ["forward", "optimizer"]))
    update = host_factor(H100, FIGURES) * (FIGURES.host_operation_s["optimizer"] + FIGURES.host_kernel_s)
    assert host_s(whole, H100, FIGURES) - host_s(model, H100, FIGURES) == pytest.approx(update)


def test_each_run_of_operations_computed_again_is_a_checkpoint():
    phases = ["forward", "recompute", "recompute", "backward", "recompute", "backward"]
    counted = calls(step(phases))[:6]  # of the first micro-batch
    assert counted.tolist() == [1, 1 + CHECKPOINT, 1, 1, 1 + CHECKPOINT, 1]


def test_casts_of_autocast_are_called_without_python():
    counted = calls(step(["forward", "backward"], name="aten._to_copy.default"))[:2]
    assert counted.tolist() == [CAST, 1]


def test_collectives_are_launched_too_and_what_is_copied_around_them():
    trace, each_s = step(["forward", "backward"]), FIGURES.host_operation_s
    along = Collective("all_reduce", RankGroup("tp", 2, 1), 1000, 7)
    update = Collective("all_reduce", RankGroup("dp_replicate", 2, 2), 1000, 3, in_update=True)
    sent = Collective("send", RankGroup("pp", 2, 4), 1000, 5)
    beside = HostLaunches(forward=2, backward=4, casts=10, kernels=6)
    communication = Communication((along, update, sent), beside)
    more = host_s(trace, H100, FIGURES, communication) - host_s(trace, H100, FIGURES)
    beside_s = (2 + 10 * CAST) * each_s["forward"] + 4 * each_s["backward"] + 6 * FIGURES.host_kernel_s
    assert more == pytest.approx(host_factor(H100, FIGURES) * (10 * collective_s(FIGURES) + beside_s))


def test_inference_has_no_micro_batches():
    took = host_s(step(["forward"] * 10, mode="infer"), H100, FIGURES)
    each_s = FIGURES.host_operation_s["forward"] + FIGURES.host_kernel_s
    assert took == pytest.approx(10 * host_factor(H100, FIGURES) * each_s)


def test_hosts_of_desktops_are_faster_and_those_of_old_machines_slower():
    desktop, reference, old = (
        host_factor(CATALOG.chip(name), FIGURES) for name in ("rtx-4090", "a100-80gb-sxm", "v100-sxm2-16gb")
    )
    assert desktop < reference == 1 < old


def test_only_gpus_wait_for_a_host():
    for name in ("i9-10940x", "tpu-v4"):
        assert host_s(step(["forward"]), CATALOG.chip(name), FIGURES) == 0
