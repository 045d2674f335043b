"""docs/train-speed.md is what its script makes of the results beside it, and the benchmark compares like with like."""

import itertools
import json

import pytest
import torch
from benchmarks.train_speed import ours, peers
from benchmarks.train_speed.page import COMMAND, PAGE, RESULTS, page, ratios
from benchmarks.train_speed.rounds import LARGE, PRECISIONS, SMALL
from benchmarks.train_speed.works import MLP, MODELS

from gpuwise.runtime.data import Feed
from gpuwise.strategy import Strategy

DATA = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_page_is_that_of_the_results():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(DATA)
    assert COMMAND in text.splitlines()[0]


def test_every_contestant_ran_and_the_loop_by_hand_did_the_same_work():
    (small,) = DATA["small"]
    assert set(small["steps_per_s"][0]) == set(SMALL)
    assert len(DATA["models"]) == len(MODELS) * len(PRECISIONS)
    for part in (small, *DATA["models"]):
        assert all(set(rates) >= {"by hand, DataLoader", *LARGE[3:]} for rates in part["steps_per_s"])
        assert all(turns["same_loss"] for turns in part["turns"])


def test_batches_by_hand_come_in_the_order_of_gpuwise():
    epoch_and_more = len(MLP.rows()) // MLP.batch + 3
    feed = Feed(ours.job_of(MLP, MLP.columns), Strategy(micro_batch=MLP.batch))
    for (batch,), other in itertools.islice(zip(feed.steps(), peers.ordered(MLP), strict=False), epoch_and_more):
        assert torch.equal(batch["x"], other["x"])
        assert torch.equal(batch["y"], other["y"])


def test_ratios_are_taken_within_rounds():
    part = {"steps_per_s": [{"a": 4.0, "b": 2.0}, {"a": 9.0, "b": 3.0}]}
    assert ratios(part, "a", "b") == [2.0, 3.0]


def test_cost_of_a_save_is_what_steps_beside_it_took_more():
    took_s = [1.0] * 20 + [1.5, 1.25] + [1.0] * 8
    record = {"step": 20, "bytes": 1, "held_up_s": 0.5, "write_s": 2.0, "interval_s": 100.0}
    cost = ours._cost(record, list(itertools.accumulate(took_s, initial=0.0)))
    assert cost["lost_s"] == pytest.approx(0.75)
    assert cost["step_s"] == 1.0
