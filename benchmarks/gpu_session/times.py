"""Part 2, time and power: 20 whole steps beside their forecasts, before and after `gpuwise measure`; `gpuwise validate`."""

from __future__ import annotations

import signal
import statistics
import time
from dataclasses import asdict
from functools import partial
from typing import Any

import gpuwise
from benchmarks.gpu_session.cases import StepCase, time_cases, toy_cases
from benchmarks.gpu_session.forecasts import attention_by, forecast_of
from benchmarks.gpu_session.rows import Row, RowFile
from benchmarks.gpu_session.session import POWER
from benchmarks.measured_here import lean

MEMBERS = ("mlp", "resnet50", "gpt2", "llama")  # of the suite of `gpuwise validate`
VALIDATED_STEPS = 20
MEASURE_S = 110.0  # then `measure` is interrupted, and keeps what it has


def rows(device: str, *, toy: bool) -> list[Row]:
    """Forecasts, the steps, `validate`, `measure`, and both again with the calibration that has made."""
    cases = toy_cases()[:1] if toy else time_cases()
    members, steps, measure_s = (MEMBERS[:1], 3, 2.0) if toy else (MEMBERS, VALIDATED_STEPS, MEASURE_S)
    validated = partial(_validation, members, steps)
    return [
        *[Row(f"forecast/{case.name}", partial(forecast_of, case), parallel=True, seconds=8, limit_s=150) for case in cases],
        *[Row(f"time/{case.name}", partial(time_of, case, device), seconds=11, limit_s=100) for case in cases],
        Row("validate/before", validated, seconds=12 * len(members), limit_s=150),
        Row("measure/quick", partial(_measurement, measure_s), seconds=measure_s, limit_s=measure_s + 60),
        *[Row(f"again/{case.name}", partial(forecast_of, case), parallel=True, seconds=8, limit_s=150) for case in cases],
        Row("validate/after", validated, seconds=12 * len(members), limit_s=150),
    ]


def time_of(case: StepCase, device: str) -> dict[str, Any]:
    """Seconds of the step, by the device's events; the time in which it ran alone is when its power is read."""
    import torch

    from gpuwise.measure.trial import run_trial

    began_s: dict[str, float] = {}

    def say(doing: str) -> None:
        began_s[doing] = time.monotonic()

    if device == "cpu":
        torch.set_num_threads(1)
    with attention_by(case.attention):
        result = run_trial(case.job(), case.strategy, torch.device(device), steps=5 if device == "cpu" else None, say=say)
    *_, timed_s, profiled_s = began_s.values()
    return {**asdict(result), POWER: (timed_s, profiled_s)}


def _validation(members: tuple[str, ...], steps: int) -> dict[str, Any]:
    return lean(gpuwise.validate(members, suite=True, steps=steps).to_dict())


def _measurement(most_s: float) -> dict[str, Any]:
    """The quick sweep, interrupted as by Ctrl-C where it takes longer."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, most_s)
    try:
        result = gpuwise.measure(quick=True).to_dict()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {name: value for name, value in result.items() if name not in ("detected", "calibration")}


def table(file: RowFile) -> str:
    """Forecast and measured time of each step, with what the calibration made of it; power; then measure and validate."""
    lines = [
        f"{'step':<48}{'forecast (90 %)':>30}{'measured':>12}{'error':>8}{'inside':>7}{'calibrated':>11}"
        f"{'power':>8}{'forecast':>9}{'clock':>9}  bound"
    ]
    errors: dict[str, list[float]] = {"before": [], "after": []}
    for name in file.configurations("time"):
        row, forecast = file.row(f"time/{name}"), file.figures(f"forecast/{name}")
        assert row is not None
        if row["outcome"] != "measured" or forecast is None:
            lines.append(f"{name:<48}  {row['outcome']}: {row['said'][:140]}")
            continue
        lines.append(f"{name:<48}" + _cells(forecast, file.figures(f"again/{name}"), row["figures"], errors))
    for moment, result in errors.items():
        if result:
            sizes = [abs(error) for error in result]
            lines.append(
                f"{moment} the calibration: median {statistics.median(sizes):.1%}, largest {max(sizes):.1%} of {len(result)}"
            )
    return "\n".join([*lines, *_measured(file), *_validated(file)])


def _cells(
    forecast: dict[str, Any], again: dict[str, Any] | None, measured: dict[str, Any], errors: dict[str, list[float]]
) -> str:
    expected, step = forecast["step_time_s"], measured["step"]
    error = expected["value"] / step["median_s"] - 1
    errors["before"].append(error)
    calibrated = ""
    if again is not None:
        errors["after"].append(again["step_time_s"]["value"] / step["median_s"] - 1)
        calibrated = f"{errors['after'][-1]:+.1%}"
    inside = "yes" if expected["low"] <= step["median_s"] <= expected["high"] else "no"
    power, energy = measured.get("power"), forecast["energy_j"]
    watts = f"{power['power_w']:.0f} W" if power else ""
    forecast_watts = f"{energy / expected['value']:.0f} W" if energy else ""
    clock = f"{power['sm_clock_mhz']:.0f} MHz" if power else ""
    bound = max(forecast["bound"], key=forecast["bound"].__getitem__)
    wide = f"{_ms(expected['value'])} ({_ms(expected['low'])} to {_ms(expected['high'])})"
    return (
        f"{wide:>30}{_ms(step['median_s']):>12}{error:>+8.1%}{inside:>7}{calibrated:>11}{watts:>8}{forecast_watts:>9}"
        f"{clock:>9}  {bound}"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _measured(file: RowFile) -> list[str]:
    result = file.figures("measure/quick")
    if result is None:
        return []
    lines = [f"measure: {result['seconds']:.0f} s, complete {result['complete']}; {'; '.join(result['notes'])[:300]}"]
    for row in (*result["peaks"], *result["memory"]):
        sheet = f", datasheet {row['datasheet'] / 1e12:.4g}" if row.get("datasheet") else ""
        lines.append(f"  {row.get('dtype') or row['name']}: {row['measured'] / 1e12:.4g} T/s{sheet}")
    return lines


def _validated(file: RowFile) -> list[str]:
    lines = []
    for moment in ("before", "after"):
        for trial in (file.figures(f"validate/{moment}") or {"trials": []})["trials"]:
            error, memory = trial["step_error"], trial["memory_error"]
            answer = (
                f"time {error:+.1%}, memory {memory:+.2%}" if error is not None and memory is not None else trial["said"][:120]
            )
            lines.append(f"validate {moment} the calibration, {trial['job']}: {trial['outcome']}, {answer}")
    return lines
