"""gpuwise plan --buy: the arithmetic by brute force, mistakes in the file, and what the command prints."""

import json
import re

import pytest

import gpuwise
from gpuwise import api
from gpuwise.cli.main import main
from gpuwise.errors import FileFormatError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.plan.advice.advise import RunHere, Week, bought, ranked, rent_all
from gpuwise.plan.advice.machine_for_sale import MachineForSale, machine_for_sale
from gpuwise.plan.advice.mix import read_mix
from gpuwise.plan.advice.types import CheapestRental
from gpuwise.plan.economics.costs_file import FILE_KEYS
from gpuwise.plan.economics.owned import MachineCosts, OwnedCosts
from gpuwise.report.own_or_cloud import own_or_cloud
from gpuwise.units import format_duration, format_usd

CATALOG = load_catalog()
RENTAL = CheapestRental("a", "1 x l4", 2.0, 3.0, 5.0)
OTHER = CheapestRental("b", "1 x h100", 1.0, 8.0, 1.0)


def for_sale(name="rtx-4090", count=2, **costs):
    machine = machine_for_sale(CATALOG.chip(name), count, MachineCosts(OwnedCosts(**costs)))
    assert isinstance(machine, MachineForSale)
    return machine


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["plan", *arguments])
    return end.value.code, capsys.readouterr()


def test_a_machine_costs_what_every_week_of_its_life_costs():
    """By brute force: every week of four years is paid for, then the machine is sold."""
    machine = for_sale(purchase_usd=5000, resale_share=0.4, lifetime_years=4, host_w=120, psu_efficiency=0.8, pue=1.1)
    weeks = [Week("a", 5.0, RENTAL), Week("b", 1.0, OTHER)]
    runs = {"a": RunHere(4.0, chips_w=680.0, throughput=10.0, unit="images/s"), "b": RunHere(None, reason="does not fit")}
    answer = bought(machine, weeks, runs, usd_per_kwh=0.25)
    spent = 5000.0
    for _ in range(round(4 * 365 / 7 * 100)):  # in hundredths of a week
        spent += (5 * 4.0 * (680 + 120) / 0.8 * 1.1 / 1000 * 0.25 + 1 * 8.0) / 100
    spent -= 0.4 * 5000
    assert answer.usd_a_year == pytest.approx(spent / 4, rel=1e-4)
    assert answer.without_resale_usd_a_year == pytest.approx((spent + 2000) / 4, rel=1e-4)
    assert answer.hours_a_week == 20
    here, rented = answer.jobs
    yearly = (here.usd_a_run * 5 + rented.usd_a_run) * 365 / 7
    assert yearly == pytest.approx(answer.usd_a_year)
    assert rented.rented


def test_break_even_is_where_more_of_the_mix_makes_both_cost_the_same():
    machine = for_sale(purchase_usd=3000, resale_share=0.25, lifetime_years=3)
    answer = bought(machine, [Week("a", 5.0, RENTAL)], {"a": RunHere(4.0, chips_w=600.0)}, usd_per_kwh=0.2)
    even = answer.break_even_hours_a_week
    assert even is not None
    at_even = bought(machine, [Week("a", even / 4.0, RENTAL)], {"a": RunHere(4.0, chips_w=600.0)}, usd_per_kwh=0.2)
    assert at_even.usd_a_year == pytest.approx(even / 4.0 * RENTAL.usd * 365 / 7)
    dear = bought(machine, [Week("a", 5.0, RENTAL)], {"a": RunHere(4.0, chips_w=600.0)}, usd_per_kwh=5.0)
    assert dear.break_even_hours_a_week is None


def test_machines_too_slow_for_a_week_come_last_and_renting_is_one_of_them():
    machine = for_sale(purchase_usd=100)
    slow = bought(machine, [Week("a", 50.0, RENTAL)], {"a": RunHere(4.0, chips_w=1.0)}, usd_per_kwh=0.01)
    renting = rent_all([Week("a", 50.0, RENTAL)])
    assert renting is not None
    assert slow.usd_a_year < renting.usd_a_year
    assert not slow.fast_enough
    assert ranked([slow, renting]) == (renting, slow)
    assert rent_all([Week("a", 1.0, None)]) is None


def test_what_decides_beside_money_is_said():
    words = " ".join(for_sale("rtx-4090", 4).remarks(longest_h=100, circuit=""))
    assert "no ECC" in words
    assert "licence leaves out data centres" in words
    assert "a household circuit in the US" in words
    assert "Europe" not in words
    words = " ".join(for_sale("rtx-pro-6000-blackwell", 1).remarks(longest_h=100, circuit="us"))
    assert "no ECC" not in words
    assert "licence" not in words
    assert "circuit" not in words
    assert "no computer" in machine_for_sale(CATALOG.chip("rtx-4090"), 8, MachineCosts())
    assert "no price of l40s" in machine_for_sale(CATALOG.chip("l40s"), 1, MachineCosts())


JOB = '[[job]]\njob = "gpt2"\nsamples = "100k"\nruns_a_week = 2\n'


@pytest.mark.parametrize(
    ("text", "message", "way"),
    [
        ("", "line 1: no job is in it", "add one"),
        ("[[jobs]]\n", "line 1: unknown key 'jobs'", "nearest: job"),
        (JOB + "seqlen = 5\n", "line 5: unknown key 'seqlen'", "nearest: seq_len"),
        (JOB + 'precision = "bf8"\n', "line 5: unknown precision 'bf8'", "one of:"),
        (JOB + 'micro_batch = "x"\n', "line 5: micro_batch must be a number", ""),
        (JOB + "compile = 1\n", "line 5: compile must be true or false", ""),
        (JOB + JOB, "two jobs are called 'gpt2'", "give each a name"),
        ("[[job]]\nruns_a_week = 2\n", "line 1: a [[job]] without job", 'job = "gpt2"'),
        ('[[job]]\njob = "gpt2"\n', "line 1: gpt2 has neither runs_a_week nor hours_a_week", ""),
        ('[[job]]\njob = "gpt2"\nruns_a_week = 2\n', "line 1: gpt2 has runs_a_week and no length", "samples"),
        ('[[job]]\njob = "gpt2"\nhours_a_week = 2\n', "line 3: gpt2 has hours_a_week, but not the device", "on ="),
        (JOB + "hours_a_week = 2\n", "line 5: gpt2 has both", ""),
        ('[[job]]\njob = "gpt2"\nsamples = 5\nruns_a_week = 0\n', "line 4: runs_a_week must be above 0", ""),
        ('circuit = "uk"\n' + JOB, "line 1: unknown circuit 'uk'", "one of: us, eu"),
        ('machines = "rtx-4090"\n' + JOB, "line 1: machines must be a list", ""),
        ('machines = ["rtx-4099"]\n' + JOB, "line 1: 'rtx-4099' is no machine: unknown chip", "nearest"),
        (JOB + 'where = "moon"\n', "line 5: unknown where 'moon'", "one of: own, cloud"),
        ('job = "gpt2"\n', "line 1: job must be written as tables", ""),
    ],
)
def test_a_mistake_in_the_file_names_its_line_and_a_way_out(tmp_path, text, message, way):
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=re.escape(message)) as raised:
        api.buy(str(path))
    assert any(way in line for line in raised.value.ways_out)


def test_a_mix_is_read(tmp_path):
    path = tmp_path / "jobs.toml"
    path.write_text(JOB + '[[job]]\njob = "resnet50"\nname = "vision"\nhours_a_week = 10\non = "rtx-4090"\nmicro_batch = 8\n')
    mix, _ = read_mix(str(path), cost_keys=FILE_KEYS)
    assert [job.name for job in mix.jobs] == ["gpt2", "vision"]
    assert mix.jobs[0].settings == {"samples": "100k"}
    assert mix.jobs[1].settings == {"micro_batch": 8}
    assert "rtx-4090:1" in mix.machines


def test_the_command_compares_machines_and_renting(tmp_path, capsys):
    path = tmp_path / "jobs.toml"
    path.write_text(
        'machines = ["rtx-4090:2", "h100-80gb-pcie"]\nelectricity = 0.3\n'
        + JOB
        + '[[job]]\njob = "resnet50"\nhours_a_week = 5\non = "rtx-3090"\n'
    )
    code, streams = run(capsys, "--buy", str(path), "--json")
    assert code == 0
    answer = json.loads(streams.out)
    names = [machine["name"] for machine in answer["machines"]]
    assert sorted(names) == ["1 x h100-80gb-pcie", "2 x rtx-4090", "rent all"]
    cards = next(machine for machine in answer["machines"] if machine["name"] == "2 x rtx-4090")
    gpt2, resnet = cards["jobs"]
    step = api.plan("gpt2", samples="100k", on="rtx-3090", own="rtx-4090:2")
    hours = next(m.hours for m in step.at_hand if m.count == 2)
    assert gpt2["hours"] == pytest.approx(hours)
    assert gpt2["hours_a_week"] == pytest.approx(2 * hours)
    assert resnet["hours"] < 5
    kwh = sum(job["hours_a_week"] * job["wall_w"] / 1000 for job in cards["jobs"])
    assert cards["electricity_usd_a_year"] == pytest.approx(kwh * 0.3 * 365 / 7)
    renting = next(machine for machine in answer["machines"] if machine["name"] == "rent all")
    rent = sum(rental["usd"] * rental["runs_a_week"] for rental in answer["rentals"])
    assert renting["usd_a_year"] == pytest.approx(rent * 365 / 7)


@pytest.mark.slow
def test_hours_a_week_are_those_of_the_device_that_is_named(tmp_path):
    path = tmp_path / "jobs.toml"
    path.write_text('machines = ["rtx-4090:1"]\n[[job]]\njob = "gpt2"\nhours_a_week = 20\non = "rtx-4090"\n')
    machine = next(machine for machine in api.buy(str(path)).machines if machine.name == "1 x rtx-4090")
    assert machine.hours_a_week == pytest.approx(20, rel=0.02)
    path.write_text('machines = ["rtx-4090:1"]\n[[job]]\njob = "llama3-8b"\nhours_a_week = 20\non = "rtx-4090"\n')
    with pytest.raises(gpuwise.GpuwiseError, match="cannot train it"):
        api.buy(str(path))


def test_the_flag_goes_alone_and_without_it_a_job_is_needed(tmp_path, capsys):
    path = tmp_path / "jobs.toml"
    path.write_text(JOB)
    code, streams = run(capsys, "gpt2", "--buy", str(path))
    assert code == 2
    assert "JOB (gpt2) has no place beside it" in streams.err
    code, streams = run(capsys, "--buy", str(path), "--budget", "20")
    assert code == 2
    assert "--budget has no place beside it" in streams.err
    code, streams = run(capsys, "--buy", str(path), "--no-spot")
    assert code == 2
    assert "--no-spot has no place beside it" in streams.err
    assert "write it" not in streams.err
    for flag, place in (("--samples", "[[job]]"), ("--electricity", "electricity = ...")):
        _, streams = run(capsys, "--buy", str(path), flag, "1")
        assert f"write it into the file: {place}" in streams.err
    code, streams = run(capsys)
    assert code == 2
    assert "JOB" in streams.err


@pytest.mark.slow
def test_developing_on_ones_own_and_running_in_the_cloud_is_compared_with_both(tmp_path):
    path = tmp_path / "jobs.toml"
    develop = '[[job]]\njob = "gpt2"\nname = "develop"\nhours_a_week = 20\non = "rtx-4090"\n'
    path.write_text('machines = ["rtx-4090:2"]\n' + develop + JOB + 'where = "cloud"\n')
    answer = api.buy(str(path))
    by_name = {machine.name: machine for machine in answer.machines}
    assert set(by_name) == {"2 x rtx-4090", "2 x rtx-4090 + cloud", "rent all"}
    own, hybrid = by_name["2 x rtx-4090"], by_name["2 x rtx-4090 + cloud"]
    rental = next(rental for rental in answer.rentals if rental.name == "gpt2")
    moved = next(job for job in own.jobs if job.name == "gpt2")
    assert hybrid.rent_usd_a_year == pytest.approx(2 * rental.usd * 365 / 7)
    saved = moved.hours_a_week * moved.wall_w / 1000 * 0.17 * 365 / 7
    assert hybrid.usd_a_year == pytest.approx(own.usd_a_year - saved + hybrid.rent_usd_a_year)
    assert hybrid.hours_a_week == pytest.approx(own.hours_a_week - moved.hours_a_week)


def test_a_plan_says_when_ones_own_machine_is_done_and_what_the_cloud_costs_more():
    result = api.plan("gpt2", samples="100k", own="rtx-4090", on="l4,h100-sxm", limit=20)
    (own,) = [machine for machine in result.at_hand if machine.offer.provider == "own"]
    (words,) = own_or_cloud(result)
    rented = [p for p in result.plans if p.offer.terms in ("on-demand", "spot") and not p.train_obstacle]
    for plan in (min(rented, key=lambda p: p.usd.value), min(rented, key=lambda p: p.hours)):
        assert format_duration(abs(own.hours - plan.hours) * 3600) in words
        assert format_usd(abs(plan.usd.value - own.usd)) in words
