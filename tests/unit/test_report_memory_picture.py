"""The picture of memory over a step: as text, as a file, and through the command line."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from gpuwise.api import memory_timeline
from gpuwise.cli.main import main
from gpuwise.cost.memory.events import CATEGORY_NAMES
from gpuwise.cost.memory.timeline import timeline
from gpuwise.errors import InputError, MissingDependencyError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.report.memory_picture import LOOK, save_picture, text_picture
from gpuwise.trace.presets import load_preset


@pytest.fixture(scope="module")
def gpt2():
    family = load_preset("gpt2", precision="amp-bf16", recompute="full")
    return timeline(family.at(micro_batch=4), Cluster(load_catalog().chip("rtx-4090")))


def test_every_category_has_a_look_of_its_own():
    assert set(LOOK) == set(CATEGORY_NAMES)
    assert len({glyph for _, glyph in LOOK.values()}) == len(LOOK)
    assert len({colour for colour, _ in LOOK.values()}) == len(LOOK)


@pytest.mark.parametrize("width", [60, 72, 120])
def test_the_text_fits_its_width_and_says_everything(gpt2, width):
    text = text_picture(gpt2, width=width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    assert "gpt2 on rtx-4090" in lines[0]
    for word in ("peak", "|forward", "|backward", "optimizer state", "the ten that hold most", "device 23.7 GiB"):
        assert word in " ".join(text.split())
    assert gpt2.peak.tensors[0].words in text
    assert "GB" not in text


def test_the_highest_column_reaches_the_top_and_is_marked(gpt2):
    lines = text_picture(gpt2, width=72, height=10).splitlines()
    top = next(line for line in lines if "GiB |" in line)
    mark = lines[1].index("v")
    assert top[mark] in {glyph for _, glyph in LOOK.values()}
    chart = [line[12:] for line in lines[2:12]]
    heights = [sum(line[column : column + 1].strip() != "" for line in chart) for column in range(60)]
    assert max(heights) == heights[mark - 12] == 10
    assert min(heights) >= 1


@pytest.mark.parametrize("name", ["memory.svg", "memory.PNG"])
def test_a_picture_is_written_whole(gpt2, tmp_path, name):
    pytest.importorskip("matplotlib")
    written = save_picture(gpt2, tmp_path / name)
    start = written.read_bytes()[:5]
    assert start in (b"<?xml", b"\x89PNG\r")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_failed_write_leaves_the_old_picture(gpt2, tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")
    target = tmp_path / "memory.svg"
    target.write_text("old")

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", fail)
    with pytest.raises(InputError, match="No space left"):
        save_picture(gpt2, target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["memory.svg"]
    with pytest.raises(InputError, match="cannot write"):
        save_picture(gpt2, tmp_path / "no folder" / "memory.svg")


def test_other_endings_and_an_absent_matplotlib_are_refused(gpt2, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        save_picture(gpt2, tmp_path / "memory.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    with pytest.raises(MissingDependencyError, match="matplotlib"):
        save_picture(gpt2, tmp_path / "memory.svg")
    assert not list(tmp_path.iterdir())


def test_the_timeline_of_the_api_is_that_of_the_forecast():
    result = memory_timeline("gpt2", on="rtx-4090", micro_batch=4, precision="amp-bf16")
    assert result.forecast is not None
    assert result.forecast.memory == result.memory
    assert result.strategy == result.forecast.strategy
    assert result.memory.peak_allocated_bytes == result.total_bytes.max()


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def test_the_command_line_prints_and_writes_it(tmp_path):
    shown = run("forecast", "gpt2", "--on", "rtx-4090", "--micro-batch", "4", "--memory-plot", "-")
    assert shown.exit_code == 0, shown.output
    assert "|backward" in shown.stdout
    pytest.importorskip("matplotlib")
    target = tmp_path / "memory.svg"
    written = run("fit", "tabular-mlp", "--on", "rtx-4090", "--micro-batch", "64", "--json", "--memory-plot", str(target))
    assert written.exit_code == 0, written.output
    assert json.loads(written.stdout)["micro_batch"] == 64
    assert target.exists()


def test_a_picture_in_the_terminal_and_json_exclude_each_other():
    for verb in ("forecast", "fit"):
        refused = run(verb, "gpt2", "--on", "rtx-4090", "--json", "--memory-plot", "-")
        assert refused.exit_code == 2
        assert "nothing but JSON" in refused.output
        assert run(verb, "gpt2", "--on", "rtx-4090", "--memory-plot", "memory.pdf").exit_code == 2
