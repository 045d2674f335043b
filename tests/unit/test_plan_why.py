"""--why: neighbours against all plans, changes of the job against planning the changed job, and why plans fell."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from test_plan_synthetic import offer, synthetic_source
from test_report_text import text

from gpuwise.api.sources import source_of
from gpuwise.cli.main import main
from gpuwise.errors import InputError, UnknownNameError
from gpuwise.hardware import Catalog
from gpuwise.plan import Request
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan
from gpuwise.report.plan import plan_report
from gpuwise.strategy import Strategy

CATALOG = Catalog(user_files=())
OFFERS = [
    offer("t4", 0.4),
    offer("rtx-4090", 0.8),
    offer("rtx-4090", 2.0, count=2),
    offer("h100-80gb-sxm", 3.0),
    offer("h100-80gb-sxm", 40.0, count=8),
    offer("gaudi2", 0.01, count=8),
]
REQUEST = Request(samples=10**9, global_batch=256, limit=None, why=())


def planned(request: Request, offers=OFFERS, **shape):
    return plan(StepTraces(synthetic_source(**(shape or {"width": 2048}))), request, offers, CATALOG)


@pytest.fixture(scope="module")
def everything():
    return planned(Request(samples=10**9, global_batch=256, limit=None, why=("h100-sxm:8", "2", "gaudi2")))


def test_the_first_comes_first_and_names_are_ranks_or_devices(everything):
    assert [each.name for each in everything.why] == ["1", "h100-sxm:8", "2", "gaudi2"]
    assert everything.why[0].rank == 1
    assert everything.why[0].fell == ()
    assert everything.why[2].rank == 2
    assert "8 × h100-80gb-sxm" in everything.why[1].what
    assert [note.kind for note in everything.why[3].fell_notes] == ["not-for-train", "against-the-first"]


def test_the_shares_are_those_of_the_forecast(everything):
    for each in everything.why:
        (made,) = [made for made in everything.plans if made.rank == each.rank]
        assert each.shares == made.forecast.bound
        assert sum(each.shares.values()) == pytest.approx(1)


def test_neighbours_are_those_of_all_plans(everything):
    runs = [made for made in everything.plans if not made.train_obstacle]
    for each in everything.why[:3]:
        (here,) = [made for made in everything.plans if made.rank == each.rank]
        cheaper = [made for made in runs if made.usd.value < 0.99 * here.usd.value]
        faster = [made for made in runs if made.hours < 0.99 * here.hours]
        assert (each.next_cheaper is None) == (not cheaper)
        assert (each.next_faster is None) == (not faster)
        if cheaper:
            assert each.next_cheaper.hours == min(made.hours for made in cheaper)
            assert each.next_cheaper.more_usd < 0
        if faster:
            assert each.next_faster.usd == min(made.usd.value for made in faster)
            assert each.next_faster.more_hours < 0


def test_without_the_question_nothing_is_explained():
    assert planned(Request(samples=10**9, global_batch=256)).why == ()


def test_what_fell_says_why():
    request = Request(samples=10**9, global_batch=256, deadline_s=3 * 3600.0, why=("t4",))
    fell = planned(request).why[1]
    assert fell.rank is None
    assert fell.fell[0].startswith("past the deadline: ")
    short = Request(samples=10**4, global_batch=256, why=("t4", "k80-die"))
    out = planned(short, [offer("h200-141gb-sxm"), offer("t4"), offer("k80-die")], width=8192, layers=24)
    assert "does not fit in memory: needs" in out.why[1].fell[0]
    assert "too old for PyTorch" in out.why[2].fell[0]
    assert out.why[1].changes == ()


def test_names_without_a_plan():
    with pytest.raises(InputError, match=r"--why 99: the table has \d+ plans"):
        planned(Request(samples=10**9, why=("99",)))
    with pytest.raises(InputError, match="none of the offers has it"):
        planned(Request(samples=10**9, why=("mi300x",)))
    with pytest.raises(UnknownNameError):
        planned(Request(samples=10**9, why=("no-such-chip",)))


@pytest.fixture(scope="module")
def gpt2():
    source = source_of("gpt2")
    source.search_recorded()
    return source


def test_changes_are_the_changed_job_planned_on_the_same_machine(gpt2):
    rented = [offer("rtx-4090", 0.5)]
    base = {"tokens": 10**9, "global_batch": 512}

    def run(source=gpt2, **changed):
        return plan(source.traces(), Request(**{**base, **changed}), rented, CATALOG)

    source = source_of("gpt2")
    source.search_recorded()
    explained = plan(source.traces(), Request(**base, why=()), rented, CATALOG).why[0]
    changes = {change.flags.split()[0]: change for change in explained.changes if change.hours is not None}
    assert {"--seq-len", "--global-batch", "--optimizer"} <= set(changes)
    half = source_of("gpt2", seq_len=512)
    half.search_recorded()
    expected = {
        "--seq-len": run(half, global_batch=1024),
        "--global-batch": run(global_batch=1024),
    }
    for flag, result in expected.items():
        assert changes[flag].hours == pytest.approx(result.best.hours, rel=1e-6), flag
        assert changes[flag].usd == pytest.approx(result.best.usd.value, rel=1e-6), flag
    optimizer = run(techniques=Strategy(optimizer="adafactor"))
    (adafactor,) = [change for change in explained.changes if change.flags == "--optimizer adafactor"]
    assert adafactor.hours == pytest.approx(optimizer.best.hours, rel=1e-6)
    ratios = [change.hours_ratio for change in explained.changes if change.hours_ratio is not None]
    assert ratios == sorted(ratios)
    assert explained.most is None or explained.most.hours_ratio == ratios[0] < 0.99


def test_the_report_and_the_json(everything):
    shown = text(plan_report(everything))
    assert "why h100-sxm:8: 8 × h100-80gb-sxm at somewhere" in shown
    assert "next faster: " in shown
    assert "what moves it most: " in shown or "no single change" in shown
    listed = json.loads(json.dumps(everything.to_dict()))["why"]
    assert [each["name"] for each in listed] == ["1", "h100-sxm:8", "2", "gaudi2"]
    assert {"shares", "next_cheaper", "next_faster", "changes", "most", "fell"} <= set(listed[0])


def test_the_command_line(tmp_path):
    picture = tmp_path / "front.svg"
    arguments = ["plan", "resnet50", "--samples", "1M", "--on", "rtx-4090,t4", "--why", "t4:1", "--objective", "fastest"]
    result = CliRunner().invoke(main, [*arguments, "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert "why t4:1" in result.output
    assert "fastest of" in result.output
    assert picture.read_text().startswith("<svg")
    refused = CliRunner().invoke(main, [*arguments, "--confidence", "1.5"])
    assert refused.exit_code == 2
    assert "confidence" in refused.output
