"""What a save of a plan takes: bytes of real checkpoints, and by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_plan_synthetic import offer, synthetic_source

import gpuwise
from gpuwise.cost.forecast import Interval
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.plan import Plan, Request
from gpuwise.plan.economics import save_time
from gpuwise.plan.economics.save_time import save_bytes, save_seconds, stop_seconds
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan
from gpuwise.strategy import Mesh

GB = 10**9


@pytest.fixture(scope="module")
def planned() -> Plan:
    request = Request(samples=10**9, budget_usd=10_000.0, deadline_s=90 * 86400.0)
    offers = [offer("a100-80gb-sxm", 8.0, count=8, terms="spot", vcpus=96, network_bytes_per_s=1e9)]
    return plan(StepTraces(synthetic_source(width=2048)), request, offers, load_catalog()).best


def sized(planned: Plan, mesh: Mesh, *, machines: int = 1, step_s: float = 2.0, **strategy: object) -> Plan:
    """A plan whose ranks have 1 GB of parameters and 2 GB of optimizer state each."""
    memory = replace(planned.forecast.memory, by_category={"parameter": GB, "optimizer_state": 2 * GB, "activation": 50 * GB})
    forecast = replace(planned.forecast, memory=memory, step_time_s=Interval(step_s, step_s / 2, step_s * 2))
    changes = {"mesh": mesh, **strategy}
    return replace(
        planned, forecast=forecast, strategy=planned.strategy.but(**changes), machines=machines, checkpoint_interval_s=None
    )


@pytest.mark.parametrize(
    ("mesh", "machines", "expected"),
    [
        (Mesh(), 1, 3),
        (Mesh(dp_replicate=8), 1, 3),  # replicas write once
        (Mesh(dp_shard=8), 1, 24),
        (Mesh(dp_shard=16), 2, 24),
        (Mesh(dp_shard=4, tp=2), 1, 24),
        (Mesh(dp_replicate=2, dp_shard=8), 2, 24),
        (Mesh(dp_replicate=2, dp_shard=4), 1, 12),
        (Mesh(dp_replicate=4, dp_shard=4), 2, 12),
        (Mesh(pp=4, dp_replicate=2), 1, 12),
    ],
)
def test_a_machine_writes_the_parts_of_its_ranks(mesh: Mesh, machines: int, expected: int, planned: Plan):
    assert save_bytes(sized(planned, mesh, machines=machines)) == expected * GB


def test_seconds_are_bytes_over_the_rate(planned: Plan):
    one = sized(planned, Mesh())
    assert save_seconds(one) == Interval(6.0, 3.0, 12.0)  # half of 1 GB/s, twice as fast or slow
    assert save_seconds(one, write_bytes_per_s=2e9) == Interval(1.5, 1.0, 2.25)
    for rate in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="above zero"):
            save_seconds(one, write_bytes_per_s=rate)


def test_a_stop_waits_for_the_step_in_flight(planned: Plan):
    one = sized(planned, Mesh(), step_s=2.0)
    # On average half a step and two of the four that a GPU is behind; at most five of 4 s each.
    assert stop_seconds(one) == Interval(2.0 * 2.5 + 6.0 + 5.0, 3.0, 4.0 * 5 + 12.0 + 5.0)
    on_cpu = replace(one, offer=replace(one.offer, count=0))
    assert stop_seconds(on_cpu) == Interval(1.0 + 6.0 + 5.0, 3.0, 4.0 + 12.0 + 5.0)
    often = replace(on_cpu, checkpoint_interval_s=60.0)  # a tenth of the time another save is being written
    assert stop_seconds(often).high == 4.0 + 24.0 + 5.0


def test_memory_that_is_not_counted_by_category(planned: Plan):
    one = sized(planned, Mesh(), offload="optimizer")
    assert save_bytes(one) == 3 * GB + 2 * GB  # two moments on the host, beside what the device has
    with pytest.raises(UnsupportedError, match="not forecast"):
        save_bytes(sized(planned, Mesh(), offload="parameters"))
    rough = replace(one.forecast, memory=replace(one.forecast.memory, by_category={}, peak_allocated_bytes=70 * GB))
    assert save_bytes(replace(one, forecast=rough)) == 70 * GB


def test_the_constants_are_those_of_the_runtime():
    pytest.importorskip("torch")
    from gpuwise.runtime.interruption import deadline
    from gpuwise.runtime.run import device_losses

    assert (save_time.EXIT_S, save_time.MEASURED_SPREAD) == (deadline.MARGIN_S, deadline.SPREAD)
    assert save_time.STEPS_AHEAD == device_losses.AHEAD


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "momentum", "adafactor"])
def test_the_bytes_are_those_of_a_real_checkpoint(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    x = torch.zeros(64, 64)
    job = gpuwise.Job(
        name="net",
        model=lambda: torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)),
        batch=lambda n: {"x": torch.zeros(n, 64)},
        loss=lambda model, batch: model(batch["x"]).square().mean(),
        data=lambda: {"x": x},
        samples=64,
        optimizer=optimizer,
    )
    best = gpuwise.plan(job, on="here", samples=128).best
    trained = gpuwise.train(job, best, steps=2, run=tmp_path / "run", progress="silent")
    assert trained.checkpoints is not None
    (path,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    files = json.loads((path / "manifest.json").read_text())["content"]["files"]
    tensors = sum(digest["nbytes"] for name, digest in files.items() if name in ("model.safetensors", "optimizer.safetensors"))
    assert save_bytes(best) == pytest.approx(tensors, rel=0.01)
