"""Reading the catalog: laziness, user files on top, errors with file and line."""

import os
from datetime import date, timedelta

import pytest

from gpuwise.errors import FileFormatError, InputError, UnknownNameError
from gpuwise.hardware import Catalog, load_catalog, user_files
from gpuwise.hardware.pricelist import is_stale
from gpuwise.hardware.prices import UsualPrices
from gpuwise.hardware.rows import latest_day


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a user's file and load the catalog with it."""
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path))

    def load(text, name="mine.toml"):
        (tmp_path / name).write_text(text)
        return load_catalog()

    return load


def read_all(catalog):
    return catalog.chips, catalog.links, catalog.offers


def test_user_files_are_found_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.delenv("GPUWISE_CONFIG_DIR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "gpuwise").mkdir()
    (tmp_path / "gpuwise" / "b.toml").write_text("")
    assert user_files() == (tmp_path / "gpuwise" / "b.toml",)
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    assert user_files() == ()


def test_chips_are_read_without_offers(monkeypatch):
    catalog = Catalog()
    monkeypatch.setattr("gpuwise.hardware.catalog._list", lambda *a: pytest.fail("offers were read"))
    assert "rtx-4090" in catalog.chips


def test_load_catalog_is_cached_until_a_user_file_changes(own):
    first = own("")
    assert load_catalog() is first
    changed = own("[chip.rtx-4090]\ntdp_w = 350\n", name="other.toml")
    assert changed is not first
    assert changed.chips["rtx-4090"].tdp_w == 350


def test_override_changes_only_the_fields_given(own):
    chip = own("[chip.rtx-4090]\nstreet_price_usd = 1234\nfp16_tflops = 160\n").chips["rtx-4090"]
    built_in = Catalog().chips["rtx-4090"]
    assert chip.street_price_usd == 1234
    assert chip.peak_flops_per_s == {**built_in.peak_flops_per_s, "fp16": 160e12}
    assert chip.memory_bytes == built_in.memory_bytes
    assert chip.source_of("street_price_usd").text == "mine.toml"
    assert chip.source_of("fp16").text == "mine.toml"
    assert chip.source_of("memory_bytes") == built_in.source_of("memory_bytes")


def test_new_chip_link_and_offer(own):
    catalog = own("""
[chip.my-gpu]
vendor = "Me"
name = "My GPU"
kind = "gpu-consumer"
memory_gib = 24
link = "my-link"
source = "my bench"
as_of = "2026-11-01"
sources = [{ figures = ["memory_gib"], source = "the box", as_of = "2026", unverified = true }]

[link.my-link]
name = "My link"
kind = "scale-up"
per_direction_gb_per_s = 10

[[offer]]
provider = "lab"
instance = "rig"
chip = "my-gpu"
count = 2
owned_usd_per_hour = 0.1
""")
    chip = catalog.find_chip("my-gpu")
    assert chip.memory_bytes == 24 * 2**30
    assert chip.unverified == ("memory_bytes",)
    assert str(chip.source_of("kind")) == "my bench, 2026-11-01"
    assert catalog.link("my-link").per_direction_bytes_per_s == 10e9
    (offer,) = [o for o in catalog.offers if o.provider == "lab"]
    assert (offer.terms, offer.region, offer.count, offer.usd_per_hour) == ("owned", "any", 2, 0.1)
    assert offer.source.text == "mine.toml"


def test_a_row_with_a_date_alone_keeps_it(own):
    source = own('[chip.rtx-4090]\ntdp_w = 350\nas_of = "2026-03-01"\n').chips["rtx-4090"].source_of("tdp_w")
    assert (source.text, source.as_of) == ("mine.toml", "2026-03-01")


def test_a_file_changed_in_the_future_is_of_today(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[chip.rtx-4090]\ntdp_w = 350\n")
    os.utime(path, (4e9, 4e9))  # the year 2096
    assert Catalog(user_files=[path]).chips["rtx-4090"].source_of("tdp_w").as_of == date.today().isoformat()


def test_a_users_price_makes_no_shipped_price_stale(own):
    row = '[[offer]]\nprovider = "lab"\ninstance = "rig"\nchip = "t4"\ncount = 1\non_demand_usd_per_hour = 1\n'
    mine, shipped = own(row), Catalog()
    assert mine.newest == shipped.newest
    stale = {offer.instance for offer in shipped.offers if offer.stale}
    assert {offer.instance for offer in mine.offers if offer.stale} == stale


def test_a_users_offer_names_its_chip_as_the_command_line_does(own):
    row = '[[offer]]\nprovider = "lab"\ninstance = "rig"\nchip = "h100-sxm"\ncount = 1\non_demand_usd_per_hour = 1\n'
    (offer,) = [each for each in own(row).offers if each.provider == "lab"]
    assert offer.chip_id == "h100-80gb-sxm"


def test_a_users_row_may_say_that_a_chip_trains_or_does_not(own):
    chips = own("[chip.rtx-4090]\ntrains = false\n[chip.inferentia2]\ntrains = true\n").chips
    assert (chips["rtx-4090"].trains, chips["inferentia2"].trains, chips["t4"].trains) == (False, True, True)
    assert "trains" not in chips["rtx-4090"].figures


def test_override_of_one_price(own):
    text = '[[offer]]\nprovider = "aws"\ninstance = "p5.48xlarge"\nregion = "us-east-1"\nspot_usd_per_hour = 9.5\n'
    offers = {o.terms: o for o in own(text).offers if o.instance == "p5.48xlarge"}
    assert offers["spot"].usd_per_hour == 9.5
    assert offers["spot"].source_of("usd_per_hour").text == "mine.toml"
    assert offers["on-demand"].usd_per_hour == 55.04
    assert offers["on-demand"].as_of == "2026-07-20"


BAD = [
    ("[chip.rtx-4090]\ntdp_w = \n", 2, "not valid TOML"),
    ("[chip.rtx-4090]\n\nwatts = 3\n", 3, "unknown key 'watts'"),
    ('[chip.rtx-4090]\ntdp_w = "450"\n', 2, "must be a number"),
    ("[chip.rtx-4090]\ntdp_w = true\n", 2, "must be a number"),
    ("[chip.rtx-4090]\ntdp_w = nan\n", 2, "out of range"),
    ("[chip.rtx-4090]\nyear = 2022\nmemory_gib = -24\n", 3, "out of range"),
    ("[chip.rtx-4090]\nsm_count = 12.5\n", 2, "whole number"),
    ('[chip.rtx-4090]\nkind = "gpu"\n', 2, "must be one of"),
    ('[chip.rtx-4090]\necc = "no"\n', 2, "true or false"),
    ('[chip.rtx-4090]\ncompute_capability = "8,9"\n', 2, 'look like "9.0"'),
    ('[chip.rtx-4090]\nsource = "x"\nas_of = "2026-02-30"\n', 3, "a date looks like"),
    ('[chip.rtx-4090]\ntdp_w = 3\nas_of = "2099-01-01"\n', 3, "2099-01-01 lies in the future"),
    ('[chip.rtx-4090]\ntdp_w = 3\nas_of = "2025..2099"\n', 3, "lies in the future"),
    ('[chip.t4]\ntdp_w = 3\nsources = [{ figures = ["tdp_w"], source = "x", as_of = "2099-07" }]\n', 3, "lies in the future"),
    ('[[offer]]\nprovider = "me"\ninstance = "a"\nsource = "x"\nas_of = "2099"\n', 5, "lies in the future"),
    ('[chip.rtx-4090]\ntrains = "no"\n', 2, "true or false"),
    ('[chip.rtx-4090]\nlink = "nvlink99"\n', 2, "unknown link"),
    (
        '[chip.rtx-4090]\nsources = [{ figures = ["tdp_w"], source = "x", as_of = "2026" }]\n',
        2,
        "no figure of this row",
    ),
    ('\n[chip.new]\nname = "New"\n', 2, "a new row needs vendor, kind"),
    ('[chip."RTX 4090"]\ntdp_w = 3\n', 1, "is no id"),
    ("[[chip]]\ntdp_w = 3\n", 1, "write [chip.<id>]"),
    ("[chip]\nrtx-4090 = 3\n", 2, "must be a table"),
    ("[offer.x]\ncount = 3\n", 1, "write each as [[offer]]"),
    ("[machine.x]\ncount = 3\n", 1, "unknown section"),
    ('[[offer]]\nprovider = "me"\n', 1, "an offer needs instance"),
    ('[[offer]]\nprovider = "me"\ninstance = "a"\nchip = "h1000"\n', 4, "unknown chip 'h1000'"),
    ('[[offer]]\nprovider = "me"\ninstance = "a"\nchip = "t4"\ncount = 0\n', 5, "means a CPU offer"),
    ('[[offer]]\nprovider = "me"\ninstance = "a"\nspot_usd_per_hour = 0\n', 4, "out of range"),
    ('[[offer]]\nprovider = "me"\ninstance = "a"\n\n[[offer]]\nprovider = "me"\ninstance = "a"\n', 7, "stands twice"),
]


@pytest.mark.parametrize(("text", "line", "message"), BAD)
def test_errors_name_file_and_line(own, text, line, message):
    with pytest.raises(FileFormatError) as caught:
        read_all(own(text))
    assert f"mine.toml, line {line}: " in str(caught.value)
    assert message in str(caught.value)
    assert caught.value.ways_out


@pytest.mark.parametrize("data", [b"\xff\xfe[chip]", b"a = " + b"[" * 100_000, b"x = " + b"9" * 5000])
def test_bytes_that_are_no_toml(tmp_path, data):
    (tmp_path / "bad.toml").write_bytes(data)
    with pytest.raises(FileFormatError, match=r"bad.toml, line 1"):
        read_all(Catalog(user_files=[tmp_path / "bad.toml"]))


def test_unreadable_file(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_all(Catalog(user_files=[tmp_path / "folder.toml"]))


def test_duplicate_ids_among_the_data_files_are_refused(tmp_path):
    (tmp_path / "chips").mkdir()
    (tmp_path / "links.toml").write_text("")
    row = '[chip.x]\nvendor = "V"\nname = "X"\nkind = "cpu"\nsource = "s"\nas_of = "2026"\n'
    (tmp_path / "chips" / "a.toml").write_text(row)
    (tmp_path / "chips" / "b.toml").write_text(row)
    with pytest.raises(FileFormatError, match=r"b.toml, line 1: duplicate id 'x'"):
        _ = Catalog(data=tmp_path).chips


def test_unknown_figures_and_ids():
    catalog = Catalog()
    with pytest.raises(KeyError):
        catalog.chips["t4"].source_of("colour")
    with pytest.raises(UnknownNameError, match="h100-80gb-sxm"):
        catalog.chip("h100-80gb-sx")


@pytest.mark.parametrize(
    ("as_of", "stale"),
    [
        ("2025-11-09", False),
        ("2025-11-08", True),
        ("2025-10", True),
        ("2025", False),
        ("2024", True),
        ("2025-10..2026", False),
        ("", True),
    ],
)
def test_stale_is_over_a_year_ago(as_of, stale):
    assert is_stale(as_of, today=date(2026, 11, 9)) is stale


def test_a_catalog_that_nobody_updates_grows_old(monkeypatch):
    newest = latest_day(Catalog().newest)
    young, old = Catalog(now=newest), Catalog(now=newest + timedelta(days=500))
    assert Catalog(now=newest - timedelta(days=1000)).today == young.today == newest
    assert {offer.stale for offer in young.offers} == {False, True}
    assert {offer.stale for offer in old.offers} == {True}
    listed = next(o for o in young.offers if o.terms == "on-demand" and o.as_of == young.newest)
    ages = [UsualPrices.of(each.offers, today=each.today).age_days(listed.as_of) for each in (young, old)]
    assert ages == [0.0, 500.0]
    monkeypatch.setenv("GPUWISE_TODAY", "2030-02-03")
    assert load_catalog().today == date(2030, 2, 3)
    monkeypatch.setenv("GPUWISE_TODAY", "yesterday")
    with pytest.raises(InputError, match="GPUWISE_TODAY is no day"):
        load_catalog()


def test_to_dict_marks_unverified_figures():
    answer = Catalog().chips["epyc-7763"].to_dict()
    assert "memory_bytes" not in answer  # unknown is left out, never 0
    assert "memory_bandwidth_bytes_per_s" in answer["unverified"]
    assert answer["source"]["verified"] is False


def test_a_broken_link_is_told_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path))
    (tmp_path / "gone.toml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match=r"gone\.toml: cannot be read"):
        read_all(load_catalog())
