"""measure: runs the microbenchmarks in processes of their own, keeps what they say, and writes the calibration of this machine.

This process imports no PyTorch: it waits, so that nothing disturbs what is measured, and outlives a benchmark that is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from gpuwise.errors import UnsupportedError
from gpuwise.hardware import Chip, load_catalog
from gpuwise.hardware.detect import DetectedMachine, detect, detect_machine, machine_key
from gpuwise.hardware.disturbances import all_busy, disturbances
from gpuwise.hardware.load import load
from gpuwise.hardware.measured_chip import calibration_path
from gpuwise.measure.calibration_file import check_writable, write
from gpuwise.measure.child import ChildDiedError, answers
from gpuwise.measure.chip_figures import chip_figures
from gpuwise.measure.messages import FitAnswer, StageAnswer, Survey
from gpuwise.measure.stages import Stage, stages
from gpuwise.results.measurement import METHOD, AchievedPeak, MachineMeasurement, MeasuredRow, MemoryLevel, Progress

WORKER = "gpuwise.measure.worker"
LEAST_MEMORY_BYTES = 2**30
LOOK_S = 0.5  # how long others are watched before anything is measured
FEWEST_NETWORKS = 4
MOST_DEATHS = 3
CHANGED = 0.1  # between the beginning and the end of a sweep, as a share: worth a word

OnProgress = Callable[[Progress], None]


@dataclass
class _Answers:
    """What the workers have said so far."""

    rows: list[MeasuredRow] = field(default_factory=list)
    samples: list[dict[str, object]] = field(default_factory=list)
    peaks: list[AchievedPeak] = field(default_factory=list)
    levels: list[MemoryLevel] = field(default_factory=list)
    again: list[MemoryLevel] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = True
    interrupted: bool = False


def measure(*, quick: bool = False, on_progress: OnProgress | None = None) -> MachineMeasurement:
    """See gpuwise.api.measure."""
    began, before, show = time.monotonic(), load(), on_progress or (lambda _: None)
    machine, detected = detect_machine(load_catalog(), measured=False), detect()
    path = calibration_path(machine_key(detected))
    check_writable(path)
    _check_idle(detected)
    seen: Survey = next(answers(WORKER, {}, purpose="look at this machine"))
    _check_device(machine.chip, seen["device"])
    todo = list(
        stages(
            quick=quick,
            networks=seen["networks"],
            quick_networks=seen["quick"],
            half=seen["half"],
            device=seen["device"],
        )
    )
    answers_ = _Answers(notes=list(seen["left_out"]))
    fitted: FitAnswer | None = None
    if not machine.chip.source.verified:
        answers_.notes.append(f"the datasheet figures are not of this very processor: {machine.chip.source.text}")
    try:
        _run(todo, seen["device"], answers_, show)
    except KeyboardInterrupt:
        answers_.complete, answers_.interrupted = False, True
    _compare(answers_)
    figures = chip_figures(machine.chip, answers_.rows, answers_.peaks, answers_.levels)
    if len(answers_.samples) >= FEWEST_NETWORKS:
        show(Progress(len(todo), len(todo), "fitting the calibration"))
        try:
            fitted = next(answers(WORKER, {"samples": answers_.samples, "figures": figures}, purpose="fit"))
        except ChildDiedError as died:  # what was measured is kept
            answers_.notes.append(died.what)
        except KeyboardInterrupt:
            answers_.complete, answers_.interrupted = False, True
    after = load()
    answers_.notes += disturbances(before, after)
    taken, written = datetime.now(UTC).isoformat(timespec="seconds"), ""
    if all_busy(before, after, device=seen["device"]):
        answers_.notes.append("nothing was written: other programs used practically all of the device meanwhile")
    elif fitted is not None:
        about = {
            "taken": taken,
            "method": METHOD,
            "torch": seen["torch"],
            "threads": seen["threads"],
            "machine": machine.name,
            "quick": quick,
            "complete": answers_.complete,
            "notes": answers_.notes,
        }
        write(path, machine.chip.id, fitted, {**figures, "as_of": taken[:10]} if figures else {}, about)
        written = str(path)
    elif len(answers_.samples) < FEWEST_NETWORKS:
        answers_.notes.append("nothing was written: too few training steps were observed to fit a calibration")
    else:
        answers_.notes.append("nothing was written: the calibration was not fitted")
    return MachineMeasurement(
        machine=machine.name,
        chip=machine.chip.id,
        device=seen["device"],
        taken=taken,
        seconds=time.monotonic() - began,
        quick=quick,
        complete=answers_.complete,
        interrupted=answers_.interrupted,
        rows=tuple(answers_.rows),
        peaks=tuple(replace(peak, datasheet=machine.chip.peak_flops_per_s.get(peak.dtype)) for peak in answers_.peaks),
        memory=tuple(_with_sheet(answers_.levels, machine.chip)),
        notes=tuple(dict.fromkeys(answers_.notes)),
        calibration=written,
        error=_median_error(fitted),
        detected=detected.to_dict(),
        torch_version=seen["torch"],
    )


def _run(todo: list[Stage], device: str, answers_: _Answers, show: OnProgress) -> None:
    """All stages, in one worker as long as it lives; where it dies, the next begins after what killed it."""
    place, deaths = 0, 0
    while place < len(todo):
        begun = place
        request = {"device": device, "stages": [asdict(stage) for stage in todo[place:]]}
        try:
            for answer in answers(WORKER, request):
                if "begun" in answer:
                    begun = place + answer["begun"]
                    show(Progress(begun, len(todo), todo[begun].what))
                _take(answer, answers_)
                if "row" in answer:
                    show(Progress(begun, len(todo), todo[begun].what, answers_.rows[-1]))
            return
        except ChildDiedError as died:
            answers_.notes.append(f"{todo[begun].what}: {died.what}")
            deaths, place = deaths + 1, begun + 1
            if deaths == MOST_DEATHS:
                answers_.notes.append(f"{len(todo) - place} microbenchmarks were left out after that")
                answers_.complete = False
                return


def _take(answer: StageAnswer, answers_: _Answers) -> None:
    if "row" in answer:
        answers_.rows.append(MeasuredRow.from_dict(answer["row"]))
    answers_.rows += [MeasuredRow.from_dict(row) for row in answer.get("kernels", [])]
    if "samples" in answer:
        answers_.samples.append(answer["samples"])
    if "note" in answer:
        answers_.notes.append(answer["note"])
    answers_.peaks += [AchievedPeak(**peak) for peak in answer.get("peaks", [])]
    answers_.levels += [MemoryLevel(**level) for level in answer.get("levels", [])]
    answers_.again += [MemoryLevel(**level) for level in answer.get("again", [])]


def _compare(answers_: _Answers) -> None:
    """Says so where the memory was another at the end than at the beginning, and takes the middle: programs of others on the
    same host use it, too, and this system does not see them."""
    if not answers_.levels or not answers_.again or {answers_.levels[-1].name, answers_.again[-1].name} != {"memory"}:
        return
    first, last = answers_.levels[-1].measured, answers_.again[-1].measured
    middle, apart = (first + last) / 2, abs(first - last) / (first + last)
    answers_.levels[-1] = replace(answers_.levels[-1], measured=middle, spread=max(answers_.levels[-1].spread, apart))
    if apart > CHANGED / 2:
        answers_.notes.append(
            f"memory bandwidth was {first / 1e9:.3g} GB/s at first and {last / 1e9:.3g} at the end: others on "
            "this host use it, or its clock changed; forecasts are for the middle"
        )


def _with_sheet(levels: list[MemoryLevel], chip: Chip) -> Iterator[MemoryLevel]:
    for level in levels:
        yield replace(level, datasheet=chip.memory_bandwidth_bytes_per_s) if level.name == "memory" else level


def _check_idle(detected: DetectedMachine) -> None:
    """Raises UnsupportedError where there is nothing left to measure: others take all of the device, or its memory."""
    free = detected.memory.available_bytes
    if free is not None and free < LEAST_MEMORY_BYTES:
        needed = f"the sweep needs {LEAST_MEMORY_BYTES // 2**20} MiB"
        raise UnsupportedError(
            f"only {free / 2**20:.0f} MiB of memory are free; {needed}.", ["end other programs", "measure on a larger machine"]
        )
    before = load()
    time.sleep(LOOK_S)
    if all_busy(before, load()):
        raise UnsupportedError(
            "other programs use practically all of this machine's processors: the figures would be of what they leave.",
            ["end them, or measure when they are done"],
        )


def _check_device(chip: Chip, device: str) -> None:
    """Raises UnsupportedError where this machine has a GPU that PyTorch does not see."""
    if chip.kind != "cpu" and device == "cpu":
        raise UnsupportedError(
            f"this machine has a GPU ({chip.name}), but this build of PyTorch sees none.",
            ["install a build of PyTorch for it: pytorch.org/get-started", "gpuwise doctor shows what is seen"],
        )


def _median_error(fitted: FitAnswer | None) -> float | None:
    errors = sorted(abs(error) for error in fitted["errors"].values()) if fitted else []
    return errors[len(errors) // 2] if errors else None
