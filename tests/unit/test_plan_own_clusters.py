"""plan on several machines of the user's own, joined by the network that --network names."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.cli.main import main

JOB = ("plan", "llama3-8b", "--tokens", "1B", "--recompute", "full", "--micro-batch", "1", "--global-batch", "32", "--on", "t4")
OWN = ("--own", "a100-80gb-sxm:8x4")


def run(*arguments: str):
    return CliRunner().invoke(main, [*JOB, *arguments])


def plan_of_all(*arguments: str) -> dict:
    result = run(*OWN, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return next(plan for plan in json.loads(result.stdout)["plans"] if plan["count"] == 32)


def test_machines_of_ones_own_are_planned_together_with_their_network():
    plan = plan_of_all("--network", "8 x 200 Gbit InfiniBand", "--electricity", "0.2")
    assert plan["offer"]["instance"] == "own a100-80gb-sxm:8x4"
    strategy = plan["strategy"]
    mesh = {axis: degree for axis, degree in strategy["mesh"].items() if degree > 1}
    assert math.prod(mesh.values()) == 32
    assert (strategy["recompute"], strategy["micro_batch"]) == ("full", 1)  # as the user names them
    # 400 W a board at 80 %, 100 W a host, behind power supplies of 90 %: 32 boards and 4 hosts.
    assert plan["offer"]["usd_per_hour"] == pytest.approx((32 * 400 * 0.8 + 4 * 100) / 0.9 / 1000 * 0.2)
    same = gpuwise.forecast(
        "llama3-8b",
        on="a100-80gb-sxm:8x4",
        mesh=",".join(f"{axis}={degree}" for axis, degree in mesh.items()),
        recompute="full",
        micro_batch=1,
        accumulate=strategy["accumulation"],
        **strategy["parallelism"],
        network="8 x 200 Gbit InfiniBand",
    )
    assert plan["forecast"]["step_time_s"]["value"] == pytest.approx(same.step_time_s.value)
    kinds = {note["kind"] for note in plan["assumption_notes"]}
    assert {"named-network", "started-on-each-machine"} <= kinds


def test_a_slower_network_takes_longer():
    fast, slow = (plan_of_all("--network", network) for network in ("8 x 200 Gbit InfiniBand", "10 Gbit Ethernet"))
    assert slow["hours"] > 2 * fast["hours"]


def test_without_a_network_it_is_that_of_an_offer_and_said():
    kinds = {note["kind"] for note in plan_of_all()["assumption_notes"]}
    assert "assumed-network" in kinds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--network", "10GbE"), "--own names no several"),
        (("--own", "a100-80gb-sxm:8", "--network", "10GbE"), "--own names no several"),
        (("--own", "rtx-4090:8x2"), 'say it: --network "100 Gbit Ethernet"'),
        ((*OWN, "--network", "carrier pigeons"), "cannot read the network"),
        (("--own", "rtx-4090:64x2", "--network", "10GbE"), "no machine holds 64"),
        (("--own", "here:1x2", "--network", "10GbE"), "this machine is always considered"),
    ],
)
def test_senseless_machines_of_ones_own_are_refused(arguments: tuple[str, ...], message: str):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
