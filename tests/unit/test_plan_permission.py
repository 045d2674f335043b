"""Techniques that change what is trained: tried where the user allows them, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gpuwise
from gpuwise.api.devices import device_of
from gpuwise.api.sources import PresetSource, source_of
from gpuwise.cost.forecast import Forecast
from gpuwise.errors import InputError
from gpuwise.hardware import load_catalog
from gpuwise.plan.pricing.step import StepPricer, has_headroom
from gpuwise.plan.space import permission
from gpuwise.plan.space.constraints import Constraints, NoStrategy
from gpuwise.plan.space.permission import PERMISSIONS, parse_allowed, permitted, permitted_batches, used
from gpuwise.plan.space.strategies import StrategySearch, sample_s
from gpuwise.strategy import Strategy
from gpuwise.trace.presets.table import PRESETS

CARD = device_of("rtx-4090:1", load_catalog()).cluster
PRESET = PresetSource(PRESETS["gpt2-xl"], {})
PRESET.search_recorded()
TRACES = PRESET.traces()


def best(constraints: Constraints, *allowed: str) -> Forecast | NoStrategy:
    search = StrategySearch(StepPricer(TRACES))
    return search.best(CARD, replace(constraints, allow=frozenset(allowed)))


def test_a_smaller_state_is_tried_only_where_it_is_allowed() -> None:
    # 1.56 billion parameters take 16 bytes each with AdamW, more than the card has; 10 with its state in 8 bits.
    for allowed in ((), ("batch",)):
        without = best(Constraints(8), *allowed)
        assert isinstance(without, Forecast)
        assert (without.strategy.offload, without.strategy.optimizer) == ("optimizer", None)
    best_strategy = best(Constraints(8), "8bit-optimizer")
    assert isinstance(best_strategy, Forecast)
    assert has_headroom(best_strategy.memory)
    assert best_strategy.strategy.optimizer == "adamw-8bit"
    assert list(used(best_strategy.strategy, requested=Strategy(), precision=None, global_batch=8)) == ["8bit-optimizer"]


@pytest.mark.slow
def test_more_permissions_never_give_a_slower_step() -> None:
    small = StrategySearch(StepPricer(source_of("gpt2").traces()))
    slowest = None
    for names in ((), ("bf16",), ("bf16", "batch"), ("bf16", "batch", "8bit-optimizer")):
        best_strategy = small.best(CARD, Constraints(16, allow=frozenset(names)))
        assert isinstance(best_strategy, Forecast)
        assert set(used(best_strategy.strategy, requested=Strategy(), precision=None, global_batch=16)) <= set(names)
        assert slowest is None or sample_s(best_strategy) <= permission.WORTH * slowest
        slowest = sample_s(best_strategy)


def test_without_permission_nothing_else_is_trained() -> None:
    constraints = Constraints(16)
    assert list(permitted(constraints, optimizer="adamw")) == []
    assert list(permitted_batches(constraints, devices=4)) == []


def test_each_permission_changes_what_it_names() -> None:
    for name in PERMISSIONS:
        constraints = Constraints(64, allow=frozenset([name]))
        others = [*permitted(constraints, optimizer="adamw"), *permitted_batches(constraints, devices=4)]
        assert others
        for other in others:
            strategy = other.techniques.but(
                precision=other.precision or "amp-bf16", micro_batch=1, accumulation=other.global_batch
            )
            assert list(used(strategy, requested=Strategy(), precision=None, global_batch=64)) == [name]


def test_what_the_user_names_stays() -> None:
    allow = frozenset(PERMISSIONS)
    pinned = Constraints(64, "amp-bf16", techniques=Strategy(optimizer="sgd", adapter="lora"), allow=allow)
    assert {other.techniques.optimizer for other in permitted(pinned, optimizer="sgd")} == {"sgd"}
    assert {other.techniques.adapter for other in permitted(pinned, optimizer="sgd")} == {"lora"}
    assert not any(other.techniques.optimizer for other in permitted(Constraints(64, allow=allow), optimizer=None))


def test_other_batches_stay_within_a_factor_of_four_and_divide() -> None:
    for devices, pinned in ((1, None), (3, None), (8, 5), (64, None)):
        constraints = Constraints(192, micro_batch=pinned, allow=frozenset(["batch"]))
        batches = [other.global_batch for other in permitted_batches(constraints, devices=devices)]
        assert batches
        assert len(set(batches)) == len(batches)
        assert all(batch % (devices * (pinned or 1)) == 0 and 48 <= batch <= 768 and batch != 192 for batch in batches)


def test_a_plan_names_what_it_changes() -> None:
    result = gpuwise.plan("gpt2-xl", tokens="100M", on="rtx-4090:1", allow=["8bit-optimizer", "lora"])
    assert result.best.strategy.optimizer == "adamw-8bit"
    notes = [note for note in result.best.reason_notes if note.kind == "changes-training"]
    assert [note.figures["permission"] for note in notes] == ["8bit-optimizer"]
    # The preset has no recording with adapters, which is told, not passed over.
    assert [note.figures["techniques"] for note in result.assumption_notes if note.kind == "allowed-but-not-tried"] == ["lora"]
    plain = gpuwise.plan("gpt2-xl", tokens="100M", on="rtx-4090:2")
    assert not any(note.kind == "changes-training" for plan in plain.plans for note in plan.reason_notes)


def test_clusters_of_machines_take_what_is_allowed() -> None:
    plans = [
        gpuwise.plan("llama3-8b", tokens="1B", on="h100-sxm:8x2", spot=False, limit=1, allow=allow).best
        for allow in (None, "bf16,lora")
    ]
    assert [plan.strategy.precision for plan in plans] == ["amp-bf16", "bf16"]
    assert plans[1].hours < plans[0].hours
    assert [note.figures["permission"] for note in plans[1].reason_notes if note.kind == "changes-training"] == ["bf16"]


def test_another_batch_is_named_and_may_divide_where_the_users_does_not() -> None:
    """A batch of 30 is one of two or of one copy of the model, each divided over several devices; of four it is not."""
    own = gpuwise.plan("gpt2", tokens="1B", on="rtx-4090:4", global_batch=30).best
    assert own.strategy.global_batch == 30
    assert own.strategy.mesh.data_parallel in (1, 2)
    best = gpuwise.plan("gpt2", tokens="1B", on="rtx-4090:4", global_batch=30, allow="batch").best
    assert best.strategy.global_batch % 4 == 0
    assert [note.figures["permission"] for note in best.reason_notes if note.kind == "changes-training"] == ["batch"]


def test_names_are_checked() -> None:
    assert parse_allowed(None) == frozenset()
    assert parse_allowed("8bit-optimizer, lora") == parse_allowed(["lora", "8bit-optimizer"])
    with pytest.raises(InputError, match="8bit-optimiser") as error:
        parse_allowed("8bit-optimiser")
    assert "8bit-optimizer" in error.value.ways_out[0]
    with pytest.raises(InputError, match="knows no ''"):
        parse_allowed("")
    with pytest.raises(InputError, match="--precision"):
        parse_allowed("fp8", named={"precision"})
    assert parse_allowed("batch", named={"global_batch"}) == {permission.BATCH}


@pytest.mark.parametrize(("name", "optimizer"), [("4bit-optimizer", "adamw-4bit"), ("adafactor", "adafactor")])
def test_other_optimizers_with_less_state_are_taken_where_they_are_allowed(name: str, optimizer: str) -> None:
    best_strategy = best(Constraints(8), name)
    assert isinstance(best_strategy, Forecast)
    assert (best_strategy.strategy.optimizer, best_strategy.strategy.offload) == (optimizer, "none")
    assert has_headroom(best_strategy.memory)
    assert list(used(best_strategy.strategy, requested=Strategy(), precision=None, global_batch=8)) == [name]
    whole = Constraints(64, allow=frozenset([name]))
    assert list(permitted(whole, optimizer="sgd")) == []  # that has no state


def test_on_several_machines_an_optimizer_that_shards_do_not_run_is_left_out() -> None:
    result = gpuwise.plan("llama3-8b", tokens="1B", on="h100-sxm:8x2", allow="adafactor")
    assert result.best.strategy.optimizer is None
    assert gpuwise.plan("llama3-8b", tokens="1B", on="h100-sxm:8x2", allow="4bit-optimizer").best.strategy.mesh.dp_shard > 1
