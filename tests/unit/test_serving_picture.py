"""The picture of serve-plan: prices by rate, whole or not at all."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.one_recording import one_recording  # noqa: F401
from tests.unit.test_api_serving import job

from gpuwise.api.serving import serve_plan
from gpuwise.cli.main import main
from gpuwise.errors import InputError
from gpuwise.report.serving_picture import chart_of, save_picture, svg, text_picture
from gpuwise.serving.forecast import ServingForecast


@pytest.fixture(scope="module")
def forecast() -> ServingForecast:
    return serve_plan(job(), on="l4,rtx-4090", rate="200/s", api_price="0.05,0.2")


def test_points_are_the_prices_of_fleets(forecast: ServingForecast):
    chart = chart_of(forecast)
    assert {line.device for line in chart.lines} == {"l4", "rtx-4090"}
    by_name = {fleet.device: fleet for fleet in forecast.fleets}
    row = forecast.rows[0]
    written = 1e6 * row.usd_per_request / row.usd_per_million_output
    for line in chart.lines:
        for rate, usd in line.points[::17]:
            assert usd == pytest.approx(by_name[line.device].usd_per_hour_at(rate) / 3600 / rate * 1e6 / written)
        rates = [rate for rate, _ in line.points]
        assert rates == sorted(rates)
    assert chart.cheapest[0][0] == chart.rates[0] == pytest.approx(2.0)
    assert chart.cheapest[-1][1] == chart.rates[1] == pytest.approx(2000.0)
    assert all(chart.usd[0] < usd < chart.usd[1] for line in chart.lines for _, usd in line.points)


def test_the_picture_is_a_whole_svg(forecast: ServingForecast, tmp_path: Path):
    path = save_picture(forecast, tmp_path / "prices.svg")
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    words = "".join(root.itertext())
    for part in ("l4", "rtx-4090", "API", "requests"):
        assert part in words
    assert len([each for each in root.iter() if each.tag.endswith("polyline")]) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["prices.svg"]
    assert "1,000/s" in words
    assert svg(chart_of(forecast)) == path.read_text(encoding="utf-8")


def test_the_picture_as_png_and_as_text(forecast: ServingForecast, tmp_path: Path):
    pytest.importorskip("matplotlib")
    assert save_picture(forecast, tmp_path / "prices.png").read_bytes().startswith(b"\x89PNG")
    text = text_picture(forecast)
    assert "a l4" in text or "a rtx-4090" in text
    assert "capitals" in text


def test_what_cannot_be_drawn(forecast: ServingForecast, tmp_path: Path):
    with pytest.raises(InputError, match=r"\.svg"):
        save_picture(forecast, tmp_path / "prices.pdf")
    with pytest.raises(InputError, match="price to draw"):
        chart_of(without_prices(forecast))
    run = CliRunner().invoke(main, ["serve-plan", "gpt2", "--on", "l4", "--rate", "1/s", "--plot", "-", "--json"])
    assert run.exit_code == 2
    run = CliRunner().invoke(main, ["serve-plan", "gpt2", "--on", "l4", "--rate", "1/s", "--plot", str(tmp_path / "a.svg")])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "a.svg").exists()


def without_prices(forecast: ServingForecast) -> ServingForecast:
    row = replace(forecast.rows[0], usd_per_request=None, usd_per_million_output=None)
    return replace(forecast, rows=(row,), fleets=())
