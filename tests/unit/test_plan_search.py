"""plan() on a synthetic job and a handful of offers: what it chooses, rejects, says and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from test_plan_synthetic import offer, synthetic_family, synthetic_source, synthetic_trace

import gpuwise
from gpuwise.cost.forecast import Forecast
from gpuwise.errors import DoesNotFitError, InputError, NoPlanError, UnsupportedError
from gpuwise.hardware import Machine, load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan import NothingInside, Request
from gpuwise.plan.compose.blocks import JobBlocks, VariantRows
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.plan.pricing import step
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import Constraints
from gpuwise.plan.space.strategies import StrategySearch
from gpuwise.strategy import Strategy
from gpuwise.trace import CATEGORIES, Axis, build_family

CATALOG = load_catalog()
SMALL = {"width": 256, "layers": 2}
BIG = {"width": 8192, "layers": 24}  # 1.6 G parameters: 26 GB of state


def planned(request: Request, *offers, source=None, **shape):
    return plan(StepTraces(source or synthetic_source(**(shape or SMALL))), request, offers, CATALOG)


def test_plans_are_ranked_by_cost_and_each_strategy_meets_the_global_batch():
    result = planned(
        Request(samples=10**9, global_batch=256, xla=True),
        offer(usd_per_hour=2.0),
        offer(usd_per_hour=1.0),
        offer("h100-80gb-sxm", 30.0, count=8),
    )
    assert [p.rank for p in result.plans] == [1, 2, 3]
    costs = [p.usd.value for p in result.plans]
    assert costs == sorted(costs)
    assert all(p.strategy.global_batch == 256 for p in result.plans)
    assert result.plans[0].offer.usd_per_hour == 1.0
    assert "cheapest of 3 offers" in result.best.reasons[0]
    fastest = min(result.plans, key=lambda p: p.hours)
    assert any(reason.startswith("fastest") for reason in fastest.reasons)


def test_the_catalogs_offers_are_all_accounted_for():
    result = plan(StepTraces(synthetic_source(**SMALL)), Request(samples=10**8), CATALOG.offers, CATALOG)
    assert result.considered == len(CATALOG.offers) + len(CATALOG.incomplete_offers)
    assert len(result.plans) + sum(r.count for r in result.rejected.values()) == result.considered
    assert len(result.plans) <= 12
    assert result.rejected["more than 16 devices"].examples
    assert result.rejected["chip cannot train"].count > 0


def test_the_result_as_json_holds_the_contract():
    result = planned(Request(samples=10**6, budget_usd=100.0, deadline_s=86400.0), offer())
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    first = data["plans"][0]
    keys = {"rank", "offer", "device", "count", "strategy", "forecast", "hours", "usd", "finish_probability", "reasons"}
    assert keys <= set(first)
    assert isinstance(first["usd"], float)
    assert isinstance(data["rejected"], dict)


def test_memory_decides_between_replicas_shards_and_recomputation():
    roomy = planned(Request(samples=10**6, global_batch=64), offer("h100-80gb-sxm", count=8), **SMALL).best
    assert roomy.strategy.mesh.dp_replicate == 8
    assert roomy.strategy.recompute == "none"
    wide = planned(Request(samples=10**4, global_batch=64), offer("rtx-4090", count=8), **BIG).best
    assert wide.strategy.mesh.dp_shard == 8
    assert any("sharded over 8 devices" in reason for reason in wide.reasons)
    with pytest.raises(DoesNotFitError, match=r"needs .* GiB a device"):
        planned(Request(samples=10**4), offer("rtx-4090"), **BIG)


def test_precision_follows_the_chip_and_pure_bf16_only_the_user():
    def precision(chip, **pins):
        return planned(Request(samples=10**6, **pins), offer(chip), width=2048).best

    assert precision("h100-80gb-sxm").strategy.precision == "amp-bf16"
    assert precision("t4").strategy.precision == "amp-fp16"
    assert precision("gtx-1080").strategy.precision == "fp32"
    pinned = precision("h100-80gb-sxm", precision="bf16")
    assert pinned.strategy.precision == "bf16"
    assert any("changes what is trained" in reason for reason in pinned.reasons)
    with pytest.raises(NoPlanError, match="precision unsupported"):
        precision("t4", precision="amp-bf16")


def test_a_variant_the_source_does_not_have_is_rejected_not_fatal():
    without = synthetic_source(without=("amp-bf16",), **SMALL)
    result = plan(StepTraces(without), Request(samples=10**6), [offer("h100-80gb-sxm")], CATALOG)
    assert result.best.strategy.precision == "tf32"
    nothing = synthetic_source(without=("amp-bf16", "fp32", "amp-fp16"), **SMALL)
    with pytest.raises(UnsupportedError):
        plan(StepTraces(nothing), Request(samples=10**6), [offer("h100-80gb-sxm")], CATALOG)


def test_memory_is_the_reason_even_where_a_technique_has_no_trace():
    source = synthetic_source(without=("full", "fp32"), **BIG)
    with pytest.raises(DoesNotFitError, match="does not fit the memory of the only offer of up to 16 devices"):
        plan(StepTraces(source), Request(samples=10**4), [offer("rtx-4090")], CATALOG)


def test_some_headroom_is_left_where_it_can_be():
    fitting = [planned(Request(samples=10**6, global_batch=n), offer(), width=2048) for n in (4096, 4608, 5120, 5632)]
    for result in fitting:
        memory = result.best.forecast.memory
        assert memory.device_bytes <= 0.95 * memory.capacity_bytes


def test_a_program_that_changes_with_its_batch_is_planned_at_the_batch_it_is_known_at():
    def source(strategy):
        trace = synthetic_trace(micro_batch=1, strategy=strategy, **SMALL)
        family = build_family({(1,): trace}, (Axis("micro_batch", 1, 1, 0, exact_every=0),), {"micro_batch": 1})
        return replace(family, axes=()) if family else None

    result = plan(StepTraces(source), Request(samples=10**6, global_batch=32), [offer()], CATALOG)
    assert result.best.strategy.micro_batch == 1
    assert result.best.strategy.accumulation == 32


def test_micro_batch_and_global_batch_that_cannot_meet_are_rejected():
    result = planned(Request(samples=10**6, global_batch=24, micro_batch=6), offer(), offer(count=4), offer(count=8))
    assert {p.count for p in result.plans} == {1, 4}
    assert all(p.strategy.micro_batch == 6 for p in result.plans)
    assert result.rejected["global batch does not divide over the devices"].count == 1


def test_a_default_global_batch_is_named_and_moves_to_fit_the_devices():
    result = planned(Request(samples=10**6), offer("a100-40gb-sxm", count=6))
    assert result.best.strategy.global_batch % 6 == 0
    assert any("--global-batch" in text for text in result.assumptions)
    assert any("divides over 6 devices" in text for text in result.best.assumptions)


def test_spot_is_planned_with_checkpoints():
    spot = offer(terms="spot", usd_per_hour=0.3)
    result = planned(Request(samples=10**10, spot=True), spot, offer(), width=2048)
    assert [p.offer.terms for p in result.plans] == ["spot"]
    assert result.best.checkpoint_interval_s > 0
    assert any("twice as many interruptions" in reason for reason in result.best.reasons)
    assert result.rejected["not spot"].count == 1
    without = planned(Request(samples=10**7, spot=False), spot, offer())
    assert [p.offer.terms for p in without.plans] == ["on-demand"]
    needs = "saves checkpoints and goes on from them"
    assert any(needs in reason for reason in result.best.reasons)
    assert not any(needs in reason for reason in without.best.reasons)


@pytest.mark.parametrize(
    ("chip", "words"),
    [("rtx-4090", "gpuwise train saves checkpoints"), ("gaudi2", "your training must save checkpoints and resume")],
)
def test_spot_devices_that_train_cannot_run_must_save_by_themselves(chip: str, words: str):
    result = planned(Request(samples=10**10, spot=True), offer(chip, terms="spot", count=8), width=2048)
    assert result.best.count == 8
    assert any(words in reason for reason in result.best.reasons)


def test_owned_machines_cost_electricity_and_one_of_them_may_do():
    result = planned(Request(samples=10**9, own=(("rtx-4090", 2),), usd_per_kwh=0.3, limit=None), width=2048)
    assert {p.count for p in result.plans} == {1, 2}
    one = next(p for p in result.plans if p.count == 1)
    chips_w = one.forecast.energy_j / one.forecast.step_time_s.value  # in this job; 100 W of the host, 90 % of the power supply
    assert one.usd.value == pytest.approx(one.hours * (chips_w + 100) / 0.9 / 1000 * 0.3)
    assert any("--electricity" in text for text in one.assumptions)
    assert any("one device is enough" in reason for reason in one.reasons)
    with pytest.raises(NoPlanError, match="cannot train"):
        planned(Request(samples=10**6, own=(("alveo-u250", 1),)))


def test_this_machines_cpu_ranks_on_its_merits():
    here = Machine(CATALOG.chip("xeon-8380"), 1, host_memory_bytes=64 * 2**30, name="this machine")
    result = planned(Request(samples=1000, here=here), offer("h100-80gb-sxm", 3.0), width=64, layers=1)
    assert result.best.offer.provider == "here"
    assert any("a CPU is enough" in reason for reason in result.best.reasons)
    alone = planned(Request(samples=1000, here=here, on=("here",)), offer(), width=64, layers=1)
    assert [p.offer.provider for p in alone.plans] == ["here"]


def test_a_free_tier_costs_nothing_and_takes_its_weeks():
    free = offer("t4", 0.0, terms="free", max_session_hours=12, hours_per_week=30)
    result = planned(Request(samples=2 * 10**9, limit=None), free, offer("t4"), width=2048)
    tier = next(p for p in result.plans if p.offer.terms == "free")
    assert tier.usd.value == 0.0
    assert tier.hours > tier.machine_hours > 60
    assert any("saves checkpoints and goes on from them" in reason for reason in tier.reasons)
    one_session = planned(Request(samples=10**5), free).best
    assert not any("checkpoints" in reason for reason in one_session.reasons)
    hurried = planned(Request(samples=2 * 10**9, deadline_s=tier.hours * 1800), free, offer("h100-80gb-sxm"), width=2048)
    assert [p.offer.terms for p in hurried.plans] == ["on-demand"]
    assert hurried.rejected["past the deadline"].count == 1


def test_slices_and_cpu_offers_are_candidates():
    slice_ = offer("l4", 0.4, count=0.25)
    cpu = offer("xeon-8480plus", 2.0, count=0, host_memory_bytes=384 * 2**30)
    result = planned(Request(samples=10**6, limit=None), slice_, cpu)
    assert {p.count for p in result.plans} == {0.25, 1.0}
    quarter = next(p for p in result.plans if p.count == 0.25)
    whole = planned(Request(samples=10**6), offer("l4")).best
    assert quarter.forecast.memory.capacity_bytes == pytest.approx(whole.forecast.memory.capacity_bytes / 4, rel=0.01)
    assert quarter.forecast.step_time_s.value > whole.forecast.step_time_s.value


def test_on_names_chips_and_counts():
    offers = (offer("h100-80gb-sxm"), offer("h100-80gb-sxm", count=8), offer("a100-80gb-sxm"))
    both = planned(Request(samples=10**6, on=("h100-sxm",), limit=None), *offers)
    assert {p.count for p in both.plans} == {1, 8}
    eight = planned(Request(samples=10**6, on=("h100-80gb-sxm:8",), limit=None), *offers)
    assert {p.count for p in eight.plans} == {8}
    with pytest.raises(NoPlanError, match="None is in the catalog"):
        planned(Request(samples=10**6, on=("v100-sxm2-16gb",)), *offers)


def test_on_cpu_is_any_cpu_and_this_machine():
    offers = (offer("xeon-8480plus", count=0), offer("graviton4", count=0), offer("rtx-4090"))
    cpu = Machine(CATALOG.chip("xeon-8380"), 1, host_memory_bytes=64 * 2**30, name="this machine")
    result = planned(Request(samples=10**5, on=("cpu",), here=cpu, limit=None), *offers)
    assert {p.device for p in result.plans} == {"xeon-8480plus", "graviton4", "xeon-8380"}
    gpu = Machine(CATALOG.chip("rtx-4090"), 1, name="this machine")
    result = planned(Request(samples=10**5, on=("cpu",), here=gpu, limit=None), *offers)
    assert {p.device for p in result.plans} == {"xeon-8480plus", "graviton4"}


def test_an_owned_cpu_is_the_nearest_of_the_catalog_and_says_so():
    best = planned(Request(samples=10**5, own=(("cpu", 1),))).best
    assert CATALOG.chip(best.device).kind == "cpu"
    assert any(text.startswith("`cpu` is ") for text in best.assumptions)


def test_nothing_inside_shows_the_cheapest_and_the_fastest():
    offers = (offer("rtx-4090", 0.4), offer("h100-80gb-sxm", 40.0, count=8))
    with pytest.raises(NothingInside, match=r"The cheapest is .* the fastest is") as caught:
        planned(Request(samples=10**10, budget_usd=0.01, deadline_s=60.0), *offers, width=2048)
    assert caught.value.cheapest.device == "rtx-4090"
    assert caught.value.fastest.device == "h100-80gb-sxm"
    assert caught.value.code == "no-plan"
    assert {"cheapest", "fastest", "error"} <= set(caught.value.to_dict())
    assert "raise the budget" in str(caught.value)
    with pytest.raises(NothingInside, match="--budget"):
        planned(Request(samples=10**10, budget_usd=0.01), *offers, width=2048)


def test_no_deadline_is_advised_that_would_be_refused():
    with pytest.raises(NothingInside, match="inside a year") as caught:
        planned(Request(samples=10**17), offer("rtx-4090", 0.4), width=2048)
    assert "in a century" in str(caught.value)


def test_a_short_job_here_is_not_called_slower_than_what_takes_longer():
    here = Machine(CATALOG.chip("xeon-8380"), 1, host_memory_bytes=64 * 2**30, name="this machine")
    result = planned(Request(samples=1000, here=here), offer("h100-80gb-sxm", 3.0), width=64, layers=1)
    assert result.best.offer.provider == "here"
    assert not any("slower than" in reason for reason in result.best.reasons)
    assert any("setting the machine up takes longer" in reason for reason in result.plans[1].reasons)


def test_a_stale_price_is_left_out_and_counted():
    result = planned(Request(samples=10**6), offer(stale=True), offer(instance="fresh", usd_per_hour=100.0))
    assert [plan.offer.instance for plan in result.plans] == ["fresh"]
    assert result.rejected["price over a year old; --stale ranks them too"].count == 1


def test_nothing_but_stale_prices_is_said_so():
    with pytest.raises(NoPlanError, match="price over a year old") as caught:
        planned(Request(samples=10**6), offer(stale=True))
    assert "--stale" in caught.value.ways_out[0]


def test_a_stale_price_asked_for_is_said_so():
    result = planned(Request(samples=10**6, stale=True), offer(stale=True))
    assert any(reason.startswith("stale price") for reason in result.best.reasons)


def test_how_much_to_train_must_be_said_or_is_assumed_aloud():
    with pytest.raises(InputError, match="how much to train") as refused:
        planned(Request(), offer())
    assert any("samples=... in the Job" in way for way in refused.value.ways_out)
    assert any("1 epoch" in text for text in planned(Request(samples_per_epoch=5000), offer()).assumptions)
    assert planned(Request(epochs=3, samples_per_epoch=5000), offer()).best.samples == 15000
    with pytest.raises(InputError, match="not tokens"):
        planned(Request(tokens=10**6), offer())
    tokens = planned(Request(tokens=64_000), offer(), source=synthetic_source(unit="token", **SMALL))
    assert tokens.best.samples == 1000
    with pytest.raises(InputError, match="more than one"):
        Request(samples=1, tokens=1)
    assert planned(Request(samples=1000, epochs=2.5), offer()).best.samples == 2500


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": 0},
        {"samples": -5},
        {"deadline_s": float("inf")},
        {"budget_usd": -1.0},
        {"precision": "fp7"},
        {"recompute": "some"},
        {"limit": 0},
    ],
)
def test_requests_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError):
        Request(**wrong)


def test_the_table_shows_variety_within_its_limit():
    many = [offer(usd_per_hour=1 + i / 100) for i in range(20)]
    result = planned(Request(samples=10**9, limit=5), *many, offer("h100-80gb-sxm", 80.0, count=8), width=2048)
    assert len(result.plans) <= 5
    assert sum(p.device == "rtx-4090" for p in result.plans) == 2
    assert result.plans[-1].device == "h100-80gb-sxm"


def test_planning_needs_no_pytorch():
    code = "import sys, gpuwise.plan.search, gpuwise.plan.fit.fit, gpuwise.plan.compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_shown_has_its_memory_replayed_once_for_a_strategy_and_chip(monkeypatch):
    replays = []
    counted = step.memory_forecast

    def watched(trace, cluster, **arguments):
        replays.append((trace.header.strategy, cluster.chip.id)) if arguments.get("replay", True) else None
        return counted(trace, cluster, **arguments)

    monkeypatch.setattr(step, "memory_forecast", watched)
    offers = [offer(usd_per_hour=1 + i / 10) for i in range(6)]
    result = planned(Request(samples=10**9), *offers, offer("h100-80gb-sxm", 3.0), width=2048)
    assert not any(p.forecast.memory.counted_only for p in result.plans)
    shown = {(p.strategy, p.device) for p in result.plans}
    assert sorted(replays, key=str) == sorted(shown, key=str)


def test_a_finalist_that_the_allocator_cannot_serve_gives_its_place_to_the_next(monkeypatch):
    replayed = StepPricer.replayed

    def none_on_the_4090(self, strategy, cluster):
        memory = replayed(self, strategy, cluster)
        return replace(memory, device_bytes=2 * memory.capacity_bytes, fits=False) if cluster.chip.id == "rtx-4090" else memory

    offers = [offer(usd_per_hour=0.1), offer("h100-80gb-sxm", 3.0)]
    assert planned(Request(samples=10**9), *offers, width=2048).best.device == "rtx-4090"
    monkeypatch.setattr(StepPricer, "replayed", none_on_the_4090)
    result = planned(Request(samples=10**9), *offers, width=2048)
    assert [p.device for p in result.plans] == ["h100-80gb-sxm"]
    assert result.rejected["does not fit in memory"].count == 1
    assert "the only offer" in result.best.reasons[0]
    with pytest.raises(DoesNotFitError, match="lost to fragments"):
        planned(Request(samples=10**9), offers[0], width=2048)


def test_a_finalist_takes_a_smaller_micro_batch_where_the_allocator_leaves_little(monkeypatch):
    counted = planned(Request(samples=10**6, global_batch=4096, limit=None), offer(), width=2048).best
    replayed = StepPricer.replayed

    def a_third_more(self, strategy, cluster):
        memory = replayed(self, strategy, cluster)
        needed = memory.device_bytes * 4 // 3
        return replace(memory, device_bytes=needed, fits=needed <= memory.capacity_bytes)

    monkeypatch.setattr(StepPricer, "replayed", a_third_more)
    best = planned(Request(samples=10**6, global_batch=4096, limit=None), offer(), width=2048).best
    assert best.strategy != counted.strategy
    assert best.forecast.memory.device_bytes <= 0.95 * best.forecast.memory.capacity_bytes


def test_selective_recomputation_is_tried_where_it_is_recorded():
    def layers_kept(strategy):
        """Half of the activations are kept under selective recomputation, which takes a little of the time."""
        family = synthetic_family(strategy, **BIG)
        if strategy.recompute == "selective":
            size = family.storages.size_bytes.copy()
            size[family.storages.category == CATEGORIES.index("activation")] //= 4
            family = replace(family, storages=replace(family.storages, size_bytes=size))
        return family

    assert legal.recomputes_for(None) == ["none", "selective", "full"]
    assert legal.recomputes_for("full") == ["full"]
    request = Request(samples=10**6, global_batch=1024)
    small = offer("a100-40gb-sxm")  # where memory is short
    assert plan(StepTraces(layers_kept), request, [small], CATALOG).best.strategy.recompute == "selective"
    without = synthetic_source(without=("selective",), **BIG)
    assert plan(StepTraces(without), request, [small], CATALOG).best.strategy.recompute != "selective"


@pytest.mark.parametrize(("memory_gib", "fits"), [(80, True), (16, False)])
def test_a_slower_precision_is_not_recorded_where_it_cannot_be_chosen(memory_gib: float, fits: bool):
    """Each is minutes of a large model of the user's own. TF32 keeps parameters and state as wide as mixed precision does."""
    recorded: set[str] = set()
    source = synthetic_source(**BIG)

    def noting(strategy: Strategy):
        recorded.add(strategy.precision)
        return source(strategy)

    cluster = Cluster(CATALOG.chip("h100-80gb-sxm"), memory_bytes=int(memory_gib * 2**30))
    best = StrategySearch(StepPricer(StepTraces(noting))).best(cluster, Constraints(8))
    assert isinstance(best, Forecast) == fits
    assert recorded == {"amp-bf16"}


def test_a_plan_says_which_meshes_could_not_be_forecast(monkeypatch: pytest.MonkeyPatch):
    composed = JobBlocks.rows

    def rows(blocks: JobBlocks, variant: BlockVariant, *, tp: int, sharded: bool) -> VariantRows:
        if tp == 4:
            raise UnsupportedError("four ranks are not composed.")
        return composed(blocks, variant, tp=tp, sharded=sharded)

    def notes() -> list[str]:
        result = gpuwise.plan("llama3-8b", samples=10**6, on="h100-sxm:8", precision="amp-bf16")
        return [note.text for note in result.assumption_notes if note.kind == "meshes-not-tried"]

    assert notes() == []
    monkeypatch.setattr(JobBlocks, "rows", rows)
    assert notes() == ["not every mesh was tried: four ranks are not composed"]
