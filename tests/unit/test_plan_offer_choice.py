"""Offers that the user cannot use, and discounts: --where, --region, --no-xla, --discounts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner
from test_plan_synthetic import offer, synthetic_source

from gpuwise.api.offer_choice import offer_choice
from gpuwise.cli.main import main
from gpuwise.errors import FileFormatError, InputError, NoPlanError, UnknownNameError
from gpuwise.hardware import Catalog
from gpuwise.plan import Request
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan

CATALOG = Catalog(user_files=())
OFFERS = [
    offer("rtx-4090", 1.0, provider="vast"),
    offer("h100-80gb-sxm", 3.0, provider="aws"),
    offer("mi300x", 3.0, provider="crusoe"),
    offer("tpu-v5e", 0.5, provider="gcp"),
]


def planned(**settings):
    request = Request(samples=10**9, global_batch=256, offers=offer_choice(settings, CATALOG), limit=None)
    return plan(StepTraces(synthetic_source(width=2048)), request, OFFERS, CATALOG)


def devices(result):
    return {each.device for each in result.plans}


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("vendor=nvidia memory>=24GB", {"rtx-4090", "h100-80gb-sxm"}),
        ("memory>=100GB", {"mi300x"}),
        ("provider=aws,gcp", {"h100-80gb-sxm", "tpu-v5e"}),
        ("price<1", {"tpu-v5e"}),
        ("4090", {"rtx-4090"}),
    ],
)
def test_a_filter_of_the_catalog_leaves_out_the_others(where, left):
    result = planned(where=where)
    assert devices(result) == left
    assert result.rejected["outside --where"].count == len(OFFERS) - len(left)


def test_no_xla_leaves_out_what_train_cannot_run():
    assert "tpu-v5e" in devices(planned())
    result = planned(xla=False)
    assert devices(result) == {"rtx-4090", "h100-80gb-sxm", "mi300x"}
    assert result.rejected["needs PyTorch/XLA"].count == 1


def test_a_region_leaves_out_the_others():
    choice = offer_choice({"region": "us-east-1"}, CATALOG)
    chips = CATALOG.chips
    inside = {each.region for each in CATALOG.offers if choice.why_not(each, chips[each.chip_id]) is None}
    assert inside == {"us-east-1"}
    reasons = {each.region: note.text for each in CATALOG.offers if (note := choice.why_not(each, chips[each.chip_id]))}
    assert reasons.pop("global") == "its price list names no region; --region global takes those"
    assert reasons.pop("marketplace") == "its price list names no region; --region marketplace takes those"
    assert set(reasons.values()) == {"not in region us-east-1"}


def test_an_offer_of_the_user_without_a_region_is_in_every_region():
    choice = offer_choice({"region": "us-east-1"}, CATALOG)
    assert choice.why_not(offer("l4"), CATALOG.chips["l4"]) is not None
    assert choice.why_not(replace(offer("l4"), region="any"), CATALOG.chips["l4"]) is None


def test_a_filter_that_no_offer_satisfies_is_refused():
    with pytest.raises(InputError, match="no offer satisfies --where 'price<0'"):
        offer_choice({"where": "price<0"}, CATALOG)


def test_where_nothing_is_left_the_flags_that_leave_it_out_are_named():
    with pytest.raises(NoPlanError, match="Offers are out for") as error:
        planned(region="us-east-1")
    assert error.value.ways_out[0] == "leave out or change --region"


def test_an_unknown_region_names_the_nearest():
    result = CliRunner().invoke(main, ["plan", "gpt2", "--tokens", "1M", "--region", "us-east-11"])
    assert result.exit_code == 2
    assert "nearest: us-east-1" in result.output


@pytest.mark.parametrize("text", ["", "memory>=24", "colour=red", "vendor=nvidea"])
def test_filters_that_cannot_be_read(text):
    with pytest.raises((InputError, UnknownNameError)):
        offer_choice({"where": text}, CATALOG)


def test_a_discount_takes_its_share_off_all_prices_of_a_provider(tmp_path):
    path = tmp_path / "discounts.toml"
    path.write_text("crusoe = 0.25\n")
    full = {each.device: each for each in planned().plans}
    less = {each.device: each for each in planned(discounts=str(path)).plans}
    assert less["mi300x"].usd.value == pytest.approx(0.75 * full["mi300x"].usd.value)
    assert less["mi300x"].usd_at_listed_price == pytest.approx(0.75 * full["mi300x"].usd_at_listed_price)
    assert less["rtx-4090"].usd == full["rtx-4090"].usd
    assert any(note.kind == "discounted" for note in less["mi300x"].assumption_notes)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("# mine\naws = -0.2\n", 2, "from 0"),
        ("aws = 1.0\n", 1, "at most 0.99"),
        ("gcp = 0.1\naws = 25\n", 2, "at most 0.99"),
        ("aws = nan\n", 1, "number"),
        ('aws = "a quarter"\n', 1, "number"),
        ("aws = true\n", 1, "number"),
        ("awz = 0.1\n", 1, "unknown"),
        ("aws = = 1\n", 1, "TOML"),
    ],
)
def test_a_wrong_discount_is_refused_with_its_line(tmp_path, text, line, word):
    path = tmp_path / "discounts.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=f"line {line}.*{word}"):
        offer_choice({"discounts": str(path)}, CATALOG)


def test_mistakes_on_the_command_line_exit_with_2():
    for flags in (["--region", "nowhere-9"], ["--where", "memory>=lots"], ["--discounts", "no-such-file.toml"]):
        result = CliRunner().invoke(main, ["plan", "gpt2", "--tokens", "1M", *flags])
        assert result.exit_code == 2, result.output
