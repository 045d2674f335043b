"""plan on clusters of rented machines, joined by the network that their offer has."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.api.sources import source_of
from gpuwise.cli.main import main
from gpuwise.hardware.catalog import Catalog
from gpuwise.plan.buying.candidates import Candidate, candidates
from gpuwise.plan.buying.clusters import with_clusters
from gpuwise.plan.compose.verify import Finals
from gpuwise.plan.composed import ComposedStrategies
from gpuwise.plan.request import Request
from gpuwise.plan.search import search, widened


def clusters(request: Request) -> tuple[list[Candidate], dict[str, set[str]]]:
    """The clusters of the shipped offers, and the providers of those that are not joined by the kind of reason."""
    catalog = Catalog(user_files=())
    machines = candidates(request, catalog.offers, catalog, parameters=10**9)
    joined, alone = [], {}
    for item in with_clusters(machines, request, catalog.offers, catalog):
        if isinstance(item, Candidate):
            joined += [item] if item.cluster.machines > 1 else []
        else:
            alone.setdefault(item[1].kind, set()).add(item[0].provider)
    return joined, alone


@pytest.mark.slow
def test_a_wider_search_adds_to_what_is_searched_already(monkeypatch):
    """It is equal to one of all the hardware, and searches on no cluster twice."""
    catalog = Catalog(user_files=())
    source = source_of("gpt2")
    narrow = Request(samples=10**6, on=("h100-sxm:8", "h200-sxm:1"))
    wider = replace(narrow, on=("h100-sxm:8", "h200-sxm:1", "h100-sxm:8x2"))
    whole = search(source.traces(), wider, catalog.offers, catalog)
    searched = search(source.traces(), narrow, catalog.offers, catalog)
    best_on, searched_on = ComposedStrategies._best_on, []

    def counted(self, constraints, precision, clusters):
        searched_on.extend(cluster.machines for cluster in clusters)
        return best_on(self, constraints, precision, clusters)

    monkeypatch.setattr(ComposedStrategies, "_best_on", counted)
    both = widened(searched, wider, catalog.offers, catalog)
    assert both.best == whole.best
    assert len(searched.best) < len(both.best)
    assert set(searched_on) == {2}
    assert both.strategies.priced == whole.strategies.priced


def test_where_no_composed_strategy_fits_exactly_data_parallelism_is_forecast(monkeypatch):
    settings = {"tokens": "100M", "on": "h200-sxm:8", "spot": False, "limit": 1}
    composed = gpuwise.plan("llama3-8b", **settings).best
    finals = ComposedStrategies.finals

    def none_fits(self, key, cluster):
        found = finals(self, key, cluster)
        return Finals((), tuple((each.point, "does not fit") for each in found.finalists), None)

    monkeypatch.setattr(ComposedStrategies, "finals", none_fits)
    plan = gpuwise.plan("llama3-8b", **settings).best
    assert composed.forecast.step_time_s.value <= plan.forecast.step_time_s.value
    assert plan.strategy.mesh.dp_shard == 8
    assert plan.forecast.memory.device_bytes < 141e9


@pytest.fixture(scope="module")
def all_clusters() -> tuple[list[Candidate], dict[str, set[str]]]:
    return clusters(Request(samples=1, max_devices=1024, machines_joined=True))


def test_clusters_have_a_network_and_the_price_of_all_machines(all_clusters):
    joined, _ = all_clusters
    assert {item.offer.provider for item in joined} >= {"aws", "azure", "gcp", "coreweave"}
    for item in joined:
        assert item.cluster.between is not None
        assert item.cluster.devices == item.devices == item.rented * item.offer.devices <= 1024 * item.chip.devices_per_package
        assert item.terms.usd_per_hour == pytest.approx(item.rented * item.offer.usd_per_hour)
    p5 = {item.rented for item in joined if item.offer.instance == "p5.48xlarge"}
    assert p5 == {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}


def test_any_machine_that_is_interrupted_interrupts_all(all_clusters):
    joined, _ = all_clusters
    spot = [item for item in joined if item.offer.terms == "spot" and item.offer.instance == "p5.48xlarge"]
    rates = {item.rented: item.terms.interruptions_per_day for item in spot}
    assert rates[16] == pytest.approx(8 * rates[2])


def test_what_is_not_rented_by_the_hundred_is_said(all_clusters):
    _, alone = all_clusters
    assert {"vast", "runpod", "colab", "kaggle"} <= alone["not-rented-together"]
    assert "lambda" in alone["network-unknown"]
    assert "aws" in alone["larger-machine-joined"]


def test_machines_are_joined_only_where_the_request_says_so():
    assert clusters(Request(samples=1))[0] == []
    named, _ = clusters(Request(samples=1, on=("h100-sxm:8x4",)))
    assert {item.cluster.name for item in named} == {"h100-80gb-sxm:8x4"}


def test_a_cluster_that_is_named_is_planned_with_its_best_mesh_forecast_exactly():
    arguments = ["plan", "llama3-8b", "--tokens", "20B", "--deadline", "30d", "--on", "h100-sxm:8x4", "--no-spot", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    plan = answer["plans"][0]
    mesh = plan["strategy"]["mesh"]
    assert plan["count"] == 32
    assert plan["machines"] == 4
    assert mesh["dp_replicate"] * mesh["dp_shard"] * mesh["tp"] * mesh["pp"] == 32
    assert plan["forecast"]["provenance"]["memory"] == "trace"
    assert plan["offer"]["count"] == 8
    assert answer["verified"]["clusters"] >= 1
    assert abs(answer["verified"]["largest_time_change"]) < 0.1
    assert {"started-on-each-machine", "rented-together"} <= {note["kind"] for note in plan["assumption_notes"]}


def test_more_devices_by_name_than_at_most_are_refused():
    arguments = ["plan", "gpt2", "--tokens", "1B", "--on", "h100-sxm:8x4", "--max-devices", "8"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "names 32 devices" in result.stderr


def test_devices_out_of_range_are_refused():
    result = CliRunner().invoke(main, ["plan", "gpt2", "--tokens", "1B", "--max-devices", "0"])
    assert result.exit_code == 2
    assert "1 to 16,384 devices" in result.stderr


def test_how_many_devices_are_assumed_at_once_and_what_is_beyond_a_default_quota():
    joined, _ = clusters(Request(samples=10**6, machines_joined=True, max_devices=64))
    for item in joined:
        (at_once,) = [note.text for note in item.assumptions if note.kind == "rented-together"]
        assert f"{item.rented} × {item.offer.instance} ({item.devices:,.0f} devices)" in at_once
        assert ("as spot machines, all free at once" in at_once) is (item.offer.terms == "spot")
    catalog = Catalog(user_files=())
    for item in candidates(Request(samples=10**6), catalog.offers, catalog, parameters=10**9):
        if not isinstance(item, Candidate):
            continue
        quotas = [note.text for note in item.assumptions if note.kind == "more-than-the-quota"]
        provider, gpu = item.offer.provider, item.chip.kind.startswith("gpu")
        if gpu and (provider == "gcp" or (provider == "aws" and item.offer.terms == "spot")):
            assert "usually a few days" in quotas[0]
        elif provider != "crusoe" and (provider != "aws" or item.chip.kind == "cpu" or item.offer.terms != "spot"):
            assert quotas == []


def test_a_model_that_shards_do_not_fit_is_planned_on_one_machine():
    """Copies and shards need more than a device has beside the activations: layers are divided among the devices."""
    best = gpuwise.plan(
        "llama3-70b", samples=1000, on="b300-sxm:8", global_batch=64, spot=False, limit=1, recompute="none"
    ).best
    mesh = best.strategy.mesh
    assert mesh.devices == 8
    assert mesh.tp * mesh.pp > 1
    assert best.forecast.memory.fits
