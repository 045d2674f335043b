"""fit and compare on a synthetic job."""

from __future__ import annotations

import json

import pytest
from test_plan_synthetic import synthetic_source

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import link_inside, load_catalog, parse_device
from gpuwise.plan.compare import compare
from gpuwise.plan.fit import fit

CATALOG = load_catalog()
SMALL = {"width": 2048, "layers": 4}
BIG = {"width": 8192, "layers": 40}  # 2.7 G parameters: 43 GB of state


def fitted(chip="rtx-4090", *, source=None, shape=None, **options):
    return fit(source or synthetic_source(**(shape or SMALL)), CATALOG.chip(chip), catalog=CATALOG, **options)


def row(result, technique):
    return next(r for r in result.rows if r.technique == technique)


def test_the_largest_micro_batch_fits_and_one_more_does_not():
    found = fitted()
    assert found.fits
    assert found.forecast.memory.fits
    assert found.forecast.strategy.micro_batch == found.largest_micro_batch
    over = fitted(micro_batch=found.largest_micro_batch + 1)
    assert over.rows[0].memory.fits is False


def test_techniques_are_compared_at_an_equal_micro_batch():
    found = fitted()
    recompute = row(found, "full recompute")
    assert recompute.freed_bytes > 0
    assert recompute.step_time_ratio > 1
    assert recompute.largest_micro_batch > found.largest_micro_batch
    assert recompute.strategy.micro_batch == found.micro_batch
    assert row(found, "precision tf32").freed_bytes < 0
    assert "changes what is trained" in row(found, "precision bf16").note
    assert {2, 4, 8} <= {r.devices for r in found.rows}
    assert "every second matrix product" in row(found, "selective recompute").note
    json.dumps(found.to_dict(), allow_nan=False)


def test_accumulation_says_whether_it_keeps_a_copy_of_the_gradients():
    one = row(fitted(micro_batch=64), "gradient accumulation")
    assert one.freed_bytes < 0
    assert "adds one copy of the gradients" in one.note
    pair = fitted(micro_batch=64, count=2, link=link_inside(CATALOG.chip("rtx-4090"), 2, catalog=CATALOG))
    kept = row(pair, "gradient accumulation")  # replicas keep their gradients in buckets anyway
    assert kept.freed_bytes == 0
    assert "copy of the gradients" not in kept.note


def test_what_does_not_fit_names_what_would():
    found = fitted(shape=BIG)
    assert not found.fits
    assert found.forecast is None
    assert "sharded over 8 devices" in found.nearest_techniques
    sizes = [CATALOG.chip(name).usable_memory_bytes for name in found.nearest_chips]
    assert sizes == sorted(sizes)
    assert sizes[0] > found.capacity_bytes
    assert fitted(found.nearest_chips[0], shape=BIG, precision="amp-bf16").fits


def test_variants_that_cannot_be_had_are_named_not_hidden():
    found = fitted(source=synthetic_source(without=("bf16", "full", "selective"), **SMALL))
    assert "no trace" in row(found, "selective recompute").unavailable
    assert "no trace" in row(found, "full recompute").unavailable
    assert row(found, "full recompute").largest_micro_batch is None
    assert row(found, "sharded over 2 devices").unavailable  # composed from the pure bf16 step
    assert found.fits


def test_inference_has_neither_recompute_nor_shards():
    names = [r.technique for r in fitted(mode="infer").rows]
    assert names[0] == "as asked"
    assert all(name == "as asked" or name.startswith("precision") for name in names)


def test_more_devices_than_the_shards_offered_are_fine():
    assert fitted("h100-80gb-sxm", count=16, link=link_inside(CATALOG.chip("h100-80gb-sxm"), 16, catalog=CATALOG)).fits


def test_a_precision_the_chip_lacks_is_refused():
    with pytest.raises(UnsupportedError, match="does not compute in amp-bf16"):
        fitted("t4", precision="amp-bf16")


def devices(*names):
    return [parse_device(name, catalog=CATALOG) for name in names]


def test_devices_stand_side_by_side_with_speedups_against_the_slowest():
    found = compare(synthetic_source(**SMALL), devices("xeon-8380", "rtx-4090", "h100-80gb-sxm"))
    speed = {r.device: r.speedup for r in found.rows}
    assert found.baseline == "xeon-8380"
    assert speed["xeon-8380"] == 1.0
    assert 1 < speed["rtx-4090"] < speed["h100-80gb-sxm"]
    assert [r.forecast.strategy.precision for r in found.rows] == ["fp32", "amp-bf16", "amp-bf16"]
    assert "peak" in found.rows[1].reason
    assert any("xeon-8380" in text and "fp32" in text for text in found.assumptions)
    json.dumps(found.to_dict(), allow_nan=False)


def test_an_asked_micro_batch_and_precision_hold_where_they_can():
    found = compare(synthetic_source(**SMALL), devices("t4", "a100-40gb-sxm:4"), micro_batch=3, precision="amp-bf16")
    assert [r.forecast.strategy.micro_batch for r in found.rows] == [3, 3]
    assert [r.forecast.strategy.precision for r in found.rows] == ["amp-fp16", "amp-bf16"]
    assert any("t4 does not compute in amp-bf16" in text for text in found.assumptions)
    assert found.rows[1].device == "a100-40gb-sxm:4"


def test_a_device_that_cannot_be_priced_says_why_beside_the_others():
    found = compare(synthetic_source(**SMALL), devices("rtx-4090", "alveo-u250"))
    assert found.rows[1].forecast is None
    assert "cannot train" in found.rows[1].reason
    too_big = compare(synthetic_source(**BIG), devices("rtx-4090", "h200-141gb-sxm"))
    assert too_big.rows[0].reason.startswith("does not fit")
    with pytest.raises(UnsupportedError):
        compare(synthetic_source(**SMALL), devices("alveo-u250"))
    with pytest.raises(InputError):
        compare(synthetic_source(**SMALL), [])
