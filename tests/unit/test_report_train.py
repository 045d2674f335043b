"""A TrainResult as text: where it stands, and how to go on."""

import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from torch import nn

from gpuwise.report.train import train_report
from gpuwise.results.training import ForecastCheck, MemoryCheck, StepTime, TrainResult, measured_step_time
from gpuwise.strategy import Strategy

RESULT = TrainResult(
    job="toy",
    device="cpu",
    strategy=Strategy(micro_batch=8),
    steps=100,
    samples=800,
    first_loss=2.0,
    last_loss=0.5,
    step_time=StepTime(0.04, 0.03, 0.05, 97),
    samples_per_s=200.0,
    data_share=0.0,
    wall_s=4.0,
    peak_memory_bytes=2 * 2**30,
    metrics={"accuracy": 0.9},
    stopped="finished",
    stop_reason=None,
    synthetic=False,
    forecast=None,
    memory_check=None,
    typed_notes=(),
    log_path=None,
    run_folder=None,
    resumed_from=None,
    checkpoints=None,
    best=None,
    usd=None,
    skipped_steps=0,
    spikes=0,
    mfu=None,
    learning_rate=1e-3,
    model=nn.Identity(),
)
SAVED = {
    "count": 3,
    "last_step": 80,
    "bytes": 2**20,
    "held_up_s": 0.012,
    "interval_s": 60.0,
    "sentence": "Saved every 60 s: a save takes 2 s.",
}


def text(**changes):
    out = StringIO()
    Console(file=out, width=160).print(train_report(replace(RESULT, **changes)))
    return " ".join(out.getvalue().split())


def test_a_finished_run():
    message = text()
    for words in (
        "toy trained on cpu: fp32, micro-batch 8",
        "loss 2 at first, 0.5 at the end",
        "accuracy 0.9",
        "200 samples/s, 100 steps in 4 s",
        "40 ms measured (30 ms to 50 ms)",
        "2 GiB at most",
    ):
        assert words in message, words
    for words in ("forecast", "go on", "trouble", "resumed", "checkpoints", "cost"):
        assert words not in message, words


def test_forecasts_are_held_against_what_was_measured():
    message = text(
        forecast=ForecastCheck(0.05, 0.045, 0.06, 0.04), memory_check=MemoryCheck(4 * 2**30, 2 * 2**30), mfu=0.4, usd=1.234
    )
    assert "50 ms (45 ms to 60 ms): +25%, outside its interval" in message
    assert "2 GiB at most, above what the process had before; forecast 4 GiB: +100%" in message
    assert "MFU 40 %" in message
    assert "cost $1.23" in message


def test_a_run_without_a_forecast_of_its_memory_says_why():
    words = "2 GiB at most, above what the process had before; so little is not compared with a forecast"
    assert words in text(forecast=ForecastCheck(0.05, 0.045, 0.06, 0.04))
    assert words not in text()


def test_beside_another_program_a_forecast_is_held_against_what_that_left():
    message = text(forecast=ForecastCheck(0.05, 0.045, 0.06, 0.1, available=0.52))
    assert "-50%, inside its interval for the 52 % of the processors that others left it" in message
    message = text(forecast=ForecastCheck(0.05, 0.045, 0.06, 0.9, available=0.18))
    assert "-94%, not comparable: it had the 18 % of the processors that others left it" in message


@pytest.mark.parametrize(
    ("stopped", "how"),
    [("interrupted", "interrupted"), ("time limit", "stopped at its time limit"), ("early stop", "stopped early")],
)
def test_an_unfinished_run_says_how_to_go_on(stopped, how):
    message = text(stopped=stopped, stop_reason="SIGTERM", run_folder="my runs/a", checkpoints=SAVED, resumed_from=40)
    assert f"toy {how} on cpu" in message
    assert "stopped SIGTERM" in message
    assert "resumed from step 40" in message
    assert "3 saved, the last of step 80 (1 MiB); they held the run up for 12 ms" in message
    assert "Saved every 60 s: a save takes 2 s." in message
    assert ("gpuwise train JOB --run 'my runs/a' --resume" in message) == (stopped != "early stop")


def test_a_save_that_failed_is_told():
    assert "the latest could not be saved: disk full" in text(checkpoints=SAVED | {"problem": "disk full"})


def test_trouble_and_the_best():
    message = text(
        skipped_steps=2,
        spikes=1,
        best={"step": 60, "metric": "accuracy", "value": 0.95},
        run_folder="run",
        checkpoints=SAVED | {"count": 0, "last_step": None, "bytes": 0, "sentence": ""},
    )
    assert "2 skipped steps, 1 loss spike" in message
    assert "accuracy 0.95 at step 60" in message
    assert "0 saved" in message


def test_measured_leaves_the_warm_up_out():
    measured = measured_step_time([9.0, 9.0, 9.0, *(float(i) for i in range(11))])
    assert (measured.median_s, measured.low_s, measured.high_s, measured.steps) == (5.0, 1.0, 9.0, 11)


def test_short_runs_are_measured_by_their_last_step():
    assert measured_step_time([9.0, 2.0]).median_s == 2.0
    assert measured_step_time([9.0]).steps == 1


def test_a_run_that_took_no_step_says_so():
    message = text(stopped="time limit", stop_reason="its time limit of 3 s is over", steps=0, first_loss=math.nan)
    assert "loss no step was taken" in message
    assert "nan" not in message
