"""Calibration files: read and checked, found by chip, and refused by name where they are damaged."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.cost.calibration import (
    LEVELS,
    PROVENANCE,
    Calibration,
    CalibrationEntry,
    CalibrationFile,
    EfficiencyCurve,
    StepSpread,
    Term,
    calibration,
    joined_spread,
    names_of,
    parse,
    parse_steps,
    step_spread,
)
from gpuwise.errors import FileFormatError
from gpuwise.hardware.catalog import Catalog

CATALOG = Catalog()
GOOD = """
schema = 1
level = "chip"
of = "rtx-4090"

[scale]
conv = 1.1

[entry."gemm.bf16"]
floor_s = 2e-6
sharpness = 3.0
spread = [0.9, 1.2]
evidence = { source = "a table", kept_out = "12 rows, median error 5 %" }

[entry."gemm.bf16".terms.compute]
scale = 1.2
curves = [{ over = "k", at = [64, 256, 1024], factor = [1.5, 1.0, 0.9] }]

[entry."gemm.bf16".terms.memory]
scale = 1.1
"""


def entry(scale=1.0, **options):
    return CalibrationEntry({"memory": Term(scale)}, **options)


def file(level, entries=None, scale=None):
    return CalibrationFile(f"{level}.toml", level, "x", entries or {}, scale or {})


def test_a_file_is_read_whole():
    result = parse(GOOD, "chip-rtx-4090.toml")
    assert (result.level, result.of, result.scale) == ("chip", "rtx-4090", {"conv": 1.1})
    product = result.entries["gemm.bf16"]
    assert (product.floor_s, product.sharpness, product.spread) == (2e-6, 3.0, (0.9, 1.2))
    assert product.terms["compute"].curves[0] == EfficiencyCurve("k", (64, 256, 1024), (1.5, 1.0, 0.9))
    assert product.evidence["source"] == "a table"


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("schema = 1", "schema = 2", "schema"),
        ("schema = 1", "", "schema"),
        ('level = "chip"', 'level = "galaxy"', "level"),
        ('of = "rtx-4090"', "of = 4090", "of"),
        ("conv = 1.1", "conv = 0", "scale"),
        ("conv = 1.1", "conv = true", "scale"),
        ("[scale]", "[scales]", "scales"),
        ("floor_s = 2e-6", "floor_s = -1.0", "floor_s"),
        ("floor_s = 2e-6", "floor_s = 3.0", "floor_s"),
        ("sharpness = 3.0", "sharpness = 0.5", "sharpness"),
        ("sharpness = 3.0", "sharpness = nan", "sharpness"),
        ("spread = [0.9, 1.2]", "spread = [1.1, 1.2]", "spread"),
        ("spread = [0.9, 1.2]", "spread = 0.9", "spread"),
        ("scale = 1.2", "scale = -1.2", "scale"),
        ("scale = 1.2", 'scale = "1.2"', "scale"),
        ("at = [64, 256, 1024]", "at = [64, 64, 1024]", "knots"),
        ("at = [64, 256, 1024]", "at = [64, 256]", "knots"),
        ("at = [64, 256, 1024]", "at = 5", "curve"),
        ("factor = [1.5, 1.0, 0.9]", "factor = [1.5, 0.0, 0.9]", "positive"),
        ('over = "k"', "over = 1", "over"),
        ("floor_s = 2e-6", "floors = 2e-6", "floors"),
        ('evidence = { source = "a table", kept_out = "12 rows, median error 5 %" }', 'evidence = "a table"', "evidence"),
        ('[entry."gemm.bf16"]', '[entry."gem.bf16"]', "kind"),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(before, after, named):
    assert before in GOOD
    with pytest.raises(FileFormatError, match=named) as caught:
        parse(GOOD.replace(before, after), "chip-rtx-4090.toml")
    assert "chip-rtx-4090.toml" in caught.value.what


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[",
        "schema = 1",
        'schema = 1\nlevel = "chip"\nof = "a"\nentry = 3',
        'schema = 1\nlevel = "chip"\nof = "a"\n[entry]\ngemm = 3',
    ],
)
def test_what_is_no_calibration_is_refused(text):
    with pytest.raises(FileFormatError, match=r"x\.toml"):
        parse(text, "x.toml")


def test_the_most_telling_file_with_an_entry_counts():
    """Level first, likeness of numerics second."""
    family = file("family", {"gemm.bf16": entry(4), "gemm.fp16": entry(5), "softmax": entry(6)})
    chip = file("chip", {"gemm.fp16": entry(1)})
    result = Calibration((chip, family))
    assert result.find("gemm", "bf16").level == "chip"
    assert result.find("gemm", "bf16").entry.terms["memory"].scale == 1
    assert result.find("softmax").level == "family"
    assert result.find("gemm", "fp32") is None
    assert result.find("pool") is None


def test_a_scale_applies_to_what_the_level_above_gives():
    files = (
        file("chip", scale={"conv": 2.0}),
        file("architecture", scale={"conv": 3.0}),
        file("family", {"conv.fp16": entry()}),
    )
    result = Calibration(files).find("conv", "fp16")
    assert (result.level, result.scale) == ("chip", 6.0)
    own = Calibration((file("chip", {"conv.fp16": entry()}, {"conv": 2.0}), file("family", {"conv.fp16": entry()})))
    assert own.find("conv", "fp16").scale == 1.0


@pytest.mark.parametrize(
    ("kind", "known", "taken"),
    [
        ("softmax_backward", {"softmax": 1}, 1),
        ("conv_channels_last_backward", {"conv": 1, "conv_backward": 2}, 2),
        ("conv_grouped_channels_last", {"conv": 1, "conv_grouped": 2}, 2),
        ("conv_depthwise_channels_last_backward", {"conv": 1}, 1),
        ("gemm_batched", {"gemm": 1}, 1),
        ("gemm_batched", {"gemm": 1, "gemm_batched": 2}, 2),
    ],
)
def test_a_class_without_figures_takes_those_it_is_a_case_of(kind, known, taken):
    result = Calibration((file("family", {name: entry(scale) for name, scale in known.items()}),)).find(kind)
    assert result.entry.terms["memory"].scale == taken


def test_a_chip_is_known_by_its_id_architecture_generation_and_family():
    names = names_of(CATALOG.chip("rtx-3090"))
    assert names == {"chip": "rtx-3090", "architecture": "sm_86", "generation": "Ampere", "family": "gpu"}
    assert names_of(CATALOG.chip("a100-80gb-sxm"))["architecture"] == "sm_80"
    assert names_of(CATALOG.chip("tpu-v5e"))["family"] == "systolic"
    assert names_of(CATALOG.chip("xeon-8380"))["family"] == "cpu"
    levels = [one.level for one in calibration(CATALOG.chip("mi300x")).files]
    assert levels == sorted(levels, key=LEVELS.index)
    assert levels[-1] == "family"


def test_a_curve_is_log_linear_between_knots_and_flat_beyond():
    curve = EfficiencyCurve("k", (10.0, 1000.0), (4.0, 1.0))
    assert np.exp(curve(np.array([1.0, 10.0, 100.0, 1000.0, 1e6]))) == pytest.approx([4.0, 4.0, 2.0, 1.0, 1.0])


def test_terms_join_in_a_smooth_maximum():
    product = CalibrationEntry({"compute": Term(2.0), "memory": Term(1.0)}, sharpness=4.0)
    parts = product.parts_s(
        {"compute": np.array([1.0, 0.0]), "memory": np.array([2.0, 3.0]), "unknown": np.array([9.0, 9.0])}, {}
    )
    assert product.join_s(parts) == pytest.approx([2 * 2**0.25, 3.0])


def test_latencies_add_to_what_the_other_terms_take_together():
    terms = {"compute": Term(1.0), "memory": Term(1.0), "latency_depth": Term(2.0), "latency_waves": Term(1.0)}
    entry = CalibrationEntry(terms, sharpness=4.0)
    parts = entry.parts_s({name: np.array([1.0]) for name in terms}, {})
    assert entry.join_s(parts) == pytest.approx([2**0.25 + 3.0])
    assert entry.join_s({"compute": np.array([1.0]), "latency_depth": np.array([2.0])}) == pytest.approx([3.0])
    assert entry.join_s({"latency_depth": np.array([2.0])}) == pytest.approx([2.0])


STEPS = """
schema = 1
[[spread]]
family = "gpu"
level = "chip"
mode = "train"
low = 0.9
high = 1.1
rows = 40
""" + "".join(
    f'[[spread]]\nfamily = "{family}"\nlevel = "family"\nmode = "{mode}"\nlow = 0.5\nhigh = 2.0\n'
    for family in ("gpu", "cpu", "systolic")
    for mode in ("train", "infer")
)


def test_the_spread_of_a_step_is_that_of_its_level_or_a_wider_one():
    spreads = parse_steps(STEPS)
    known = step_spread("chip", family="gpu", mode="train", spreads=spreads)
    assert known == StepSpread("gpu", "chip", "train", 0.9, 1.1, rows=40)
    for level in ("architecture", "generation", "family", "generic"):
        assert step_spread(level, family="gpu", mode="train", spreads=spreads).level == "family"
    assert step_spread("machine", family="gpu", mode="train", spreads=spreads).level == "chip"
    assert step_spread("chip", family="gpu", mode="infer", spreads=spreads).level == "family"


def test_a_compiled_spread_is_taken_where_there_is_one():
    more = '[[spread]]\nfamily = "gpu"\nlevel = "family"\nmode = "train"\ncompiled = true\nlow = 0.4\nhigh = 3.0\n'
    without, with_ = parse_steps(STEPS), parse_steps(STEPS + more)
    assert not step_spread("chip", family="gpu", mode="train", compiled=True, spreads=without).compiled
    assert step_spread("chip", family="gpu", mode="train", compiled=True, spreads=with_).high == 3.0


def test_steps_of_several_devices_have_a_spread_of_their_own_where_there_is_one():
    more = '[[spread]]\nfamily = "gpu"\nlevel = "chip"\nmode = "train"\nseveral = true\nlow = 0.8\nhigh = 1.3\n'
    spreads = parse_steps(STEPS + more)

    def high(level: str, **kind: bool) -> float:
        return step_spread(level, family="gpu", mode="train", spreads=spreads, **kind).high

    assert (high("chip"), high("chip", several=True)) == (1.1, 1.3)
    assert high("architecture", several=True) == high("architecture") == 2.0
    assert step_spread("chip", family="gpu", mode="train", several=True, spreads=parse_steps(STEPS)).high == 1.1


def test_shares_of_levels_make_a_geometric_mean():
    low, high = joined_spread({"chip": 0.5, "generic": 0.5}, family="gpu", mode="train", spreads=parse_steps(STEPS))
    assert (low, high) == (pytest.approx((0.9 * 0.5) ** 0.5), pytest.approx((1.1 * 2.0) ** 0.5))


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("schema = 1", "schema = 9", "schema"),
        ("low = 0.9", "low = 1.9", "row 1 .*low"),
        ("low = 0.9", "", "row 1 .*low"),
        ("high = 1.1", 'high = "1.1"', "row 1 .*high"),
        ("rows = 40", "rows = -1", "row 1 .*rows"),
        ("rows = 40", "lines = 40", "row 1 .*unknown"),
        ('level = "chip"', 'level = "galaxy"', "row 1 .*level"),
        ('mode = "train"', 'mode = "dream"', "row 1 .*mode"),
        ('family = "systolic"', 'family = "gpu"', "no spread of level family"),
        ("[[spread]]", "[[spreads]]", "no table"),
        ("schema = 1", "schema = ", "not valid TOML"),
    ],
)
def test_a_damaged_table_of_spreads_is_refused_by_its_name(before, after, named):
    assert before in STEPS
    with pytest.raises(FileFormatError, match=named) as caught:
        parse_steps(STEPS.replace(before, after), "steps.toml")
    assert caught.value.what.startswith("steps.toml")


def test_every_level_has_words():
    assert set(LEVELS) < set(PROVENANCE)
    assert set(PROVENANCE.values()) == {
        "measured here",
        "calibrated on this chip",
        "transferred from its architecture",
        "datasheet only",
    }
