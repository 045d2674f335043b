"""A whole refresh: gates of lists, what is kept and when it counts, and what users see of it."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.price_lists import FOLDER, LISTS, answer, archive, content, documents, server, shipped, yardstick

import gpuwise
from gpuwise import api
from gpuwise.cli.main import main
from gpuwise.errors import InputError, PriceListError
from gpuwise.hardware import refreshed
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.prices import median_prices
from gpuwise.hardware.types import Offer
from gpuwise.plan.economics.rented import rental
from gpuwise.plan.economics.spot_rate import spot_rate
from gpuwise.refresh import store
from gpuwise.refresh.fetch import HttpsClient
from gpuwise.refresh.list_gates import failed_gates
from gpuwise.refresh.outcome import FAILED, KEPT_LAST, TAKEN, UNCHANGED, RefreshOutcome
from gpuwise.refresh.refresh import ListBytes, refresh
from gpuwise.refresh.row_gates import ListedOffer
from gpuwise.refresh.sources import SOURCES, request_of

NOW = datetime(2026, 11, 9, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    return tmp_path / "cache" / "gpuwise" / "prices"


def take(name: str, changed: ListBytes | None = None, *, accept: bool = False) -> RefreshOutcome:
    return refresh(request_of(name), changed or content(name), shipped=shipped(), by=yardstick(), accept=accept, now=NOW)


def edited(name: str, before: str, after: str) -> ListBytes:
    """A list with a text replaced everywhere."""
    whole = content(name)
    assert before.encode() in b"".join(whole.documents)
    return replace(whole, documents=tuple(each.replace(before.encode(), after.encode()) for each in whole.documents))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def p5(catalog: Catalog, terms: str = "on-demand") -> Offer:
    (offer,) = [o for o in catalog.offers if (o.instance, o.region, o.terms) == ("p5.48xlarge", "us-east-1", terms)]
    return offer


# --- what counts


def test_a_refreshed_price_overrides_the_shipped_one_and_knows_its_source_and_day():
    outcome = take("skypilot:aws")
    assert (outcome.state, outcome.rows, outcome.as_of) == (TAKEN, 5, "2026-11-09")
    offer = p5(load_catalog())
    assert (offer.usd_per_hour, offer.as_of) == (55.04, "2026-11-09")
    digest = content("skypilot:aws").digest
    assert offer.source_of("usd_per_hour").text == f"SkyPilot's catalog v8 of aws, sha256 {digest[:12]}"
    other = [o for o in load_catalog().offers if o.provider == "aws" and o.instance == "g4dn.xlarge"]
    assert other == [o for o in shipped().offers if o.provider == "aws" and o.instance == "g4dn.xlarge"]


def test_what_the_list_has_no_price_of_stays_as_it_is():
    take("skypilot:aws", edited("skypilot:aws", ",9.1,", ",,"))
    rows = {row.instance: row for row in load_catalog().offer_rows if row.provider == "aws" and row.region == "us-east-1"}
    before = {row.instance: row for row in shipped().offer_rows if row.provider == "aws" and row.region == "us-east-1"}
    assert rows["p4d.24xlarge"].prices["spot"] == before["p4d.24xlarge"].prices["spot"]
    assert rows["p4d.24xlarge"].sources["on-demand"].as_of == "2026-11-09"


def test_a_machine_in_another_region_is_the_machine_that_the_catalog_knows():
    take("skypilot:aws")
    (north,) = [o for o in load_catalog().offers if (o.instance, o.region) == ("p5.48xlarge", "eu-north-1")]
    known_one = p5(shipped())
    assert (north.network_bytes_per_s, north.interconnect) == (known_one.network_bytes_per_s, known_one.interconnect)
    assert north.network_bytes_per_s
    assert north.source_of("usd_per_hour").digest == content("skypilot:aws").digest
    assert north.source_of("network_bytes_per_s").digest is None


def test_many_regions_of_one_instance_are_one_price_of_the_median():
    take("skypilot:aws")
    first = median_prices(load_catalog().offers)["h100-80gb-sxm"]
    line = documents("skypilot:aws")[0].decode().splitlines()[4]
    many = "".join(f"{line.replace('eu-north-1', f'region-{number}')}\n" for number in range(30))
    whole = replace(content("skypilot:aws"), documents=(documents("skypilot:aws")[0] + many.encode(),))
    assert take("skypilot:aws", whole).rows == 35
    assert median_prices(load_catalog().offers)["h100-80gb-sxm"] == first


def test_a_plan_takes_the_cheapest_region_of_a_machine():
    take("skypilot:aws", edited("skypilot:aws", "55.04,,eu-north-1", "49.00,,eu-north-1"))
    settings = {"samples": 1000, "on": "h100-sxm:8", "where": "provider=aws terms=on-demand"}
    result = gpuwise.plan("gpt2", **settings)
    assert {plan.offer.region for plan in result.plans if plan.offer.instance == "p5.48xlarge"} == {"eu-north-1"}
    assert "the same machine is cheaper in another region" in result.rejected
    here = gpuwise.plan("gpt2", **settings, region="us-east-1")
    assert here.best.offer.region == "us-east-1"


def test_the_users_own_price_overrides_both(tmp_path: Path):
    take("skypilot:aws")
    own = '[[offer]]\nprovider = "aws"\ninstance = "p5.48xlarge"\nregion = "us-east-1"\non_demand_usd_per_hour = 40\n'
    (tmp_path / "config" / "own.toml").write_text(own)
    assert p5(load_catalog()).usd_per_hour == 40
    assert p5(load_catalog(), "spot").usd_per_hour == 16.2


def test_with_the_cache_switched_off_nothing_is_read_or_kept(monkeypatch: pytest.MonkeyPatch):
    take("skypilot:aws")
    monkeypatch.setenv("GPUWISE_NO_CACHE", "1")
    assert p5(load_catalog()).usd_per_hour == p5(shipped()).usd_per_hour
    with pytest.raises(InputError, match="GPUWISE_NO_CACHE is set"):
        take("skypilot:aws")


def test_the_day_is_that_of_the_list_where_the_server_says_that_it_is_older():
    assert take("skypilot:aws", replace(content("skypilot:aws"), day=date(2026, 3, 1))).as_of == "2026-03-01"
    assert take("vast", replace(content("vast"), day=date(2031, 1, 1))).as_of == "2026-11-09"  # a clock that is ahead


def test_a_chip_that_this_version_does_not_have_leaves_the_shipped_prices(kept: Path):
    take("skypilot:aws")
    whole = refreshed.read_list(kept / "aws.json")
    (kept / "aws.json").write_bytes(replace(whole, offers=({**whole.offers[0], "chip": "of-the-future"},)).to_bytes())
    catalog = load_catalog()
    assert p5(catalog).usd_per_hour == p5(shipped()).usd_per_hour
    assert "unknown chip 'of-the-future'" in catalog.ignored_lists[0]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "of another version", "not ours", "a folder"])
def test_a_damaged_list_leaves_the_shipped_prices_and_is_named(damage: str, kept: Path):
    take("skypilot:aws")
    path = kept / "aws.json"
    data = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes(
            {
                "cut": data[: len(data) // 2],
                "flipped": data.replace(b"55.04", b"05.04"),
                "empty": b"",
                "of another version": replace(refreshed.read_list_of(data), parser=1)
                .to_bytes()
                .replace(b"gpuwise-prices", b"x"),
                "not ours": b"{}\n",
            }[damage]
        )
    catalog = load_catalog()
    assert p5(catalog).usd_per_hour == p5(shipped()).usd_per_hour
    assert str(path) in catalog.ignored_lists[0]
    assert "cannot be read" in run("offers", "h100-sxm", "provider=aws").stdout
    assert any(note.kind == "price-list-ignored" for note in api.doctor().problem_notes)
    assert take("skypilot:aws").state == TAKEN if damage != "a folder" else True


# --- gates of lists


def offers(count: int, usd: float = 2.0, chip: str = "l40s") -> list[ListedOffer]:
    return [ListedOffer("aws", f"m{number}", "here", chip, 1, usd, None) for number in range(count)]


@pytest.mark.parametrize(
    ("new", "last", "why"),
    [
        ([], offers(1), "no row of it passes"),
        (offers(69), offers(100), "69 rows where the last one had 100"),
        (offers(80), [*offers(80), *offers(1, chip="l4")], "it has no l4"),
        (offers(10, 2.62), offers(10, 2.0), r"moved by \+31%"),
        (offers(10, 1.38), offers(10, 2.0), "moved by -31%"),
        (offers(9) + offers(1, 0.01), [], "under a quarter"),
        (offers(10, 2.58), offers(10, 2.0), ""),
        (offers(70), offers(100), ""),
        (offers(5), [], ""),
    ],
)
def test_gates_of_lists(new: list[ListedOffer], last: list[ListedOffer], why: str):
    reasons = "; ".join(failed_gates(new, last, yardstick()))
    assert bool(reasons) == bool(why)
    if why:
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(reasons)


def test_hosts_of_a_marketplace_come_and_go():
    last = [*offers(9), *offers(1, chip="l4"), *offers(1, chip="t4"), *offers(1, chip="a40")]
    now = [*offers(9), *offers(1, chip="l4"), *offers(1, chip="t4")]
    assert failed_gates(now, last, yardstick())
    assert failed_gates(now, last, yardstick(), marketplace=True) == []


def test_a_list_that_fails_leaves_the_last_good_one_with_its_own_day():
    take("skypilot:aws")
    later = edited("skypilot:aws", "55.04", "3.30")
    outcome = refresh(request_of("skypilot:aws"), later, shipped=shipped(), by=yardstick(), now=NOW.replace(day=20))
    assert (outcome.state, outcome.as_of) == (KEPT_LAST, "2026-11-09")
    assert "under a quarter" in " ".join(outcome.why)
    assert (p5(load_catalog()).usd_per_hour, p5(load_catalog()).as_of) == (55.04, "2026-11-09")
    taken = take("skypilot:aws", later, accept=True)
    assert (taken.state, taken.overridden) == (TAKEN, True)
    assert p5(load_catalog()).usd_per_hour == 3.30


def test_accepting_a_list_without_rows_takes_nothing():
    outcome = take("skypilot:gcp", accept=True)
    assert outcome.state == KEPT_LAST
    assert refreshed.refreshed_files() == ()


def test_another_source_is_judged_by_itself():
    take("skypilot:aws")
    outcome = take("gpuhunt:aws")
    assert (outcome.state, outcome.rows) == (TAKEN, 3)
    assert p5(load_catalog(), "spot").usd_per_hour == 17.1
    nothing = take("gpuhunt:aws", edited("gpuhunt:aws", "False", "no"))
    assert (nothing.state, nothing.as_of) == (KEPT_LAST, "2026-11-09")


def test_a_kept_list_that_goes_while_the_server_says_unchanged_is_an_error():
    with pytest.raises(PriceListError, match="has gone meanwhile"):
        refresh(request_of("aws"), None, shipped=shipped(), by=yardstick())


def test_the_same_bytes_again_change_nothing(kept: Path):
    take("skypilot:aws")
    before = (kept / "aws.json").read_bytes()
    outcome = refresh(
        request_of("skypilot:aws"), content("skypilot:aws"), shipped=shipped(), by=yardstick(), now=NOW.replace(day=20)
    )
    assert (outcome.state, outcome.rows, outcome.as_of) == (UNCHANGED, 5, "2026-11-09")
    assert (kept / "aws.json").read_bytes() == before


def test_moves_are_those_from_the_list_before():
    first = take("skypilot:aws")
    assert any(move.instance == "p5.48xlarge" and move.before_usd == p5(shipped()).usd_per_hour for move in first.moves) or (
        p5(shipped()).usd_per_hour == 55.04
    )
    second = take("skypilot:aws", edited("skypilot:aws", ",16.2,", ",15.39,"))
    (move,) = second.moves
    assert (move.instance, move.terms, move.before_usd, move.after_usd) == ("p5.48xlarge", "spot", 16.2, 15.39)
    assert move.change == pytest.approx(-0.05)


# --- interruptions


def test_a_published_class_counts_and_the_guess_stands_beside_it():
    take("skypilot:aws")
    offer = p5(load_catalog(), "spot")
    assert (spot_rate(offer).per_day, spot_rate(offer).published) == (1.0, None)
    take("spot-advisor")
    rate = spot_rate(offer)
    assert rate.guess_per_day / rate.per_day == pytest.approx(593, abs=1)
    assert rate.published is not None
    assert (rate.published.label, rate.published.source.as_of) == ("<5%", "2026-11-09")
    terms, assumed = rental(offer, parameters=10**9)
    assert terms.interruptions_per_day == pytest.approx(rate.per_day + 8 / 365 / 5.79, rel=0.01)
    (note,) = [note for note in assumed if note.kind == "published-interruptions"]
    assert note.figures["guess_per_day"] == 1
    assert "AWS's Spot Instance Advisor" in note.text
    assert "a guess" in note.text
    assert rental(offer, parameters=10**9, interruptions_per_day=3)[0].interruptions_per_day > 3  # the user's own rate


def test_elsewhere_and_on_demand_nothing_is_published():
    take("spot-advisor")
    offer = p5(load_catalog())
    assert spot_rate(replace(offer, terms="spot", region="mars")).published is None
    assert spot_rate(replace(offer, terms="spot", provider="azure")).published is None
    assert refreshed.sourced_interruptions(offer) is None


def test_a_rate_is_that_at_which_the_share_is_interrupted_in_a_month():
    import math

    from gpuwise.plan.economics.spot_rate import DAYS_A_MONTH, per_day

    for share in (0.05, 0.2, 0.4):
        assert 1 - math.exp(-per_day(share) * DAYS_A_MONTH) == pytest.approx(share)


# --- over the network


def ports(port: int) -> HttpsClient:
    return HttpsClient(limit_s=5, loopback={source.host: port for source in SOURCES.values()})


def test_a_list_is_fetched_and_then_unchanged():
    headers = ('ETag: "one"', "Last-Modified: Sun, 08 Nov 2026 04:05:06 GMT")
    with server(answer(documents("skypilot:aws")[0], headers=headers), answer(status="304 Not Modified")) as (port, requests):
        first = api.refresh_offers("aws", client=ports(port))
        again = api.refresh_offers("aws", client=ports(port))
    assert [outcome.state for outcome in (*first, *again)] == [TAKEN, UNCHANGED]
    assert first[0].as_of == "2026-11-08"
    assert requests[0].startswith(b"GET /catalogs/v8/aws/vms.csv ")
    assert b"If-None-Match" not in requests[0]
    assert b'If-None-Match: "one"' in requests[1]


def test_gpuhunts_version_leads_to_its_archive():
    packed = archive("aws.csv", documents("gpuhunt:aws")[0])
    with server(answer(b"20261109-42\n"), answer(packed)) as (port, requests):
        (outcome,) = api.refresh_offers("gpuhunt:aws", client=ports(port))
    assert outcome.state == TAKEN
    assert requests[1].startswith(b"GET /v3/aws/20261109-42/catalog.zip ")
    with server(answer(b"../../secrets")) as (port, _):
        (outcome,) = api.refresh_offers("gpuhunt:aws", client=ports(port))
    assert outcome.state == FAILED


def test_pages_are_followed_within_the_host():
    first, second = documents("azure")
    with server(answer(first), answer(second)) as (port, requests):
        (outcome,) = api.refresh_offers("azure", client=ports(port))
    assert (outcome.state, outcome.rows) == (TAKEN, 2)
    assert requests[1].startswith(b"GET /api/retail/prices?$skip=1000 ")
    elsewhere = first.replace(b"https://prices.azure.com:443/", b"https://evil.example.com/")
    with server(answer(elsewhere)) as (port, _):
        (outcome,) = api.refresh_offers("azure", client=ports(port))
    assert "none of the allowed hosts" in outcome.why[0]
    with server(answer(first)) as (port, _):  # a first page that is always followed by itself
        (outcome,) = api.refresh_offers("azure", client=ports(port))
    assert "more than 64 pages" in outcome.why[0]


def test_one_list_that_fails_does_not_stop_the_others():
    def by_path(connection: object, request: bytes) -> None:
        body = documents("skypilot:aws")[0] if b"/aws/" in request else b"<html>"
        answer(body)(connection, request)  # type: ignore[arg-type]

    with server(by_path) as (port, _):
        outcomes = api.refresh_offers(client=ports(port))
    states = {outcome.provider: outcome.state for outcome in outcomes}
    assert states.pop("aws") == TAKEN
    assert set(states.values()) == {FAILED}
    assert len(states) == 7


def test_nothing_is_fetched_without_refresh(monkeypatch: pytest.MonkeyPatch):
    import socket

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for arguments in (("offers", "t4"), ("offers", "--diff"), ("offers", "--quarantined"), ("doctor",)):
        assert run(*arguments).exit_code == 0
    assert run("offers", "--from", str(FOLDER / "vast.json")).exit_code == 0


# --- two at once, and folders that cannot be written


def test_refreshes_at_once_leave_one_whole_list(kept: Path):
    lists = [edited("skypilot:aws", ",16.2,", f",{16 + number / 100},") for number in range(8)]
    outcomes: list[RefreshOutcome] = []
    threads = [threading.Thread(target=lambda each=each: outcomes.append(take("skypilot:aws", each))) for each in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.state for outcome in outcomes] == [TAKEN] * 8
    assert refreshed.read_list(kept / "aws.json").sha256 in {each.digest for each in lists}
    assert sorted(path.name for path in kept.iterdir()) == ["aws.json", "lock"]


def test_a_lock_that_does_not_come_free_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "LOCK_WAIT_S", 0.0)
    with store.locked(), pytest.raises(PriceListError, match="another refresh"):
        take("skypilot:aws")


def test_a_full_disk_leaves_the_last_good_list(kept: Path, monkeypatch: pytest.MonkeyPatch):
    take("skypilot:aws")
    before = (kept / "aws.json").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PriceListError, match="No space left on device"):
        take("skypilot:aws", edited("skypilot:aws", ",16.2,", ",16.3,"))
    assert (kept / "aws.json").read_bytes() == before
    assert sorted(path.name for path in kept.iterdir()) == ["aws.json", "lock"]


# --- on the command line


def test_files_are_recognised():
    for name, files in LISTS.items():
        if name == "gpuhunt:aws":
            continue
        provider = name.split(":")[-1]
        names = (name,) if ":" in name else ()
        pages = [part for file in files for part in ("--from", str(FOLDER / file))]
        result = run("offers", *(("--refresh", *names) if names else ()), *pages, "--json")
        (outcome,) = json.loads(result.stdout)
        assert (outcome["provider"], outcome["state"]) == (provider, "kept-last" if provider == "gcp" else "taken")
        assert result.exit_code == (2 if provider == "gcp" else 0)


def test_a_file_is_recognised_by_its_folder(tmp_path: Path):
    path = tmp_path / "aws" / "vms.csv"
    path.parent.mkdir()
    path.write_bytes(documents("skypilot:aws")[0])
    assert api.refresh_from(str(path)).provider == "aws"
    packed = tmp_path / "catalog.zip"
    packed.write_bytes(archive("aws.csv", documents("gpuhunt:aws")[0]))
    assert api.refresh_from(str(packed)).source == "gpuhunt's catalog v3 of aws"
    assert api.refresh_from(str(packed), name="aws").source == "gpuhunt's catalog v3 of aws"  # the bytes say whose list it is


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--refresh", "awz"), "no price list of 'awz'"),
        (("--from", "nowhere.json"), "cannot be read"),
        (("--from", str(FOLDER / "__init__.py")), "no list that is recognised"),
        (("--from", str(FOLDER / "gpuhunt-aws.csv")), "says of which provider"),
        (("--refresh", "aws", "gcp", "--from", str(FOLDER / "vast.json")), "several are named"),
        (("--accept",), "being fetched"),
        (("--refresh", "--spot"), "exclude each other"),
        (("--diff", "--quarantined"), "exclude each other"),
    ],
)
def test_bad_input_is_explained(arguments: tuple[str, ...], words: str):
    result = run("offers", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_hosts_are_named_first_and_a_failure_is_an_exit_code(monkeypatch: pytest.MonkeyPatch):
    import socket

    def no_network(*arguments: object, **more: object) -> None:
        raise socket.gaierror(-3, "no network")

    monkeypatch.setattr(socket, "create_connection", no_network)
    result = run("offers", "--refresh", "aws", "spot-advisor")
    assert result.exit_code == 2
    assert result.stderr.startswith("asking skypilot-catalog.s3.us-east-1.amazonaws.com, spot-bid-advisor.s3.amazonaws.com")
    assert "cannot be reached from here" in result.stdout
    assert "as shipped" in result.stdout


def test_what_was_left_out_is_listed_and_counted():
    take("vast")
    shown = run("offers", "--quarantined").stdout
    assert "spot price 0.00: unknown, not free" in shown
    assert "5 rows of fetched lists that no plan uses." in shown
    rows = json.loads(run("offers", "--quarantined", "vast", "--json").stdout)
    assert {row["provider"] for row in rows} == {"vast"}
    assert json.loads(run("offers", "--quarantined", "aws", "--json").stdout) == []
    (fetched,) = json.loads(run("doctor", "--json").stdout)["price_lists"]
    assert (fetched["provider"], fetched["as_of"], fetched["quarantined"]) == ("vast", "2026-11-09", 5)
    assert "vast of 2026-11-09" in run("doctor").stdout


def test_prices_that_moved_from_the_shipped_ones():
    take("vast")
    shown = run("offers", "--diff").stdout
    assert "vast 1x-rtx-4090" in shown
    moves = json.loads(run("offers", "--diff", "vast", "--json").stdout)
    (move,) = [m for m in moves if m["instance"] == "1x-rtx-4090" and m["terms"] == "on-demand"]
    assert move["after_usd"] == 0.37
    assert move["change"] == pytest.approx(0.37 / move["before_usd"] - 1)
    again = run("offers", "--from", str(FOLDER / "vast.json"), "--diff").stdout
    assert "unchanged" in again


def test_a_plan_keeps_the_source_of_its_price(tmp_path: Path):
    take("skypilot:aws")
    arguments = (
        "plan",
        "gpt2",
        "--samples",
        "1000",
        "--on",
        "h100-sxm:8",
        "--where",
        "provider=aws",
        "-o",
        str(tmp_path / "plan.toml"),
    )
    assert run(*arguments).exit_code == 0
    assert f'digest = "{content("skypilot:aws").digest}"' in (tmp_path / "plan.toml").read_text()
    assert gpuwise.load_plan(tmp_path / "plan.toml").offer.source_of("usd_per_hour").as_of == "2026-11-09"
