"""Whatever bytes come, an adapter gives rows that pass the gates or one coded error, and the last good list stays."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.price_lists import LISTS, content, shipped, yardstick
from tests.property.price_fuzz import check, fuzz, sample

from gpuwise.errors import PriceListError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.refreshed import read_list
from gpuwise.refresh.refresh import refresh
from gpuwise.refresh.sources import request_of

LONG = 1_000_000

TEXTS = st.one_of(
    st.text(max_size=12), st.sampled_from(["H100", "A100 SXM", "p5.48xlarge", "us-east-1", "True", "", "1 Hour", "Consumption"])
)
NUMBERS = st.one_of(st.floats(), st.integers(), st.none(), st.sampled_from([0, 80, 81920, 8, 1.5]))
VALUES = st.one_of(TEXTS, NUMBERS, st.booleans(), st.lists(NUMBERS, max_size=2))
CELLS = {
    "skypilot:aws": ["InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region", "SpotPrice", "GpuInfo", "vCPUs"],
    "gpuhunt:aws": ["instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot", "flags"],
}
KEYS = {
    "vast": ["gpu_name", "num_gpus", "gpu_ram", "dph_total", "dph_base", "min_bid", "cpu_ram", "rentable", "rented"],
    "runpod": [
        "id",
        "displayName",
        "memoryInGb",
        "secureCloud",
        "securePrice",
        "secureSpotPrice",
        "communityPrice",
        "lowestPrice",
    ],
    "azure": [
        "armSkuName",
        "meterName",
        "productName",
        "type",
        "retailPrice",
        "unitOfMeasure",
        "currencyCode",
        "armRegionName",
    ],
}


@pytest.mark.parametrize("name", CELLS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_cells(name: str, data: st.DataObject):
    columns = data.draw(st.permutations(CELLS[name]))
    rows = data.draw(st.lists(st.lists(VALUES, min_size=len(columns), max_size=len(columns)), max_size=4))
    quoted = [",".join('"' + str(cell).replace('"', '""') + '"' for cell in row) for row in rows]
    check(name, ("\n".join([",".join(columns), *quoted]).encode(errors="replace"),))


@pytest.mark.parametrize("name", KEYS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_values(name: str, data: st.DataObject):
    import json

    rows = data.draw(st.lists(st.dictionaries(st.sampled_from(KEYS[name]), VALUES), max_size=4))
    whole = {"vast": {"offers": rows}, "runpod": {"data": {"gpuTypes": rows}}, "azure": {"Items": rows}}[name]
    check(name, (json.dumps(whole).encode(),))


@given(document=st.binary(max_size=200), name=st.sampled_from(list(LISTS)))
@settings(max_examples=150, deadline=None)
def test_any_bytes(document: bytes, name: str):
    check(name, (document,))


def test_damaged_lists():
    counts = fuzz(600, seed=1)
    assert sum(counts.values()) == 600
    assert min(counts.values()) > 10, counts  # the damage is neither too small nor too large to tell anything


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_million_damaged_lists():
    counts = fuzz(LONG, seed=20)
    print(counts)
    assert sum(counts.values()) == LONG


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_last_good_list_stays_or_a_whole_one_takes_its_place(
    seed: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    import random

    folder: Path = tmp_path_factory.mktemp("cache")
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(folder / "none"))
    name = "skypilot:aws"
    refresh(request_of(name), content(name), shipped=shipped(), by=yardstick())
    path = folder / "gpuwise" / "prices" / "aws.json"
    before = path.read_bytes()
    damaged = replace(content(name), documents=sample(name, random.Random(seed)))
    with suppress(PriceListError):
        outcome = refresh(request_of(name), damaged, shipped=shipped(), by=yardstick())
        if outcome.state == "taken":
            assert read_list(path).sha256 == damaged.digest
            assert load_catalog().ignored_lists == ()
            return
    assert path.read_bytes() == before
