"""The shipped data files as they are kept between processes: the same tables, whatever became of what was kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwise.hardware import Catalog
from gpuwise.hardware.catalog import DATA
from gpuwise.hardware.toml_cache import OFF, cached_tables

TEXT = b'[chip.a]\nmemory_gib = 80\nname = "A"\n'
TABLES = {"chip": {"a": {"memory_gib": 80, "name": "A"}}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(OFF)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpuwise" / "catalog"


def test_what_was_kept_is_read_and_not_parsed_again(home: Path, monkeypatch: pytest.MonkeyPatch):
    assert cached_tables("chips", TEXT) == TABLES
    assert [path.name for path in home.iterdir()] == ["chips.json"]
    monkeypatch.setattr("gpuwise.hardware.toml_cache.parse_toml", lambda text: pytest.fail("it was parsed"))
    assert cached_tables("chips", TEXT) == TABLES


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: b"",
        lambda kept: b"\xff",
        lambda kept: kept[:-9],
        lambda kept: kept.replace(b"80", b"90"),
        lambda kept: kept.partition(b"\n")[0] + b"\n{}",
        lambda kept: b"[" * 100_000,
    ],
)
def test_a_damaged_entry_is_made_again(damage: Callable[[bytes], bytes], home: Path):
    cached_tables("chips", TEXT)
    whole = (home / "chips.json").read_bytes()
    (home / "chips.json").write_bytes(damage(whole))
    assert cached_tables("chips", TEXT) == TABLES
    assert (home / "chips.json").read_bytes() == whole


def test_another_version_of_the_file_takes_its_place(home: Path):
    cached_tables("chips", TEXT)
    assert cached_tables("chips", b"a = 1") == {"a": 1}
    assert cached_tables("chips", TEXT) == TABLES
    assert len(list(home.iterdir())) == 1


def test_a_date_is_not_kept_and_a_folder_that_cannot_be_made_harms_nothing(home: Path):
    assert list(cached_tables("dated", b"day = 2026-07-20")) == ["day"]
    assert not home.exists()
    home.parent.mkdir()
    home.write_text("a file")
    assert cached_tables("chips", TEXT) == TABLES


def test_nothing_is_kept_where_the_user_wants_that_or_of_files_that_do_not_ship(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "chips").mkdir()
    (tmp_path / "chips" / "own.toml").write_bytes(b"")
    assert Catalog(data=tmp_path, user_files=[tmp_path / "chips" / "own.toml"]).chips == {}
    monkeypatch.setenv(OFF, "1")
    assert cached_tables("chips", TEXT) == TABLES
    assert not home.exists()


def test_the_catalog_is_the_same_from_what_was_kept(home: Path):
    fresh = Catalog()
    assert fresh.chips
    assert fresh.links
    names = {f"{path.parent.name}-{path.stem}.json" for path in (*DATA.glob("chips/*.toml"), DATA / "links.toml")}
    assert {path.name for path in home.iterdir()} == names
    again = Catalog()
    assert (again.chips, again.links) == (fresh.chips, fresh.links)
