"""Pipes, devices and folders in place of the files gpuwise reads, and numbers in them that no float holds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwise.api import history
from gpuwise.atomic import written_whole
from gpuwise.cli.main import main
from gpuwise.errors import FileFormatError, GpuwiseError
from gpuwise.hardware.toml_cache import cached_tables
from gpuwise.plain_files import open_regular, parse_json, parse_toml, read_regular
from gpuwise.plan.file import load_plan, save_plan
from gpuwise.trace import load
from gpuwise.units import parse_bytes, parse_count, parse_duration, parse_usd

HUGE = "1" + "0" * 400  # a whole number that no float holds


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


@pytest.fixture(params=[pipe, folder, device])
def odd(request: pytest.FixtureRequest):
    return request.param


def test_only_a_regular_file_is_opened(odd, tmp_path: Path):
    with pytest.raises(OSError, match=f"it is a {odd.__name__}, not a regular file"):
        open_regular(odd(tmp_path / "odd"))


def test_a_file_is_read_up_to_its_limit(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", limit_bytes=5) == b"12345"
    with pytest.raises(OSError, match="too large: more than 4 bytes"):
        read_regular(tmp_path / "file", limit_bytes=4)


def test_no_device_is_replaced_by_a_file(tmp_path: Path):
    target = device(tmp_path / "zero")
    with pytest.raises(OSError, match="not a regular file"), written_whole(target) as file:
        file.write(b"x")
    assert target.is_symlink()


def test_among_the_users_files(odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path))
    path = odd(tmp_path / "mine.toml")
    result = run("chips")
    assert result.exit_code == 2
    assert f"{path}: cannot be read (it is a {odd.__name__}" in result.stderr


def test_as_a_plan_or_a_trace(odd, tmp_path: Path):
    with pytest.raises(FileFormatError, match=f"it is a {odd.__name__}"):
        load_plan(odd(tmp_path / "plan.toml"))
    with pytest.raises(FileFormatError, match=f"it is a {odd.__name__}"):
        load(odd(tmp_path / "trace.npz"))


def test_as_the_history(odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    history.path().parent.mkdir()
    odd(history.path())
    assert history.entries() == []


def test_in_place_of_a_cached_catalog_file(odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    (tmp_path / "gpuwise/catalog").mkdir(parents=True)
    odd(tmp_path / "gpuwise/catalog/mine.json")
    assert cached_tables("mine", b"a = 1") == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        f"a = {HUGE}",
        f"[b]\na = [[-{HUGE}]]",
        "a = 0x" + "f" * 10_000,
        "a = " + "1" * 10_000,
        "a." * 2_000 + "b = 1",
        "a = " + "[" * 10_000,
    ],
)
def test_toml_with_numbers_of_any_length_and_keys_of_any_depth_is_refused(text: str):
    with pytest.raises(ValueError, match=r"larger than 64 bits|Exceeds the limit|too many parts|nested too deeply"):
        parse_toml(text)


@pytest.mark.parametrize("text", [HUGE, f'{{"a": [-{HUGE}]}}', "1" * 10_000, "[" * 100_000, "NaN", '{"a": -Infinity}'])
def test_json_with_numbers_of_any_length_is_refused(text: str):
    with pytest.raises(ValueError, match=r"larger than 64 bits|Exceeds the limit|nested too deeply|is no number"):
        parse_json(text)


def test_what_64_bits_hold_is_read():
    assert parse_toml("a = 9223372036854775807\nb = -9223372036854775808") == {"a": 2**63 - 1, "b": -(2**63)}
    assert parse_toml("a = 1e300") == {"a": 1e300}
    assert parse_json(f"[{2**63 - 1}]") == [2**63 - 1]


@pytest.mark.parametrize("parse", [parse_bytes, parse_count, parse_duration, parse_usd])
@pytest.mark.parametrize(
    "text", ["1" * 100_000, "1" * 100_000 + "!", "0." + "1" * 100_000, " " * 100_000 + "1!", "1" + "_" * 100_000]
)
def test_a_quantity_of_any_length_is_read_or_refused_at_once(parse, text: str):
    """These took minutes: what matched the digits before a point and those after it could share them in any way."""
    with pytest.raises(GpuwiseError) as raised:
        parse(text)
    assert len(str(raised.value)) < 1_000


@pytest.fixture(scope="module")
def plan_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    import gpuwise

    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    save_plan(gpuwise.plan("gpt2", samples=1000, on="rtx-4090", limit=1).best, path)
    return path.read_text()


def test_a_plan_with_a_number_no_float_holds_is_damaged(plan_text: str, tmp_path: Path):
    lines = plan_text.splitlines()
    numbers = [n for n, line in enumerate(lines) if line.partition(" = ")[2].replace(".", "").isdigit()]
    assert len(numbers) > 20
    path = tmp_path / "plan.toml"
    for value in (HUGE, "1" * 10_000, "0x" + "f" * 5_000, "1e400", "nan"):
        for n in numbers:
            path.write_text("\n".join([*lines[:n], f"{lines[n].partition(' = ')[0]} = {value}", *lines[n + 1 :]]))
            with pytest.raises(FileFormatError):
                load_plan(path)


def test_a_history_with_a_number_no_float_holds_has_damaged_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    texts = dict.fromkeys(("date", "machine", "chip", "job", "digest", "provenance", "torch", "gpuwise", "openmp"), "x")
    seconds = dict.fromkeys(("median_s", "low_s", "high_s", "forecast_s", "forecast_low_s", "forecast_high_s"), 1.5)
    entry = {**texts, **seconds, "steps": 9, "method": 1, "threads": 2, "strategy": {}}
    history.path().parent.mkdir()
    good = json.dumps(entry)
    bad = [good.replace("1.5", value, 1) for value in (HUGE, "1e400", "NaN", "1" * 10_000)]
    bad += [good.replace('"steps": 9', f'"steps": {value}') for value in (HUGE, "1" * 10_000)]
    history.path().write_text("\n".join([*bad, good]))
    with pytest.warns(UserWarning, match="6 lines are damaged"):
        assert len(history.entries()) == 1
