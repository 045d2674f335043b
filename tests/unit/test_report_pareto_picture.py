"""The Pareto plot: every named plan stands where its time and money are, and the limits are drawn."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET

import pytest
from test_plan_synthetic import offer

from gpuwise.errors import InputError, MissingDependencyError
from gpuwise.plan.pareto import ParetoFront, ParetoPoint
from gpuwise.report.pareto_picture import named, save_picture, svg, text_picture


def point(hours: float, usd: float, *, energy_kwh: float | None = 2.0, inside: bool = True, rank: int | None = None):
    return ParetoPoint(offer("rtx-4090", 1.0), "rtx-4090", 1, hours, usd, energy_kwh, inside, 0.9, rank)


POINTS = (point(1, 900.0, inside=False), point(10, 80.0, rank=1), point(100, 9.0, energy_kwh=None), point(300, 0.0))
FRONT = ParetoFront("<job>", POINTS, ((20.0, 200.0), (1e9, 1e9)), deadline_h=200.0, budget_usd=500.0)


def circles(picture: str, radius: int) -> list[tuple[float, float]]:
    found = re.findall(rf'<circle cx="([\d.]+)" cy="([\d.]+)" r="{radius}"', picture)
    return [(float(x), float(y)) for x, y in found]


def test_points_are_where_their_time_and_money_are():
    picture = svg(FRONT)
    ET.fromstring(picture)
    assert "&lt;job&gt;" in picture
    shown = circles(picture, 7)
    assert len(shown) == 4
    across, down = [x for x, _ in shown], [y for _, y in shown]
    assert across == sorted(across)  # slower to the right
    assert down == sorted(down)  # cheaper is lower
    # equal factors are equal distances: 1 h, 10 h and 100 h
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.2)
    assert len(circles(picture, 2)) == 1  # the other plan; the one beyond the axes is left out
    dashed = re.findall(r'<line x1="([\d.]+)" x2="([\d.]+)" y1="([\d.]+)" y2="([\d.]+)"[^/]*dasharray', picture)
    (deadline,) = [float(x1) for x1, x2, *_ in dashed if x1 == x2]
    (budget,) = [float(y1) for *_, y1, y2 in dashed if y1 == y2]
    assert across[2] < deadline < across[3]
    assert down[0] < budget < down[1]


def test_the_text_picture_has_the_same():
    lines = text_picture(FRONT).splitlines()
    chart = [line.partition("│")[2] for line in lines if "│" in line]
    rows = {letter: next(i for i, line in enumerate(chart) if letter in line) for letter in "abcd"}
    columns = {letter: chart[rows[letter]].index(letter) for letter in "abcd"}
    assert sorted(rows.values()) == list(rows.values())
    assert sorted(columns.values()) == list(columns.values())
    deadline = {line.index("¦") for line in chart if "¦" in line}
    assert len(deadline) == 1
    assert columns["c"] < deadline.pop() < columns["d"]
    assert sum("---" in line for line in chart) == 1
    listed = [line for line in lines if re.match(r"  [a-d] ", line)]
    assert [line.split()[0] for line in listed] == list("abcd")
    assert "1 x rtx-4090 (1), some" in listed[1]
    assert listed[0].endswith("outside")
    assert "$900" in listed[0]
    assert "$0.00" in listed[3]
    assert "deadline 8.33 days; budget $500" in lines[-1]


def test_one_plan_without_limits():
    single = ParetoFront("job", (point(3, 0.0),), ())
    ET.fromstring(svg(single))
    assert "a 1 x rtx-4090" in text_picture(single)


def test_of_many_points_those_of_the_table_are_named():
    many = tuple(point(h, 1000 / h, rank=h if h in (40, 70) else None) for h in range(1, 100))
    shown = named(ParetoFront("job", many, ()))
    assert len(shown) == 24
    assert {1, 40, 70, 99} <= {each.hours for _, each in shown}
    assert [each.hours for _, each in shown] == sorted(each.hours for _, each in shown)


def test_files(tmp_path, monkeypatch):
    assert save_picture(FRONT, tmp_path / "front.svg").read_text() == svg(FRONT)
    assert save_picture(FRONT, tmp_path / "front.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(InputError, match="--plot"):
        save_picture(FRONT, tmp_path / "front.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError):
        save_picture(FRONT, tmp_path / "other.png")
