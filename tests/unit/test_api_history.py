"""The history of what was measured here: kept line by line, whatever became of other lines, and preferred by forecasts."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import gpuwise
from gpuwise.api import history, measured
from gpuwise.api.forecasting import forecast_step
from gpuwise.api.history import HistoryEntry
from gpuwise.api.sources import source_of
from gpuwise.results.validation import METHOD
from gpuwise.trace.digest import digest

ENTRY = HistoryEntry(
    date="2026-11-20T12:00:00+00:00",
    machine="amd-2c",
    chip="here-cpu",
    job="tiny",
    digest="d" * 32,
    method=METHOD,
    strategy={"mode": "train"},
    median_s=0.010,
    low_s=0.0098,
    high_s=0.0103,
    steps=50,
    forecast_s=0.012,
    forecast_low_s=0.008,
    forecast_high_s=0.02,
    provenance="datasheet only",
    threads=1,
    openmp="1",
    torch="2.13.0",
    gpuwise="0.1.0",
    sizes={"seq_len": 8},
    memory_bytes=1000,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history of its own. Returns its file."""
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "state" / "gpuwise" / "history.jsonl"


def test_what_is_appended_is_read_again(home: Path):
    second = replace(ENTRY, job="other", digest="e" * 32, memory_bytes=None)
    assert history.append(ENTRY) == history.append(second) == ""
    assert history.path() == home
    assert history.entries() == [ENTRY, second]
    assert history.entries("e" * 32) == [second]
    assert home.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1, 2]",
        '{"job": "half a li',
        json.dumps({**asdict(ENTRY), "median_s": -1}),
        json.dumps({**asdict(ENTRY), "median_s": "soon"}),
        json.dumps({**asdict(ENTRY), "steps": 0}),
        json.dumps({**asdict(ENTRY), "job": None}),
        json.dumps({**asdict(ENTRY), "strategy": []}),
        json.dumps({key: value for key, value in asdict(ENTRY).items() if key != "digest"}),
        "[" * 100_000,
        "\x00\xff",
    ],
)
def test_a_damaged_line_is_skipped_with_a_warning(home: Path, line: str):
    history.append(ENTRY)
    with open(home, "a") as file:
        file.write(line + "\n")
    history.append(ENTRY)
    with pytest.warns(UserWarning, match="1 line is damaged"):
        assert history.entries() == [ENTRY, ENTRY]


def test_a_line_cut_short_does_not_take_the_next_with_it(home: Path):
    history.append(ENTRY)
    with open(home, "a") as file:
        file.write('{"job": "half')
    history.append(ENTRY)
    with pytest.warns(UserWarning, match="damaged"):
        assert history.entries() == [ENTRY, ENTRY]


def test_fields_of_a_later_version_are_left_out(home: Path):
    home.parent.mkdir(parents=True)
    home.write_text(json.dumps({**asdict(ENTRY), "weather": "fine"}) + "\n")
    assert history.entries() == [ENTRY]


def test_the_oldest_lines_go_where_it_grows_too_long(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history, "LIMIT_BYTES", 5000)
    for number in range(1, 21):
        history.append(replace(ENTRY, steps=number))
        assert home.stat().st_size <= 5000
    kept = [entry.steps for entry in history.entries()]
    assert kept == list(range(kept[0], 21))
    assert list(home.parent.iterdir()) == [home]


def test_a_folder_that_cannot_be_written_is_told(home: Path):
    home.parent.parent.mkdir()
    home.parent.write_text("a file in the place of the folder")
    assert "the history cannot be kept" in history.append(ENTRY)
    assert history.entries() == []


def test_it_is_switched_off_with_the_cache(home: Path, monkeypatch: pytest.MonkeyPatch):
    history.append(ENTRY)
    monkeypatch.setenv("GPUWISE_NO_CACHE", "1")
    assert "GPUWISE_NO_CACHE" in history.append(ENTRY)
    assert history.entries() == []


def test_no_pipe_is_waited_for(home: Path):
    home.parent.mkdir(parents=True)
    os.mkfifo(home)
    assert history.entries() == []


def an_entry(micro_batch: int = 64, **changes: object) -> HistoryEntry:
    """An entry of the tabular MLP on this machine."""
    priced = forecast_step(source_of("tabular-mlp"), "here:1", micro_batch=micro_batch, precision="fp32")
    name = digest(priced.trace, priced.forecast.strategy)
    result = replace(
        ENTRY,
        digest=name,
        machine=measured.machine_key(),
        chip=priced.device.chip.id,
        torch=measured.torch_version(),
        threads=_threads(),
    )
    return replace(result, **changes)


def _threads() -> int:
    import sys

    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else 1


def forecast(**settings: object) -> gpuwise.Forecast:
    return gpuwise.forecast("tabular-mlp", on="here:1", precision="fp32", **{"micro_batch": 64, **settings})


def test_a_step_of_one_thread_takes_no_time_of_several():
    priced = forecast_step(source_of("tabular-mlp"), "here:1", micro_batch=64, precision="fp32")
    history.append(an_entry())
    on = [replace(priced.device.chip, sm_count=cores) for cores in (_threads(), 0.5 * _threads())]
    same, fewer = (measured.as_last_measured(priced.forecast, priced.trace, priced.forecast.strategy, chip) for chip in on)
    assert same.step_time_s.value == ENTRY.median_s
    assert fewer.step_time_s.value == priced.forecast.step_time_s.value


def test_a_forecast_takes_what_was_measured_here():
    model = forecast()
    history.append(an_entry())
    answer = forecast()
    assert answer.step_time_s.value == ENTRY.median_s
    assert answer.step_time_s.low == pytest.approx(0.95 * ENTRY.median_s)  # the percentiles lie nearer
    assert answer.step_time_s.high == pytest.approx(1.05 * ENTRY.median_s)
    assert answer.provenance["step_time_s"] == "measured here"
    assert answer.rests_on == {"measured here": 1.0}
    factor = ENTRY.median_s / model.step_time_s.value
    assert answer.throughput == pytest.approx(64 / ENTRY.median_s)
    assert answer.mfu == pytest.approx(model.mfu / factor)
    assert (answer.memory, answer.flops_per_step, answer.bound) == (model.memory, model.flops_per_step, model.bound)
    text = next(line for line in answer.assumptions if "measured here on 2026-11-20" in line)
    assert "10 ms a step over 50 steps" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": "another"},
        {"chip": "xeon-8480plus"},
        {"torch": "1.0"},
        {"threads": 999},
        {"method": METHOD + 1},
        {"digest": "0" * 32},
        {"micro_batch": 65},
    ],
)
def test_only_this_very_step_on_this_machine_counts(changes: dict[str, object]):
    import torch  # noqa: F401 - loaded, it is asked for its threads

    history.append(an_entry(**changes))
    assert "measured here" not in forecast().provenance["step_time_s"]


def test_other_devices_and_waiting_for_data_are_not_measured():
    history.append(an_entry())
    elsewhere = gpuwise.forecast("tabular-mlp", on="t4", precision="fp32", micro_batch=64)
    assert elsewhere.step_time_s.value != ENTRY.median_s
    slow = forecast(loader_samples_per_s=1.0)
    assert slow.step_time_s.value > 60
    priced = forecast_step(source_of("tabular-mlp"), "here:1", micro_batch=64, precision="fp32", history=False)
    assert priced.forecast.step_time_s.value != ENTRY.median_s


def test_the_last_counts_and_the_interval_spans_those_before():
    history.append(an_entry(median_s=0.02, low_s=0.019, high_s=0.021))
    history.append(an_entry())
    answer = forecast().step_time_s
    assert (answer.value, answer.high) == (ENTRY.median_s, 0.021)
    assert answer.low == pytest.approx(0.95 * ENTRY.median_s)


def test_a_step_that_others_slowed_down_is_no_forecast_of_a_free_machine():
    before = forecast()
    slow_s = 10 * before.step_time_s.high
    history.append(an_entry(median_s=slow_s, low_s=slow_s, high_s=slow_s, disturbed=True))
    after = forecast()
    assert (after.step_time_s, after.measured, after.provenance) == (before.step_time_s, None, before.provenance)
    (added,) = set(after.assumptions) - set(before.assumptions)
    assert "while other programs used the machine" in added
    assert "until validate runs on one" in added


def test_a_quiet_measurement_is_preferred_to_a_disturbed_one():
    model = forecast().step_time_s
    short_s = model.low / 2
    history.append(an_entry(median_s=short_s, low_s=short_s, high_s=short_s, disturbed=True))
    alone = forecast()
    assert alone.step_time_s.value == short_s
    assert any("held the machine up" in line for line in alone.assumptions)
    # On a free machine the step may take as long as the model says.
    assert alone.step_time_s.low <= model.low
    assert alone.step_time_s.high >= model.high
    history.append(an_entry())
    history.append(an_entry(median_s=0.05, low_s=0.05, high_s=0.05, disturbed=True))
    answer = forecast().step_time_s
    assert answer.value == ENTRY.median_s
    assert answer.high < 0.05
