"""The time and money of a run over its attempts, from made-up logs whose sums are known, and from a real run."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwise.cli.main import main
from gpuwise.cost.forecast import Interval
from gpuwise.errors import FileFormatError, InputError
from gpuwise.results.run_costs import RunCosts
from gpuwise.runs.attempt_times import attempt_times
from gpuwise.runs.costs import costs_of, run_costs
from gpuwise.runs.plan_record import PlanRecord, plan_record

T0 = datetime(2026, 11, 28, 9, tzinfo=UTC).timestamp()
HOUR = 3600.0


def at(seconds: float) -> str:
    return datetime.fromtimestamp(T0 + seconds, UTC).isoformat(timespec="milliseconds")


class Log:
    """Attempts of a made-up run, with 10 s for a step and 1 s of waiting for data."""

    def __init__(self) -> None:
        self.records: list[dict[str, object]] = []

    def begins(self, began: float, *, setup_s: float, resumed_from: int = 0, host: str = "n0", device: str = "h100-80gb-sxm"):
        self.now, self.step = began + setup_s, resumed_from
        header = {"began": at(began), "host": host, "device": "cuda:0", "steps": 1000, "forecast": {"device": device}}
        self.records.append({"record": "header", "time": at(self.now), **header, "resumed_from": resumed_from or None})
        return self

    def steps(self, count: int, *, together: int = 1):
        for _ in range(count // together):
            self.now, self.step = self.now + together * 11, self.step + together
            step = {"step": self.step, "steps": together, "step_time_s": 10.0, "data_s": 1.0}
            self.records.append({"record": "step", "time": at(self.now), **step})
        return self

    def saves(self, held_up_s: float):
        self.now += held_up_s
        saved = {"step": self.step, "held_up_s": held_up_s, "bytes": 10**9}
        self.records.append({"record": "checkpoint", "time": at(self.now), **saved})
        return self

    def ends(self, stopped: str, *, after_s: float = 0.0):
        self.now += after_s
        self.records.append({"record": "summary", "time": at(self.now), "stopped": stopped})
        return self


def plan(*, terms: str = "spot", provider: str = "aws", steps: int = 1000) -> PlanRecord:
    """Of 1,000 steps of 9 s, and 600 s more; 36 dollars an hour."""
    calendar_s = steps * 9.0 + 600
    usd = calendar_s / HOUR * 36
    return PlanRecord(
        device="h100-80gb-sxm",
        provider=provider,
        terms=terms,
        steps=steps,
        step_time_s=9.0,
        calendar_s=Interval(calendar_s, calendar_s * 0.8, calendar_s * 1.5),
        machine_s=calendar_s,
        usd=Interval(usd, usd * 0.8, usd * 1.5),
        usd_per_hour=36.0,
    )


def interrupted() -> Log:
    """Killed at step 500 with a checkpoint of 400; goes on from there on another machine half an hour later."""
    log = Log().begins(0, setup_s=100).steps(400).saves(20).steps(100)
    return log.begins(log.now + 1800, setup_s=200, resumed_from=400, host="n1").steps(600).saves(30).ends("finished", after_s=5)


def parts(costs: RunCosts) -> dict[str, float]:
    return {part.name: pytest.approx(part.spent_s, abs=0.1) for part in costs.parts}


def test_each_second_has_its_use():
    costs = costs_of(interrupted().records, plan())
    assert parts(costs) == {
        "steps": 1000 * 10,
        "waiting for data": 1000 * 1,
        "saving": 50,
        "set-up": 100,
        "restarts": 200,
        "steps taken again": 100 * 11,
        "other": 5,
        "idle": 1800,
    }
    assert costs.hours_spent == pytest.approx((12155 + 2100) / HOUR)
    assert costs.hours_expected == costs.hours_spent
    assert (costs.step, costs.steps, costs.step_time_s) == (1000, 1000, pytest.approx(11))
    first, second = costs.attempts
    assert (first.host, first.first_step, first.last_step, first.end) == ("n0", 1, 500, "")
    assert (second.host, second.first_step, second.last_step, second.end) == ("n1", 401, 1000, "finished")
    assert first.wall_s == pytest.approx(100 + 500 * 11 + 20)


def test_the_difference_to_the_plan_is_explained_largest_first():
    costs = costs_of(interrupted().records, plan())
    sentences = costs.explanations
    assert sentences[0] == "idle between attempts: 30 min more than planned"
    assert "a step takes 11% more than forecast: 16.7 min more in all" in sentences
    assert "waiting for data: 16.7 min more than planned" in sentences
    assert "set-up, restarts, saving, steps taken again, other: 14.2 min more than planned" in sentences
    by_part = {part.name: part.planned_s for part in costs.parts}
    assert (by_part["steps"], by_part["set-up"], by_part["saving"], by_part["idle"]) == (9000, 600, None, 0)


def test_money_is_billed_by_rentals():
    costs = costs_of(interrupted().records, plan())
    assert costs.money is not None
    wall_s = 5620 + 6835
    assert (costs.money.rentals, costs.money.billed_s) == (2, pytest.approx(wall_s, abs=2))
    storage_usd = 2 * 1.0 * 0.023 / 730 * costs.hours_spent  # two checkpoints of a GB at AWS
    assert costs.money.storage_usd == pytest.approx(storage_usd)
    assert costs.money.spent_usd == pytest.approx(wall_s / HOUR * 36 + storage_usd, rel=1e-3)
    assert costs.money.planned_usd == plan().usd


def test_attempts_on_one_host_share_a_rental_and_its_idle_time():
    log = Log().begins(0, setup_s=100).steps(400).saves(20).steps(100)
    log.begins(log.now + 1800, setup_s=200, resumed_from=400).steps(600).saves(30).ends("finished", after_s=5)
    money = costs_of(log.records, plan()).money
    assert money is not None
    assert (money.rentals, money.billed_s) == (1, pytest.approx(5620 + 6835 + 1800, abs=2))
    assert money.spent_usd - money.released_usd == pytest.approx(18, rel=1e-3)  # half an hour of 36 dollars
    assert any("for idle time, minimum and rounding of 1 rental" in text for text in costs_of(log.records, plan()).explanations)


@pytest.mark.parametrize(
    ("terms", "expected_s"),
    [("on-demand", 60.0), ("spot", 60.0), ("owned", 31.0), ("free", 31.0), ("reserved-1y", 365 * 24 * HOUR)],
)
def test_a_short_rental_is_billed_by_its_terms(terms: str, expected_s: float):
    log = Log().begins(0, setup_s=20).steps(1).ends("finished")
    money = costs_of(log.records, plan(terms=terms, steps=1)).money
    assert money is not None
    assert money.billed_s == pytest.approx(expected_s, abs=1)


def test_a_provider_that_rounds_up_to_an_hour(monkeypatch: pytest.MonkeyPatch):
    from gpuwise.hardware.providers import Provider
    from gpuwise.runs import rentals

    monkeypatch.setattr(rentals, "provider", lambda id_: Provider(id_, minimum_billing_s=60, billing_step_s=3600))
    money = costs_of(interrupted().records, plan()).money
    assert money is not None
    assert money.billed_s == 2 * 2 * HOUR  # 1.6 h and 1.9 h


def test_a_run_that_goes_on_is_told_to_its_end():
    log = Log().begins(0, setup_s=100).steps(400).saves(20)
    costs = costs_of(log.records, plan())
    rest_s = 1.5 * (400 * 11 + 20)  # 600 steps at the measured pace, saves included
    assert costs.hours_expected == pytest.approx((100 + 400 * 11 + 20 + rest_s) / HOUR)
    assert costs.money is not None
    assert costs.money.expected_usd == pytest.approx((100 + 400 * 11 + 20 + rest_s) / HOUR * 36, rel=1e-3)
    assert costs.money.spent_usd < costs.money.expected_usd


def test_another_device_is_named():
    log = Log().begins(0, setup_s=1).steps(5)
    log.begins(100, setup_s=1, resumed_from=5, host="n1", device="a100-80gb-sxm").steps(5).ends("finished")
    assert (
        "attempts 2 ran on a100-80gb-sxm, not on h100-80gb-sxm; they are counted at the plan's price"
        in costs_of(log.records, plan()).explanations
    )


def test_steps_that_share_a_record_are_taken_again_in_part():
    """The later attempt goes on from step 90, in the middle of the record of 81 to 100."""
    log = Log().begins(0, setup_s=5).steps(100, together=20)
    log.begins(log.now, setup_s=5, resumed_from=90).steps(10).ends("finished")
    assert parts(costs_of(log.records, None))["steps taken again"] == 110
    assert parts(costs_of(log.records, None))["steps"] == 1000


def test_a_run_that_began_anew_has_lost_all_before():
    log = Log().begins(0, setup_s=5).steps(10)
    log.begins(log.now, setup_s=5).steps(20).ends("finished")
    assert parts(costs_of(log.records, None))["steps taken again"] == 110
    assert costs_of(log.records, None).step == 20


def test_the_uses_of_random_runs_add_up():
    random_ = random.Random(0)
    for _ in range(50):
        log, kept = Log(), 0
        log.begins(0, setup_s=random_.uniform(0, 500))
        for _ in range(random_.randrange(1, 6)):
            log.steps(random_.randrange(0, 40)).saves(random_.uniform(0, 9))
            kept = random_.randrange(kept, log.step + 1)
            log.begins(log.now + random_.uniform(0, 900), setup_s=random_.uniform(0, 50), resumed_from=kept)
        log.steps(random_.randrange(1, 40)).ends("finished", after_s=random_.uniform(0, 9))
        costs = costs_of(log.records, plan())
        assert sum(part.spent_s for part in costs.parts) == pytest.approx(log.now, abs=0.1)
        named = parts(costs)
        assert named["steps"] == log.step * 10  # each step of the run counts once, however often it was taken
        assert costs.hours_spent * HOUR == pytest.approx(log.now, abs=0.1)


@pytest.mark.parametrize("damage", ["time", "steps", "step_time_s", "began", "host", "record", "resumed_from", "held_up_s"])
@pytest.mark.parametrize("value", [None, "x", -1e30, 1e308, True, [], {"a": 1}, "2026-11-28T09:00:00"])
def test_records_that_make_no_sense_end_nothing(damage: str, value: object):
    records = [{**record, damage: value} if index % 3 == 0 else record for index, record in enumerate(interrupted().records)]
    try:
        costs = costs_of(records, plan())
    except FileFormatError:
        return
    json.dumps(costs.to_dict())


def test_an_older_log_has_neither_host_nor_start():
    records = [
        {name: value for name, value in record.items() if name not in ("host", "began")} for record in interrupted().records
    ]
    costs = costs_of(records, plan())
    assert [attempt.host for attempt in costs.attempts] == ["", ""]
    assert parts(costs)["set-up"] == 0
    assert costs.money is not None
    assert costs.money.rentals == 2


def test_bad_input(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read"):
        run_costs(tmp_path)
    (tmp_path / "log.jsonl").write_text("something else")
    with pytest.raises(InputError, match="is no log of gpuwise"):
        run_costs(tmp_path)
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(FileFormatError, match="no header"):
        run_costs(tmp_path)
    assert plan_record({}) is None


def test_a_plan_is_read_as_it_prices():
    machine = {"provider": "aws", "terms": "spot", "usd_per_hour": 10.0}
    figures = {"device": "t4", "offer": machine, "forecast": {"step_time_s": {"value": 2.0}}, "steps": 100, "hours": 3.0}
    figures |= {"machine_hours": 2.0, "usd": 60.0, "machines": 2, "usd_per_hour_likely": 12.0}
    record = plan_record(figures)
    assert record is not None
    assert (record.usd_per_hour, record.steps_s, record.machine_s, record.calendar_s.value) == (24.0, 200.0, 7200.0, 10800.0)
    discounted = plan_record({**figures, "usd": 30.0})
    assert discounted is not None
    assert discounted.usd_per_hour == 15.0


def test_a_real_run_is_beside_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Interrupted, continued without --plan: the plan stays, and every second is accounted for."""
    torch = pytest.importorskip("torch")
    import gpuwise

    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    job = gpuwise.Job(
        name="net",
        model=lambda: torch.nn.Linear(4, 1),
        batch=lambda n: {"x": torch.zeros(n, 4)},
        loss=lambda model, batch: model(batch["x"]).square().mean(),
        data=lambda: {"x": torch.zeros(64, 4)},
        samples=64,
    )
    best = gpuwise.plan(job, on="here", samples=640, global_batch=8).best
    for step in gpuwise.Trainer(job, best, run=tmp_path / "run", progress="silent"):
        if step.step == 30:
            break
    result = gpuwise.train(job, micro_batch=8, precision=best.strategy.precision, steps=best.steps, run=tmp_path / "run")
    assert result.resumed_from == 30
    costs = run_costs(tmp_path / "run")
    assert [(each.first_step, each.last_step, each.end) for each in costs.attempts] == [
        (1, 30, "interrupted"),
        (31, best.steps, "finished"),
    ]
    assert sum(part.spent_s for part in costs.parts) == pytest.approx(costs.hours_spent * HOUR, rel=1e-6)
    assert costs.step_time_planned_s == best.forecast.step_time_s.value
    assert costs.money is not None
    assert costs.money.planned_usd == best.usd
    assert "planned" in str(costs)
    shown = CliRunner().invoke(main, ["state", str(tmp_path / "run"), "--costs", "--json"])
    assert shown.exit_code == 0
    answer = json.loads(shown.stdout)
    assert answer["state"] == "done"
    assert answer["costs"]["attempts"] == json.loads(json.dumps([asdict(each) for each in attempt_times(log_of(tmp_path))]))
    assert CliRunner().invoke(main, ["state", str(tmp_path / "run"), "--costs"]).stdout.startswith(f"{best.steps} of")


def log_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
