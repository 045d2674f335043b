"""Part 3, training: every CUDA path of the runtime checked on the device, then training speed beside other trainers."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_session import checks_copies, checks_machine, checks_runs, checks_steps
from benchmarks.gpu_session.rows import MEASURED, Row, RowFile
from benchmarks.gpu_session.speed import ROUNDS, forecast_rows, saves, speed_rows

Check = Callable[[torch.device], dict[str, Any]]
CHECKS: dict[str, Check] = {**checks_copies.CHECKS, **checks_machine.CHECKS, **checks_steps.CHECKS, **checks_runs.CHECKS}
SECONDS = {"SIGTERM": 40.0, "SIGKILL": 40.0, "compiled": 30.0, "out of memory, train": 25.0, "techniques": 10.0}
LATER = ("SIGKILL",)  # once a round of speed is done
TOY = ("batches ahead", "recorded, classifier, fp32", "optimizers, fp32", "continued, fp32")


def rows(device: str, *, toy: bool) -> list[Row]:
    rounds = [speed_rows(device, number, toy=toy) for number in range(1 if toy else ROUNDS)]
    first = [name for name in (TOY if toy else CHECKS) if name not in LATER]
    return [
        *forecast_rows(device, toy=toy),
        *[_check(name, device) for name in first],
        *rounds[0],
        *saves(device, toy=toy),
        *([] if toy else [_check(name, device) for name in LATER]),
        *[row for later in rounds[1:] for row in later],
    ]


def _check(name: str, device: str) -> Row:
    return Row(f"check/{name}", partial(_checked, name, device), seconds=SECONDS.get(name, 6.0), limit_s=150)


def _checked(name: str, device: str) -> dict[str, Any]:
    if device == "cpu":
        torch.set_num_threads(1)
    return CHECKS[name](torch.device(device))


def table(file: RowFile) -> str:
    """What each check came to, then the speeds and what checkpoints cost."""
    lines = []
    for name in file.configurations("check"):
        row = file.row(f"check/{name}")
        assert row is not None
        answer = "" if row["outcome"] == MEASURED else f": {row['said'][:300]}"
        lines.append(f"{name:<44} {'holds' if row['outcome'] == MEASURED else row['outcome']}{answer}")
    return "\n".join([*lines, *_found(file), *_speeds(file), *_saves(file)])


def _found(file: RowFile) -> list[str]:
    """What checks report that is not right or wrong by itself."""
    lines = []
    kernels = file.figures("check/attention kernels")
    if kernels is not None:
        lines.append(f"attention kernels: {kernels['different']} of {kernels['calls']} calls differ: {kernels['kinds']}")
    for name in file.configurations("check"):
        result = file.figures(f"check/{name}") or {}
        if name.startswith("recorded") and result:
            lines.append(f"{name}: rows {result['rows']}, operators that differ (recorded, real): {result['different']}")
    return lines


def _speeds(file: RowFile) -> list[str]:
    """Milliseconds a step, medians of the rounds, with the ratio to gpuwise's own; and what share of the peak that is."""
    results: dict[str, dict[str, list[float]]] = {}
    for name in file.configurations("speed"):
        figures, work = file.figures(f"speed/{name}"), name.partition(",")[0]
        if figures is not None:
            results.setdefault(work, {}).setdefault(figures["contestant"], []).append(figures["step_s"])
    lines = ["", f"{'work':<12}{'contestant':<28}{'ms a step':>12}{'gpuwise is':>14}{'MFU':>8}{'rounds':>8}"] if results else []
    for work, seconds in results.items():
        best = statistics.median(seconds.get("gpuwise", [float("nan")]))
        for contestant, each in seconds.items():
            step_s = statistics.median(each)
            lines.append(
                f"{work:<12}{contestant:<28}{1e3 * step_s:>12.2f}{step_s / best:>12.3f} x{_mfu(file, work, step_s):>8}"
                f"{len(each):>8}"
            )
    return lines


def _mfu(file: RowFile, work: str, step_s: float) -> str:
    forecast = file.figures(f"forecast/{work}")
    if forecast is None or not forecast["mfu"]:
        return ""
    return f"{forecast['mfu'] * forecast['step_time_s']['value'] / step_s:.1%}"


def _saves(file: RowFile) -> list[str]:
    result = file.figures("saves/gpt2") or {"saves": []}
    return [
        f"checkpoint of {save['bytes'] / 1e9:.2f} GB: held up {1e3 * save['held_up_s']:.1f} ms, written in "
        f"{save['write_s']:.2f} s, lost {1e3 * save['lost_s']:.1f} ms of steps of {1e3 * save['step_s']:.1f} ms"
        for save in result["saves"]
    ]
