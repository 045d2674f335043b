"""Which microbenchmarks there are: quick ones are some of all, and all of them end in time."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from gpuwise.measure.stages import PROBES, Stage, stages

QUICK = list(stages(quick=True, networks=29, quick_networks=14, half="amp-bf16", writing=4, small=3))
FULL = list(stages(quick=False, networks=29, quick_networks=14, half="amp-bf16", writing=4, small=3))


def what(stage: Stage) -> tuple[str, int, str, str]:
    return stage.name, stage.network, stage.precision, stage.mode


def test_quick_is_a_part_of_all():
    assert set(map(what, QUICK)) < set(map(what, FULL))
    budgets = {stage.name: stage.budget_s for stage in FULL}
    assert all(stage.budget_s <= budgets[stage.name] for stage in QUICK)
    assert all(stage.steps <= 3 for stage in QUICK)


def test_probes_leave_time_for_the_networks():
    """A minute and five minutes in all; imports, networks and the fit take the rest."""
    assert 0 < sum(stage.budget_s for stage in QUICK) < 25
    assert 0 < sum(stage.budget_s for stage in FULL) < 200


@pytest.mark.parametrize("found", [QUICK, FULL])
def test_nothing_twice_and_ceilings_first(found: list[Stage]):
    assert len(set(map(what, found))) == len(found)
    names = [stage.name for stage in found]
    assert names.index("network") > max(names.index("memory"), names.index("peaks"))
    assert "" not in {stage.what for stage in found}


@pytest.mark.parametrize("quick", [True, False])
def test_processes_of_a_cpu_exchange_and_copy_nothing(quick: bool):
    def names(device: str) -> set[str]:
        return {stage.name for stage in stages(quick=quick, networks=2, quick_networks=1, half=None, device=device)}

    assert names("cuda") - names("cpu") == {"copies"}
    assert "collectives" in names("cpu")


def test_networks_in_each_precision_and_mode():
    by = {
        (precision, mode): [s.network for s in FULL if (s.name, s.precision, s.mode) == ("network", precision, mode)]
        for precision in ("fp32", "amp-bf16")
        for mode in ("train", "infer")
    }
    assert by["fp32", "train"] == by["amp-bf16", "train"] == list(range(29))
    assert len(by["fp32", "infer"]) == 10
    assert not by["amp-bf16", "infer"]
    without = list(stages(quick=False, networks=29, quick_networks=14, half=None, writing=4, small=3))
    assert [s for s in FULL if s.precision == "fp32"] == without
    assert [s.network for s in QUICK if s.name == "network" and s.precision == "fp32"] == list(range(14))
    assert [s.network for s in QUICK if s.precision == "amp-bf16"] == list(range(1, 14, 2))


def test_a_cpu_writes_tokens_in_fp32_and_a_gpu_does_not():
    assert [stage.network for stage in FULL if stage.name == "writing"] == [0, 1, 2, 3]
    assert {(stage.precision, stage.mode) for stage in FULL if stage.name == "writing"} == {("fp32", "infer")}
    gpu = stages(quick=False, networks=2, quick_networks=1, half=None, writing=4, device="cuda")
    assert "writing" not in {stage.name for stage in gpu}


@pytest.mark.parametrize("observed", [QUICK, FULL])
def test_a_cpu_runs_small_networks_in_both_sweeps_and_a_gpu_none(observed: list[Stage]):
    assert [(s.network, s.precision, s.mode) for s in observed if s.name == "small"] == [(n, "fp32", "infer") for n in range(3)]
    gpu = stages(quick=False, networks=2, quick_networks=1, half=None, small=3, device="cuda")
    assert "small" not in {stage.name for stage in gpu}


def test_stages_travel_as_json():
    assert [Stage(**json.loads(json.dumps(asdict(stage)))) for stage in FULL] == FULL


def test_every_probe_is_one_that_the_worker_has():
    pytest.importorskip("torch")
    from gpuwise.measure.worker import PROBES as KNOWN

    assert {name for name, *_ in PROBES} | {"again"} == set(KNOWN)
