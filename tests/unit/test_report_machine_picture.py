"""The roofline of a machine: as a file and as text, with every roof named and no two names on each other."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from measure_samples import CPU, EMPTY, GPU, INCOMPLETE, SAMPLES

from gpuwise.errors import InputError, MissingDependencyError
from gpuwise.report.machine_picture import draw, save_picture
from gpuwise.report.machine_text import text_picture
from gpuwise.report.picture import LogGrid, apart, check_drawable
from gpuwise.results.measurement import MemoryLevel

# Bandwidths so near to each other that names along their slants would touch.
CLOSE = replace(CPU, memory=(MemoryLevel("L2", 36e9, 2**21), MemoryLevel("L3", 34e9, 2**25), CPU.memory[-1]))


@pytest.mark.parametrize(("sample", "name"), [*((sample, "roofline.svg") for sample in SAMPLES), ("gpu", "roofline.PNG")])
def test_a_picture_is_written_whole(sample: str, name: str, tmp_path):
    pytest.importorskip("matplotlib")
    written = save_picture(SAMPLES[sample], tmp_path / name)
    assert written.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def words_of(figure) -> list[str]:
    texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    return [text.get_text() for text in texts]


def test_roofs_slants_and_ridge_points_are_named():
    pytest.importorskip("matplotlib")
    text = words_of(draw(GPU))
    assert "fp8  1,410 of 1,979 TFLOP/s (71 %)" in text
    assert "memory 4.2 of 4.8 TB/s (88 %)" in text
    assert "bf16: 177 operations a byte" in text
    assert "fp32  205 GFLOP/s" in words_of(draw(SAMPLES["unknown sheet"]))
    assert "nothing was measured" in words_of(draw(EMPTY))


@pytest.mark.parametrize("sample", [CPU, GPU, CLOSE, INCOMPLETE])
def test_no_two_names_are_on_each_other(sample):
    """By their corners on the page, turned as they are."""
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    figure = draw(sample)
    figure.canvas = agg.FigureCanvasAgg(figure)
    figure.canvas.draw()
    boxes = [turned(text) for text in [*figure.axes[0].texts, *figure.axes[1].texts, *figure.texts]]
    for (one, corners, angle), (other, others, other_angle) in combinations(boxes, 2):
        assert any(clear(corners, others, side) for turn in (angle, other_angle) for side in (turn, turn + 90)), (one, other)


def turned(text):
    """Its words, the corners of its box on the page, and its angle in degrees."""
    angle, anchor = text.get_rotation(), text.get_transform().transform(text.get_position())
    affine = pytest.importorskip("matplotlib.transforms").Affine2D().rotate_deg_around(*anchor, angle)
    text.set_rotation(0)
    flat = text.get_window_extent().corners()
    text.set_rotation(angle)
    return text.get_text(), affine.transform(flat), angle


def clear(corners, others, angle: float) -> bool:
    """Whether the shadows of two boxes on a line at an angle lie apart: boxes touch where they do so on no side of either."""
    along = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
    one, other = corners @ along, others @ along
    return bool(one.max() <= other.min() or other.max() <= one.min())


@pytest.mark.parametrize("width", [60, 72, 120])
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_text_fits_its_width(sample: str, width: int):
    shown = text_picture(SAMPLES[sample], width=width)
    assert all(len(line) <= width for line in shown.splitlines())


def test_the_text_names_roofs_and_ridge_points():
    shown = text_picture(GPU, width=100)
    assert "bf16: 742 TFLOP/s, 75 % of the datasheet; ridge point at 177 operations a byte" in shown
    assert "memory: 4,200 GB/s, 88 % of the datasheet" in shown
    assert "_ bf16 fp16" in shown  # at the end of the roof they share
    assert shown.count("+") >= 4
    assert "g matrix products" in shown
    assert "too little was measured" in text_picture(EMPTY)


def test_what_could_not_be_drawn_is_refused_beforehand(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        check_drawable(tmp_path / "roofline.pdf", "--roofline-plot")
    with pytest.raises(InputError, match="no such folder"):
        check_drawable(tmp_path / "none" / "roofline.svg", "--roofline-plot")
    pytest.importorskip("matplotlib")
    assert check_drawable(tmp_path / "roofline.svg", "--roofline-plot") == tmp_path / "roofline.svg"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match="matplotlib"):
        check_drawable(tmp_path / "roofline.svg", "--roofline-plot")
    assert not list(tmp_path.iterdir())


def test_labels_move_apart_as_little_as_they_can():
    assert apart([0.5, 0.1], 0.1, 0, 1) == [0.5, 0.1]
    assert apart([0.5, 0.5, 0.1], 0.1, 0, 1) == pytest.approx([0.45, 0.55, 0.1])
    assert apart([0.99, 0.98], 0.1, 0, 1) == pytest.approx([1.0, 0.9])
    assert apart([0.0, 0.0, 0.01], 0.2, 0, 1) == pytest.approx([0.0, 0.2, 0.4])
    assert apart([], 0.1, 0, 1) == []


def test_a_grid_keeps_what_is_inside_its_axes():
    grid = LogGrid(5, 3, (1, 10_000), (1, 100))
    for across, up, glyph in ((1, 1, "a"), (10_000, 100, "b"), (100, 10, "c"), (100_000, 10, "x"), (100, 1000, "x")):
        grid.put(across, up, glyph)
    assert grid.lines() == ["    b", "  c", "a"]
    assert [grid.row(up) for up in (100, 10, 1)] == [0, 1, 2]
