"""Reports as text: what must be readable in them, and that nothing is computed or lost on the way."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from gpuwise.cost import Forecast, Interval, MemoryForecast
from gpuwise.cost.memory.peak import MemoryPeak
from gpuwise.hardware import Chip, Offer, Source
from gpuwise.notes import Note
from gpuwise.notes.plan import price_caveat
from gpuwise.notes.rejections import over_budget
from gpuwise.plan import CompareRow, Comparison, FitResult, FitRow, Plan, PlanResult, Rejection
from gpuwise.report import parts
from gpuwise.report.catalog import chips_report, offers_report
from gpuwise.report.compare import compare_report
from gpuwise.report.fit import fit_report
from gpuwise.report.forecast import forecast_report
from gpuwise.report.json import to_json
from gpuwise.report.plan import plan_report
from gpuwise.strategy import Mesh, Strategy

GIB = 2**30
KNOWN = Source("a datasheet", "2026-01-01")
HEARSAY = Source("memory", "2026-01-01", verified=False)

MEMORY = MemoryForecast(
    peak_allocated_bytes=12 * GIB,
    peak_reserved_bytes=13 * GIB,
    device_bytes=14 * GIB,
    capacity_bytes=24 * GIB,
    by_category={"parameter": 4 * GIB, "activation": 8 * GIB, "gradient": 0},
    fits=True,
)


def some(text: str) -> Note:
    return Note("some", text)


FORECAST = Forecast(
    job="net",
    device="rtx-4090",
    count=1,
    strategy=Strategy("amp-bf16", micro_batch=8, accumulation=4),
    step_time_s=Interval(0.1, 0.05, 0.2),
    throughput=320.0,
    throughput_unit="images/s",
    memory=MEMORY,
    flops_per_step=5 * 10**12,
    mfu=0.42,
    bound={"compute": 0.7, "memory": 0.3, "launch": 0.0},
    energy_j=30.0,
    provenance={"step_time_s": "calibrated on this chip", "memory": "trace", "energy_j": "datasheet only"},
    usd_per_hour=1.8,
    assumption_notes=(some("assumed 224 pixels; --image-size changes it"),),
    warning_notes=(some("priced as eager"),),
    top_modules=(("layers.*.conv", 0.6), ("head", 0.4)),
    why="arithmetic bounds 70 % of the step: another chip would help",
    rests_on={"calibrated on this chip": 0.8, "datasheet only": 0.2},
)
OFFER = Offer("lambda", "gpu_1x", "us-east", "rtx-4090", 1, "on-demand", 1.8, source=KNOWN)


def text(report: object, width: int = 160) -> str:
    out = StringIO()
    Console(file=out, width=width).print(report)
    return out.getvalue()


def line(shown: str, *words: str) -> str:
    """The one line that has all the words."""
    results = [line for line in shown.splitlines() if all(word in line for word in words)]
    assert len(results) == 1, (words, shown)
    return results[0]


def test_forecast_shows_every_figure_with_its_unit_and_origin():
    shown = text(forecast_report(FORECAST))
    assert "net on rtx-4090: amp-bf16, micro-batch 8 x 4, 32 samples a step" in shown
    assert "100 ms  (50 ms to 200 ms)" in line(shown, "step time", "calibrated on this chip")
    assert "320 images/s" in shown
    assert "14 GiB of 24 GiB  fits" in line(shown, "memory ", "trace")
    assert "5 TFLOP a step" in shown
    assert "42 %" in line(shown, "mfu")
    assert "30 J a step" in shown
    assert "$1.80/h, $1.56 a million images" in shown
    assert "12 GiB allocated, 13 GiB reserved" in shown
    assert "67 %" in line(shown, "activation", "8 GiB")
    assert "gradient" not in shown
    assert "70 %" in line(shown, "compute")
    assert "launch" not in shown
    assert "arithmetic bounds 70 % of the step: another chip would help" in shown
    assert "20 %" in line(shown, "datasheet only", "█")
    assert "layers.*.conv" in shown
    assert "assumed 224 pixels; --image-size changes it" in shown
    assert "priced as eager" in shown


def test_forecast_says_when_it_does_not_fit_and_what_is_unknown():
    memory = replace(MEMORY, capacity_bytes=10 * GIB, fits=False)
    small = text(forecast_report(replace(FORECAST, memory=memory, mfu=None, energy_j=None, usd_per_hour=None)))
    assert "DOES NOT FIT" in small
    for label in ("mfu", "energy", "price"):
        assert line(small, f"  {label} ").split()[1] == parts.UNKNOWN
    unknown = text(forecast_report(replace(FORECAST, memory=replace(MEMORY, capacity_bytes=None, fits=None))))
    assert "fits" not in unknown.lower().replace("does not fit", "")


@pytest.mark.parametrize("width", [60, 80, 160])
def test_reports_keep_to_the_width_and_lose_no_words(width: int):
    shown = text(forecast_report(FORECAST), width)
    assert all(len(row) <= width for row in shown.splitlines())
    assert "…" not in shown
    assert "\x1b" not in shown


LONG = "standard-with-a-very-long-name-8x-" + "x" * 20


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_tables_fold_where_they_are_too_wide_and_lose_nothing(width: int):
    offers = [replace(OFFER, instance=LONG), replace(OFFER, terms="reserved-1y", usd_per_hour=12_345.67)]
    plans = tuple(plan(rank, offer=offer) for rank, offer in enumerate(offers, 1))
    result = PlanResult(
        plans, {"over budget": Rejection(3, ("8 x h100 " * 9,), reason=over_budget())}, (), considered=16, priced=12
    )
    compared = Comparison("net", "t4", (CompareRow("rtx-4090", FORECAST, 3.25, some("why")),))
    for report in (plan_report(result), offers_report(offers), compare_report(compared)):
        assert all(len(row) <= width for row in text(report, width).splitlines())
    listed = text(offers_report(offers), width)
    assert "$12,346" in listed
    assert "reserved-1y" in listed
    assert listed.count("x") >= LONG.count("x")
    assert "…" not in listed
    assert "50 ms to 200 ms" in text(compare_report(compared), width)
    assert text(plan_report(result), width).count("($7.00 to $12.00)") == 2
    assert text(plan_report(result), width).count("97 %") == 2


def test_short_values_are_not_wrapped_because_others_are_long():
    shown = text(parts.grid([("torch", "2.13.0+cpu"), ("x", "word " * 40)]), 80)
    assert "2.13.0+cpu" in shown
    assert "…" not in shown


def test_a_provider_that_its_offer_names_is_not_named_twice():
    assert parts.offer_words(replace(OFFER, provider="own", instance="own rtx-4090:2")) == "own rtx-4090:2"
    assert parts.offer_words(replace(OFFER, provider="kaggle", instance="Kaggle T4x2")) == "Kaggle T4x2"
    assert parts.offer_words(OFFER) == f"{OFFER.provider} {OFFER.instance}"


def test_what_to_mind_of_a_plan_is_gathered_by_what_it_is():
    tpu = "needs PyTorch/XLA"
    old = plan(3, reason_notes=(some("slower"), price_caveat(caveat="old")), train_obstacle=tpu)
    shown = text(plan_report(PlanResult((plan(1), plan(2, train_obstacle=tpu), old), {}, (), 3, 3)))
    assert "2, 3: needs PyTorch/XLA" in shown
    assert "3: price caveat: old" in shown


def test_text_in_brackets_is_not_taken_for_markup():
    shown = text(forecast_report(replace(FORECAST, job="net[red]", assumption_notes=(some("x [bold]y[/bold]"),))))
    assert "net[red]" in shown
    assert "x [bold]y[/bold]" in shown


def plan(rank: int, **changes: object) -> Plan:
    made = Plan(
        rank=rank,
        job="net",
        job_fingerprint="f" * 16,
        job_argument="net.py:job",
        strategy=FORECAST.strategy,
        offer=OFFER,
        device="rtx-4090",
        count=1,
        forecast=FORECAST,
        hours=5.0,
        machine_hours=5.0,
        usd=Interval(9.0, 7.0, 12.0),
        finish_probability=0.97,
        chance=0.97,
        steps=1000,
        samples=32_000,
        price_as_of="2026-01-01",
        gpuwise_version="0",
        reason_notes=(some(f"reason of {rank}"), some("a second one")),
        assumption_notes=(some(f"assumption of {rank}"),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_plan_ticks_the_best_and_shows_why_what_was_rejected_and_what_was_assumed():
    stale = replace(OFFER, provider="vast", terms="spot", stale=True)
    rejected = {
        "over budget": Rejection(3, ("8 x h100",), reason=over_budget()),
        "too old": Rejection(11, ("1 x k80", "2 x k80"), reason=some("too old")),
    }
    result = PlanResult((plan(1), plan(2, offer=stale)), rejected, (some("assumed a batch"),), considered=16, priced=1234)
    shown = text(plan_report(result))
    assert "net: 32k samples, 1,000 steps of 32. 16 offers considered, 1,234 strategies priced." in shown
    best = line(shown, "✓", "lambda gpu_1x")
    for figure in ("1 x rtx-4090", "on-demand", "amp-bf16", "5 h", "$9.00", "($7.00 to $12.00)", "97 %"):
        assert figure in best
    assert "spot stale" in line(shown, "vast gpu_1x")
    assert "reason of 1" in shown
    assert "a second one" in shown
    assert "2: reason of 2" in shown
    assert shown.index("too old") < shown.index("over budget")
    assert "1 x k80" in shown
    assert "2 x k80" not in shown  # the nearest alone
    assert "assumed a batch" in shown
    assert "assumption of 1" in shown


PEAK = MemoryPeak(
    0, 9 * GIB, "loss", "head", "log_softmax", {"activation": 9 * GIB}, sentence="it is the loss", advice="lower it"
)


def test_fit_shows_the_largest_micro_batch_and_each_technique():
    strategy = Strategy("amp-bf16", micro_batch=8)
    rows = (
        FitRow("as asked", 1, strategy, 12, MEMORY, 0, 1.0),
        FitRow("full recompute", 1, strategy.but(recompute="full"), 40, MEMORY, 3 * GIB, 1.33, "computed again"),
        FitRow("precision bf16", 1, strategy.but(precision="bf16"), unavailable="there is no trace"),
    )
    fits = FitResult("net", "rtx-4090", 1, 24 * GIB, 8, rows, FORECAST, PEAK, 65_536, assumption_notes=(some("assumed it"),))
    shown = text(fit_report(fits))
    assert "net fits rtx-4090 (24 GiB) up to micro-batch 12" in shown
    full = line(shown, "full recompute")
    for figure in ("40", "14 GiB", "3 GiB", "1.33x", "computed again"):
        assert figure in full
    assert "there is no trace" in line(shown, "precision bf16")
    assert shown.index("it is the loss") < shown.index("lower it") < shown.index("full recompute")
    none = (replace(rows[0], largest_micro_batch=None), *rows[1:])
    tight = replace(fits, rows=none, forecast=None, nearest_chips=("a6000",), nearest_techniques=("full recompute",))
    shown = text(fit_report(tight))
    assert "net DOES NOT FIT rtx-4090 (24 GiB): not even one sample" in shown
    assert "it would fit as asked on" in shown
    assert "a6000" in shown


def test_compare_shows_speed_ups_reasons_and_what_has_no_forecast():
    rows = (
        CompareRow("t4", replace(FORECAST, device="t4"), 1.0, some("the slowest here")),
        CompareRow("rtx-4090", FORECAST, 3.25, some("5x the peak")),
        CompareRow("groq", None, None, some("cannot train")),
    )
    shown = text(compare_report(Comparison("net", "t4", rows, (some("assumed it"),))))
    assert "net on 3 devices; speed-ups over t4" in shown
    assert "3.25x" in line(shown, "rtx-4090", "images/s")
    assert "rtx-4090: 5x the peak" in shown
    assert "no forecast" in line(shown, "groq", "no forecast")
    assert "groq: cannot train" in shown


def test_chips_mark_unverified_figures_and_say_what_the_mark_means():
    chip = Chip(
        "x1",
        "X",
        "X One",
        "tpu",
        memory_bytes=16 * GIB,
        tdp_w=200.0,
        peak_flops_per_s={"bf16": 2e14},
        source=KNOWN,
        sources={"tdp_w": HEARSAY},
    )
    shown = text(chips_report([chip]))
    row = line(shown, "x1").split()
    assert row[-1] == "200?"
    assert "200" in row
    assert "16 GiB" in line(shown, "x1")
    assert "? unverified" in shown
    assert "? unverified" not in text(chips_report([replace(chip, sources={})]))
    assert "no chip passes" in text(chips_report([]))


def test_offers_show_the_date_of_the_price_and_what_is_stale_or_limited():
    free = replace(OFFER, provider="kaggle", terms="free", usd_per_hour=0.0, hours_per_week=30, max_session_hours=12)
    old = replace(
        OFFER,
        provider="vast",
        count=8,
        usd_per_hour=16.0,
        stale=True,
        sources={"usd_per_hour": Source("a page", "2024-02", verified=False)},
    )
    shown = text(offers_report([free, OFFER, old]))
    assert line(shown, "kaggle").count("free") == 3
    assert "30 h a week, 12 h a session" in shown
    assert "2026-01-01" in line(shown, "lambda", "$1.80")
    row = line(shown, "vast")
    assert "rtx-4090 x 8" in row
    assert "$16.00?" in row
    assert "$2.00?" in row
    assert "2024-02 stale" in row
    assert "prices of 2024-02 to 2026-01-01" in shown
    assert "no offer passes" in text(offers_report([]))


def test_strategies_in_words():
    assert parts.strategy_words(Strategy()) == "fp32, micro-batch 1"
    long = Strategy("bf16", 4, 2, "full", Mesh(dp_shard=8), "adamw", mode="infer")
    assert parts.strategy_words(long) == "bf16, micro-batch 4 x 2, recompute full, dp_shard=8, adamw, inference"


def test_json_has_null_for_what_is_no_number():
    assert json.loads(to_json({"a": [math.inf, math.nan, -math.inf, 1.5], "b": {"c": (math.inf, None)}})) == {
        "a": [None, None, None, 1.5],
        "b": {"c": [None, None]},
    }
    assert json.loads(to_json(FORECAST.to_dict())) == json.loads(json.dumps(FORECAST.to_dict()))
