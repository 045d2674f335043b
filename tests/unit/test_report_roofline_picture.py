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
    result = roofline(trace, CATALOG.chip("rtx-4090"), by=by)
    counts, operations = trace.counts(), trace.operations
    assert sum(point.share for point in result.points) == pytest.approx(1)
    assert sum(point.flops for point in result.points) == trace.flops()
    moved = operations.column("bytes_read") + operations.column("bytes_written")
    assert sum(point.bytes for point in result.points) == (counts * moved).sum()
    assert sum(point.calls for point in result.points) == counts.sum()
    assert [point.seconds for point in result.points] == sorted((p.seconds for p in result.points), reverse=True)


@pytest.mark.parametrize("name", ["rtx-4090", "h100-80gb-sxm", "xeon-8480plus", "tpu-v5e"])
def test_calibrated_roofs_do_not_pass_the_datasheets(trace, name):
    """By more than GeForce boards boost beyond the clock of their datasheet."""
    result = roofline(trace, CATALOG.chip(name))
    assert [roof.name for roof in result.compute] == ["bf16"]
    for roof in (*result.compute, result.memory):
        assert 0.2 * roof.datasheet < roof.calibrated <= (roof.highest or roof.datasheet)
    assert result.compute[0].highest == pytest.approx(result.compute[0].datasheet * (1.15 if name == "rtx-4090" else 1))
    assert bool(result.compute[0].beyond) == (name == "rtx-4090")
    assert result.ridges["bf16"] == result.compute[0].datasheet / result.memory.datasheet


def test_kernels_stay_below_their_roof(gpt2):
    for point in gpt2.points:
        roof = gpt2.roof_flops_per_s(point)
        assert (roof is None) == (point.intensity is None)
        if roof is not None:
            assert 0 < point.flops_per_s <= 1.0001 * gpt2.compute[0].highest
        assert point.bytes_per_s < gpt2.memory.highest
    product = next(point for point in gpt2.points if point.name == "gemm.bf16")
    assert product.ceiling == "bf16"
    assert product.intensity > 100
    assert all(point.intensity is None for point in gpt2.points if point.name.startswith("elementwise"))


@pytest.mark.parametrize("device", ["rtx-3090", "rtx-4090", "l4", "t4", "a100-80gb-sxm", "mi210", "tpu-v5e", "xeon-8480plus"])
@pytest.mark.parametrize(("job", "precision"), [("gpt2", "amp-bf16"), ("gpt2", "fp32"), ("resnet50", "fp32")])
def test_what_is_above_the_datasheets_roof_is_marked_and_explained(job, precision, device):
    chip = CATALOG.chip(device)
    if precision == "amp-bf16" and "bf16" not in chip.peak_flops_per_s:
        return
    result = roofline(load_preset(job, precision=precision).at(micro_batch=4), chip)
    above = [point for point in result.points if (result.share_of_roof(point) or 0) > 1.01]
    assert all(result.is_beyond(point) for point in above)
    assert bool(above) <= bool(result.why_beyond(above))
    text = text_picture(result, width=200)
    drawn_above = [point for point in above if point.share > 0.01]
    assert text.count("%*") >= len(drawn_above)
    assert ("* faster than the datasheet: " in text) >= bool(drawn_above)


def test_each_reason_to_be_faster_than_the_datasheet_is_named():
    ada = roofline(load_preset("gpt2", precision="amp-bf16").at(micro_batch=4), CATALOG.chip("rtx-4090"))
    arithmetic, cache = ada.why_beyond(ada.points)
    assert arithmetic == "GeForce boards run beyond their datasheet's 2,520 MHz (at most 15 % is assumed)"
    assert cache == "part of the bytes stays in the 72 MiB cache"
    fused = roofline(load_preset("gpt2", precision="amp-bf16").at(micro_batch=4), CATALOG.chip("tpu-v5e"))
    assert fused.why_beyond(fused.points) == ("a compiled graph keeps on the chip what one kernel leaves to the next",)
    old = roofline(load_preset("resnet50", precision="fp32").at(micro_batch=4), CATALOG.chip("t4"))
    assert old.compute[0].beyond == "Winograd's algorithm leaves out operations that are counted"


def test_fp32_on_cdna_has_the_roof_of_its_matrix_units():
    """AMD's data sheets: MI210 22.6 TFLOP/s in vector units, 45.3 in matrix units, which PyTorch's products take."""
    result = roofline(load_preset("gpt2", precision="fp32").at(micro_batch=4), CATALOG.chip("mi210"))
    assert result.compute[0].datasheet == pytest.approx(45.3e12, rel=0.01)
    assert result.compute[0].calibrated < result.compute[0].datasheet


def test_convolutions_in_tf32_have_a_roof_of_their_own():
    trace = load_preset("resnet50", precision="fp32").at(micro_batch=8)
    result = roofline(trace, CATALOG.chip("a100-80gb-sxm"))
    assert [roof.name for roof in result.compute] == ["tf32", "fp32"]
    assert next(point for point in result.points if point.name.startswith("conv.")).ceiling == "tf32"


def test_the_roofline_of_the_api_has_the_forecast_and_plain_types():
    result = gpuwise.roofline("gpt2", on="rtx-4090", micro_batch=4, by="modules")
    assert result.forecast == gpuwise.forecast("gpt2", on="rtx-4090", micro_batch=4)
    plain = json.loads(json.dumps(result.to_dict()))
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
    bare = type(full)(
        full.job,
        full.device,
        full.strategy,
        full.by,
        tuple(point for point in full.points if point.intensity is None),
        (),
        full.memory,
    )
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
