"""docs/train-speed.md is what its script makes of the results beside it, and the benchmark compares like with like."""

import itertools
import json

import pytest
import torch
from benchmarks.train_speed import __main__ as script
from benchmarks.train_speed import ours, peers
from benchmarks.train_speed.page import COMMAND, PAGE, RESULTS, page, ratios
from benchmarks.train_speed.rounds import CONTESTANTS, names
from benchmarks.train_speed.works import MLP

from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.strategy import Strategy

DATA = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_page_is_that_of_the_results():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(DATA)
    assert COMMAND in text.splitlines()[0]


def test_every_contestant_ran_and_the_loop_by_hand_did_the_same_work():
    assert list(DATA["rows"]) == list(names())
    for name, row in DATA["rows"].items():
        table = name.split()[0]
        if table != "saves":
            assert all(set(rates) == set(CONTESTANTS[table]) for rates in row["steps_per_s"])
            assert all(turns["same_loss"] for turns in row["turns"])


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The script with results of its own; what it would measure is given back as a row of another day, with its rounds."""
    results = tmp_path / "results.json"
    results.write_text(RESULTS.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(script, "RESULTS", results)
    monkeypatch.setattr(script, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(script, "about", lambda: DATA["about"])
    monkeypatch.setattr(
        script,
        "measured",
        lambda rows, rounds: ((name, {**DATA["rows"][name], "date": "2027-01-02", "rounds": rounds}) for name in rows),
    )

    def run(*words):
        monkeypatch.setattr("sys.argv", ["train_speed", *words])
        script.main()
        return json.loads(results.read_text(encoding="utf-8"))

    return run


def test_one_row_is_measured_again_and_the_others_stay(run, tmp_path):
    result = run("--only", "resnet18 amp-bf16", "--rounds", "9", "--write")
    new = {**DATA["rows"]["models resnet18 amp-bf16"], "date": "2027-01-02", "rounds": 9}
    assert result == {**DATA, "rows": {**DATA["rows"], "models resnet18 amp-bf16": new}}
    assert list(result["rows"]) == list(names())
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert text.count("2027-01-02") == 1
    assert text.count(DATA["rows"]["small mlp fp32"]["date"]) == len(names()) - 1


def test_a_run_of_all_replaces_all(run):
    assert {row["date"] for row in run("--write")["rows"].values()} == {"2027-01-02"}


def test_without_write_nothing_is_written(run, tmp_path):
    assert run("--only", "models") == DATA
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize(
    ("words", "versions", "said"),
    [
        (["--only", "resnet19"], DATA["about"]["versions"], "models resnet18 amp-bf16"),
        (["--only", "saves", "--write"], {"torch": "3.0"}, "other versions"),
    ],
)
def test_what_cannot_be_measured_or_mixed_is_refused_before(words, versions, said, run, monkeypatch, capsys):
    monkeypatch.setattr(script, "about", lambda: {**DATA["about"], "versions": versions})
    with pytest.raises(SystemExit):
        run(*words)
    assert said in capsys.readouterr().err


def test_batches_by_hand_come_in_the_order_of_gpuwise():
    epoch_and_more = len(MLP.rows()) // MLP.batch + 3
    loader = MicroBatchLoader(ours.job_of(MLP, MLP.columns), Strategy(micro_batch=MLP.batch))
    for (batch,), other in itertools.islice(zip(loader.steps(), peers.ordered(MLP), strict=False), epoch_and_more):
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
