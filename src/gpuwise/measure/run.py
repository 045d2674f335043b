"""measure: runs the microbenchmarks in separate processes, collects their results and writes this machine's calibration.

This process imports no PyTorch. It only waits, so that it does not disturb the measurement, and it survives a killed benchmark.
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
from gpuwise.notes import Note, sentences
from gpuwise.notes import measuring as measuring_notes
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
    """The workers' answers so far."""

    rows: list[MeasuredRow] = field(default_factory=list)
    samples: list[dict[str, object]] = field(default_factory=list)
    peaks: list[AchievedPeak] = field(default_factory=list)
    levels: list[MemoryLevel] = field(default_factory=list)
    again: list[MemoryLevel] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    complete: bool = True
    interrupted: bool = False


def measure(*, quick: bool = False, on_progress: OnProgress | None = None) -> MachineMeasurement:
    """See gpuwise.api.measure."""
    began, before, show = time.monotonic(), load(), on_progress or (lambda _: None)
    machine, detected = detect_machine(load_catalog(), measured=False), detect()
    path = calibration_path(machine_key(detected))
    check_writable(path)
    _check_idle(detected)
    survey: Survey = next(answers(WORKER, {}, purpose="look at this machine"))
    _check_device(machine.chip, survey["device"])
    todo = list(
        stages(
            quick=quick,
            networks=survey["networks"],
            quick_networks=survey["quick"],
            half=survey["half"],
            writing=survey["writing"],
            small=survey["small"],
            device=survey["device"],
        )
    )
    collected = _Answers(notes=list(map(Note.from_dict, survey["left_out"])))
    fitted: FitAnswer | None = None
    if not machine.chip.source.verified:
        collected.notes.append(measuring_notes.datasheet_of_another_processor(source=machine.chip.source.text))
    try:
        _run(todo, survey["device"], collected, show)
    except KeyboardInterrupt:
        collected.complete, collected.interrupted = False, True
    _compare(collected)
    figures = chip_figures(machine.chip, collected.rows, collected.peaks, collected.levels)
    if len(collected.samples) >= FEWEST_NETWORKS:
        show(Progress(len(todo), len(todo), "fitting the calibration"))
        try:
            fitted = next(answers(WORKER, {"samples": collected.samples, "figures": figures}, purpose="fit"))
        except ChildDiedError as died:  # what was measured is kept
            collected.notes.append(measuring_notes.fit_failed(problem=died.what))
        except KeyboardInterrupt:
            collected.complete, collected.interrupted = False, True
    after = load()
    collected.notes += disturbances(before, after)
    taken, written = datetime.now(UTC).isoformat(timespec="seconds"), ""
    if all_busy(before, after, device=survey["device"]):
        collected.notes.append(measuring_notes.not_kept_busy())
    elif fitted is not None:
        about = {
            "taken": taken,
            "method": METHOD,
            "torch": survey["torch"],
            "threads": survey["threads"],
            "machine": machine.name,
            "quick": quick,
            "complete": collected.complete,
            "notes": list(sentences(collected.notes)),
        }
        write(path, machine.chip.id, fitted, {**figures, "as_of": taken[:10]} if figures else {}, about)
        written = str(path)
    elif len(collected.samples) < FEWEST_NETWORKS:
        collected.notes.append(measuring_notes.not_kept_too_few())
    else:
        collected.notes.append(measuring_notes.not_kept_not_fitted())
    return MachineMeasurement(
        machine=machine.name,
        chip=machine.chip.id,
        device=survey["device"],
        taken=taken,
        seconds=time.monotonic() - began,
        quick=quick,
        complete=collected.complete,
        interrupted=collected.interrupted,
        rows=tuple(collected.rows),
        peaks=tuple(replace(peak, datasheet=machine.chip.peak_flops_per_s.get(peak.dtype)) for peak in collected.peaks),
        memory=tuple(_with_sheet(collected.levels, machine.chip)),
        typed_notes=tuple(dict.fromkeys(collected.notes)),
        calibration=written,
        error=_median_error(fitted),
        detected=detected.to_dict(),
        torch_version=survey["torch"],
    )


def _run(todo: list[Stage], device: str, collected: _Answers, show: OnProgress) -> None:
    """Runs all stages in one worker. If it dies, the next worker continues after the stage that killed it."""
    first, deaths = 0, 0
    while first < len(todo):
        begun = first
        request = {"device": device, "stages": [asdict(stage) for stage in todo[first:]]}
        try:
            for answer in answers(WORKER, request):
                if "begun" in answer:
                    begun = first + answer["begun"]
                    show(Progress(begun, len(todo), todo[begun].what))
                _take(answer, collected)
                if "row" in answer:
                    show(Progress(begun, len(todo), todo[begun].what, collected.rows[-1]))
            return
        except ChildDiedError as died:
            collected.notes.append(measuring_notes.stage_died(stage=todo[begun].what, problem=died.what))
            deaths, first = deaths + 1, begun + 1
            if deaths == MOST_DEATHS:
                collected.notes.append(measuring_notes.rest_left_out(microbenchmarks=len(todo) - first))
                collected.complete = False
                return


def _take(answer: StageAnswer, collected: _Answers) -> None:
    if "row" in answer:
        collected.rows.append(MeasuredRow.from_dict(answer["row"]))
    collected.rows += [MeasuredRow.from_dict(row) for row in answer.get("kernels", [])]
    if "samples" in answer:
        collected.samples.append(answer["samples"])
    if "note" in answer:
        collected.notes.append(Note.from_dict(answer["note"]))
    collected.peaks += [AchievedPeak(**peak) for peak in answer.get("peaks", [])]
    collected.levels += [MemoryLevel(**level) for level in answer.get("levels", [])]
    collected.again += [MemoryLevel(**level) for level in answer.get("again", [])]


def _compare(collected: _Answers) -> None:
    """Adds a note if memory bandwidth differs between the beginning and the end of the sweep, and takes the middle.

    Other programs on the same host, invisible to this system, may use the memory, too.
    """
    if not collected.levels or not collected.again or {collected.levels[-1].name, collected.again[-1].name} != {"memory"}:
        return
    first, last = collected.levels[-1].measured, collected.again[-1].measured
    middle, apart = (first + last) / 2, abs(first - last) / (first + last)
    collected.levels[-1] = replace(collected.levels[-1], measured=middle, spread=max(collected.levels[-1].spread, apart))
    if apart > CHANGED / 2:
        collected.notes.append(measuring_notes.memory_changed(before_bytes_per_s=first, after_bytes_per_s=last))


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
