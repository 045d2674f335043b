"""The roofline of a step: its numbers, the picture as text and as a file, and the command line."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.cli.main import main
from gpuwise.cost.roofline import roofline
from gpuwise.errors import InputError, MissingDependencyError
from gpuwise.hardware import load_catalog
from gpuwise.report.roofline_picture import save_picture, text_picture
from gpuwise.trace.presets import load_preset

CATALOG = load_catalog()


@pytest.fixture(scope="module")
def trace():
    return load_preset("gpt2", precision="amp-bf16").at(micro_batch=4)


@pytest.fixture(scope="module")
def gpt2(trace):
    return roofline(trace, CATALOG.chip("rtx-4090"))


@pytest.mark.parametrize("by", ["kernels", "modules"])
def test_points_add_up_to_the_step(trace, by):
    found = roofline(trace, CATALOG.chip("rtx-4090"), by=by)
    counts, operations = trace.counts(), trace.operations
    assert sum(point.share for point in found.points) == pytest.approx(1)
    assert sum(point.flops for point in found.points) == trace.flops()
    moved = operations.column("bytes_read") + operations.column("bytes_written")
    assert sum(point.bytes for point in found.points) == (counts * moved).sum()
    assert sum(point.calls for point in found.points) == counts.sum()
    assert [point.seconds for point in found.points] == sorted((p.seconds for p in found.points), reverse=True)


@pytest.mark.parametrize("name", ["rtx-4090", "h100-80gb-sxm", "xeon-8480plus", "tpu-v5e"])
def test_calibrated_roofs_do_not_pass_the_datasheets(trace, name):
    """By more than boards boost beyond the clock of their sheet."""
    found = roofline(trace, CATALOG.chip(name))
    assert [roof.name for roof in found.compute] == ["bf16"]
    for roof in (*found.compute, found.memory):
        assert 0.2 * roof.datasheet < roof.calibrated <= 1.15 * roof.datasheet
    assert found.ridges["bf16"] == found.compute[0].datasheet / found.memory.datasheet


def test_kernels_stay_below_their_roof(gpt2):
    for point in gpt2.points:
        roof = gpt2.roof_flops_per_s(point)
        assert (roof is None) == (point.intensity is None)
        if roof is not None:
            assert 0 < point.flops_per_s <= 1.15 * roof  # GeForce boards boost beyond the clock of their sheet
        assert point.bytes_per_s < 4 * gpt2.memory.datasheet  # beyond it only what the cache holds
    product = next(point for point in gpt2.points if point.name == "gemm.bf16")
    assert product.ceiling == "bf16"
    assert product.intensity > 100
    assert all(point.intensity is None for point in gpt2.points if point.name.startswith("elementwise"))


def test_convolutions_in_tf32_have_a_roof_of_their_own():
    trace = load_preset("resnet50", precision="fp32").at(micro_batch=8)
    found = roofline(trace, CATALOG.chip("a100-80gb-sxm"))
    assert [roof.name for roof in found.compute] == ["tf32", "fp32"]
    assert next(point for point in found.points if point.name.startswith("conv.")).ceiling == "tf32"


def test_the_roofline_of_the_api_has_the_forecast_and_plain_types():
    found = gpuwise.roofline("gpt2", on="rtx-4090", micro_batch=4, by="modules")
    assert found.forecast == gpuwise.forecast("gpt2", on="rtx-4090", micro_batch=4)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["by"] == "modules"
    assert {"name", "seconds", "share", "intensity", "flops_per_s", "bytes_per_s", "provenance"} <= set(plain["points"][0])
    with pytest.raises(InputError, match="kernels or by modules"):
        gpuwise.roofline("gpt2", on="rtx-4090", by="colours")


@pytest.mark.parametrize("width", [60, 72, 120])
def test_the_text_fits_its_width_and_names_every_large_point(gpt2, width):
    text = text_picture(gpt2, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert text.startswith("gpt2 on rtx-4090")
    for point in gpt2.points[:6]:
        assert f" {point.name} " in text
    assert "165 TFLOP/s by the datasheet" in text


@pytest.mark.parametrize("name", ["roofline.svg", "roofline.PNG"])
def test_a_picture_is_written_whole(gpt2, tmp_path, name):
    pytest.importorskip("matplotlib")
    written = save_picture(gpt2, tmp_path / name)
    assert written.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_step_that_does_no_arithmetic_is_drawn(tmp_path):
    """One without a single product, as a plain copy is."""
    pytest.importorskip("matplotlib")
    trace = load_preset("tabular-mlp", precision="fp32").at(micro_batch=4)
    full = roofline(trace, CATALOG.chip("rtx-4090"))
    bare = type(full)(full.job, full.device, full.strategy, full.by,
                      tuple(point for point in full.points if point.intensity is None), (), full.memory)  # fmt: skip
    assert text_picture(bare)
    assert save_picture(bare, tmp_path / "bare.svg").exists()


def test_other_endings_and_an_absent_matplotlib_are_refused(gpt2, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        save_picture(gpt2, tmp_path / "roofline.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    with pytest.raises(MissingDependencyError, match="matplotlib"):
        save_picture(gpt2, tmp_path / "roofline.svg")
    assert not list(tmp_path.iterdir())


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def test_the_command_line_prints_and_writes_it(tmp_path):
    shown = run("forecast", "gpt2", "--on", "rtx-4090", "--micro-batch", "4", "--roofline-plot", "-")
    assert shown.exit_code == 0, shown.output
    assert "FLOP/s +" in shown.stdout
    pytest.importorskip("matplotlib")
    target, memory = tmp_path / "roofline.svg", tmp_path / "memory.svg"
    written = run(
        "forecast", "gpt2", "--on", "rtx-4090", "--json", "--roofline-plot", str(target), "--memory-plot", str(memory)
    )
    assert written.exit_code == 0, written.output
    assert json.loads(written.stdout)["device"] == "rtx-4090"
    assert target.exists()
    assert memory.exists()


def test_a_picture_in_the_terminal_and_json_exclude_each_other():
    refused = run("forecast", "gpt2", "--on", "rtx-4090", "--json", "--roofline-plot", "-")
    assert refused.exit_code == 2
    assert "nothing but JSON" in refused.output
    assert run("forecast", "gpt2", "--on", "rtx-4090", "--roofline-plot", "roofline.pdf").exit_code == 2
