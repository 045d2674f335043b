"""The report of a measurement: every figure with its unit, nothing lost at any width, and unknown is never 0."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from measure_samples import CPU, DETECTED, EMPTY, GPU, INCOMPLETE, SAMPLES, UNKNOWN_SHEET, timing
from rich.console import Console

from gpuwise.report.detected import detected_words
from gpuwise.report.json import to_json
from gpuwise.report.machine_text import LETTERS
from gpuwise.report.measure import GROUP_WORDS, achieved, measure_report, rate_of, row_words
from gpuwise.results.measurement import GROUPS, METHOD, MeasuredRow


def text(report: object, width: int = 160) -> str:
    out = StringIO()
    Console(file=out, width=width).print(report)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def flat(shown: str) -> str:
    """On one line, wherever it was wrapped."""
    return " ".join(shown.split())


def line(shown: str, *words: str) -> str:
    """The one line that has all the words."""
    results = [line for line in shown.splitlines() if all(word in line for word in words)]
    assert len(results) == 1, (words, shown)
    return results[0]


def test_every_group_has_words_and_letters_are_of_groups():
    assert tuple(GROUP_WORDS) == GROUPS
    assert set(LETTERS) <= set(GROUPS)
    assert len(set(LETTERS.values())) == len(LETTERS)


def test_it_shows_each_roof_beside_its_datasheet():
    shown = text(measure_report(CPU))
    assert shown.startswith("AMD EPYC 9R14, 2 cores, 7.5 GiB: full sweep, 31 microbenchmarks in 4.22 min")
    assert line(shown, "473 GFLOP/s").split() == "bf16 473 GFLOP/s 390 GFLOP/s 82 % ± 2.1 % 2048 x 2048 x 2048".split()
    assert line(shown, " 38 GB/s").split() == "memory - 38 GB/s 31 GB/s 82 % ± 1.3 %".split()
    assert line(shown, "± 5.0 %").split() == "L3 32 MiB - 88 GB/s - ± 5.0 %".split()
    assert "bf16: 12.6 operations a byte; fp32: 6.61 operations a byte" in shown
    assert "all_reduce: 1.9 GB/s; broadcast: 2.1 GB/s" in line(shown, "  collectives ")  # the best of their sizes


def test_it_shows_every_benchmark_with_its_time_and_rate():
    shown = text(measure_report(CPU))
    row = line(shown, "product 4096 x 4096 x 4096", "bf16")
    assert row.split() == "product 4096 x 4096 x 4096 bf16 395 ms (387 to 403) 348 GFLOP/s".split()
    assert "24.8 GB/s" in line(shown, "AdamW, fused")  # bound by bytes: operations a second would say little
    assert line(shown, "broadcast 64 MiB").count("?") == 1
    assert "30 of 31; those marked ? were not" in flat(shown)
    for group in dict.fromkeys(row.group for row in CPU.rows):
        assert f"\n{GROUP_WORDS[group]}\n" in shown
    checked = text(measure_report(replace(CPU, rows=CPU.rows[:3])))
    assert "another computation: all." in flat(checked)
    assert "?" not in checked


def test_it_says_what_was_detected_what_disturbed_it_and_what_it_is_for():
    shown = text(measure_report(CPU))
    assert "AMD EPYC 9R14, 2 cores, 2 threads, avx512, avx512-bf16, L1 32 KiB, L2 1 MiB, L3 32 MiB" in shown
    assert "limited to 2 processors" in line(shown, "container")
    assert "here-cpu, device cpu of PyTorch" in line(shown, "counts as")
    assert f"2026-05-04 12:30 UTC by method {METHOD}, PyTorch 2.13.0" in line(shown, "  measured  ", "UTC")
    assert "  - other processes used 31 % of the processors meanwhile" in shown
    assert "--on here` uses /home/me/.config/gpuwise/here/epyc-2c.toml from now on" in shown
    assert "off by 6 % in the median" in flat(shown)
    assert "power limit 650 W (default 700 W), driver 580.65" in line(text(measure_report(GPU)), "  GPUs ")
    assert "2 sockets, NVLink (1 pair of GPUs)" in line(text(measure_report(GPU)), "  joined by ")
    assert "Linux 6.18, a virtual machine" in shown


def test_what_is_not_known_is_a_dash():
    shown = text(measure_report(UNKNOWN_SHEET))
    assert line(shown, "2048 x 2048 x 2048").split()[:4] == ["bf16", "-", "390", "GFLOP/s"]
    assert line(shown, "± 1.3 %").split() == "memory - - 31 GB/s - ± 1.3 %".split()
    assert "off by" not in text(measure_report(replace(CPU, error=None)))


def test_one_that_was_ended_early_says_so():
    for sample in (EMPTY, INCOMPLETE):
        shown = text(measure_report(sample))
        assert "full sweep, ended early" in shown
        assert "what was not measured until then is missing" in shown
        assert "forecasts on `here` are as they were before" in shown
        assert "peaks of arithmetic" not in shown
    assert "No microbenchmark was finished." in text(measure_report(EMPTY))


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("name", SAMPLES)
def test_it_keeps_to_the_width_and_loses_no_words(name: str, width: int):
    sample = SAMPLES[name]
    shown = text(measure_report(sample), width)
    assert all(len(row) <= width for row in shown.splitlines())
    assert "…" not in shown
    assert all(achieved(row) in flat(shown) for row in sample.rows)
    if width == 160:  # a row each
        assert all(line(shown, f"{row_words(row)} ", row.dtype, achieved(row)) for row in sample.rows[:4])


def test_rates_have_the_unit_of_their_kind():
    busy = MeasuredRow("gemm", "product", timing(1e-3), "fp32", {"m": 1, "k": 2, "n": 3}, 10**9, 10**6)
    assert (achieved(busy), rate_of(busy), row_words(busy)) == ("1 TFLOP/s", 1e12, "product 1 x 2 x 3")
    stream = replace(busy, group="memory", sizes={"working_set_bytes": 2**20})
    assert (achieved(stream), row_words(stream)) == ("1 GB/s", "product 1 MiB")
    only_timed = MeasuredRow("step", "a step", timing(1e-6), "fp32")
    assert (achieved(only_timed), rate_of(only_timed), row_words(only_timed)) == ("-", 0, "a step")


def test_detected_parts_of_other_versions_are_left_out():
    assert detected_words({}) == []
    assert detected_words({"cpu": None, "gpus": None, "disks": [{}], "new": {"odd": 1}}) == []
    assert [label for label, _ in detected_words(DETECTED)] == ["processor", "memory", "container", "disks", "system"]


@pytest.mark.parametrize("name", SAMPLES)
def test_json_is_the_whole_of_it(name: str):
    plain = json.loads(to_json(SAMPLES[name].to_dict()))
    assert {
        "machine",
        "chip",
        "device",
        "taken",
        "seconds",
        "quick",
        "complete",
        "interrupted",
        "rows",
        "peaks",
        "memory",
        "notes",
        "typed_notes",
        "calibration",
        "error",
        "detected",
        "method",
        "torch_version",
        "ridges",
    } == set(plain)
    assert [MeasuredRow.from_dict(row) for row in plain["rows"]] == list(SAMPLES[name].rows)
