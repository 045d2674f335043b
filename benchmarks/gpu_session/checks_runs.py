"""Runs that are stopped, killed, continued or run out of memory, and what their checkpoints hold the device up for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_session.checks_copies import needs_cuda
from benchmarks.gpu_session.models import classifier, deterministic, language
from gpuwise.job import Job
from gpuwise.runtime import Training, TrainSettings
from gpuwise.runtime.health import is_out_of_memory
from gpuwise.runtime.health.out_of_memory import MemoryView, explain
from gpuwise.strategy import Strategy

STEPS, HALF = 40, 17
JOB_FILE = """from benchmarks.gpu_session.models import classifier, deterministic
deterministic()
job = classifier(dropout=0.3, clip_norm=1.0, ema_decay=0.9)
"""
SOON_S, LATE_S = 60.0, 120.0


def _losses(job: Job, strategy: Strategy, device: torch.device, folder: str, *, until: int = STEPS) -> list[float]:
    """Of the micro-batches of a run's steps up to one at which the loop is left. The log has them, too, but several in one."""
    seen: list[torch.Tensor] = []

    def loss(model: Any, batch: Any) -> torch.Tensor:
        result = job.loss(model, batch)
        seen.append(result.detach())
        return result

    settings = TrainSettings(steps=STEPS, folder=Path(folder) / "run", progress="silent", preemption="none", save_every_s=3600)
    for step in Training(replace(job, loss=loss), strategy, settings, device=device):
        if step.step == until:
            break
    return [value.item() for value in seen]


def resumed(device: torch.device, *, job: Callable[..., Job], precision: str, **settings: Any) -> dict[str, Any]:
    """A run that was left in the middle and continued has, bit by bit, the losses of one that was not."""
    deterministic(attention=False)
    made = job(ema_decay=0.9, schedule="cosine")
    strategy = Strategy(precision=precision, micro_batch=8, optimizer="adamw", **settings)
    runs: list[list[float]] = []
    for _ in range(2):  # whether the steps themselves give the same bits each time
        with tempfile.TemporaryDirectory() as folder:
            runs.append(_losses(made, strategy, device, folder))
    with tempfile.TemporaryDirectory() as folder:
        parts = [*_losses(made, strategy, device, folder, until=HALF), *_losses(made, strategy, device, folder)]
    assert runs[0] == runs[1], "two runs of the same differ: nothing can be said of a continued one"
    different = [number for number, (a, b) in enumerate(zip(runs[0], parts, strict=True), 1) if a != b]
    assert not different, f"micro-batches {different[:5]} have other losses"
    return {"losses": parts[-2:]}


def stopped(device: torch.device, *, number: int, steps: int = 1500) -> dict[str, Any]:
    """`gpuwise train` in a process of its own gets a signal in the middle; the same command continues it. The weights are
    those of a run that was left alone."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.py").write_text(JOB_FILE, encoding="utf-8")
        alone, _, _ = _train(folder, "alone", steps)
        assert alone == 0, alone
        code, saw, seconds = _train(folder, "stopped", steps, stop_at=steps // 10, number=number)
        assert code != 0, "the run had ended before the signal came"
        again, _, _ = _train(folder, "stopped", steps)
        assert again == 0, again
        weights = [_weights(Path(folder) / f"{name}.safetensors") for name in ("alone", "stopped")]
    assert weights[0].keys() == weights[1].keys()
    apart = max(float((weights[0][name].float() - weights[1][name].float()).abs().max()) for name in weights[0])
    assert apart == 0.0, f"weights differ by up to {apart}"
    return {
        "exit_code": code,
        "stopped_at": saw,
        "seconds_to_end": seconds,
    }


def _train(folder: str, run: str, steps: int, *, stop_at: int | None = None, number: int = 0) -> tuple[int, int, float]:
    """Exit code, the step that was logged when the signal was sent, and seconds from it to the end."""
    command = [
        sys.executable,
        "-m",
        "gpuwise",
        "train",
        "job.py:job",
        "--steps",
        str(steps),
        "--run",
        run,
        "--micro-batch",
        "8",
        "--precision",
        "fp32",
        "--no-compile",
        "--save-every",
        "0.2s",
        "--preemption",
        "none",
        "--export",
        f"{run}.safetensors",
    ]
    log, seen, sent_s = Path(folder) / run / "log.jsonl", 0, 0.0
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        until_s = time.monotonic() + SOON_S
        while stop_at is not None and process.poll() is None and time.monotonic() < until_s:
            seen = _last_step(log)
            if seen >= stop_at:
                process.send_signal(number)
                sent_s = time.monotonic()
                break
            time.sleep(0.01)
        _, message = process.communicate(timeout=LATE_S)
    if process.returncode not in (0, -number) and stop_at is None:
        raise AssertionError(f"train ended with {process.returncode}: {message[-400:]}")
    return process.returncode, seen, time.monotonic() - sent_s if sent_s else 0.0


def _last_step(log: Path) -> int:
    if not log.exists():
        return 0
    result = 0
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            result = max(result, json.loads(line).get("step", 0))
        except ValueError:  # the line that is being written
            continue
    return result


def _weights(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def too_large(device: torch.device) -> dict[str, Any]:
    """Memory that runs out is known as such, with the bytes asked for; what is in use by fragments and others is told apart."""
    needs_cuda(device)
    free, _ = torch.cuda.mem_get_info(device)
    try:
        torch.empty(2 * free, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        failure: RuntimeError | None = error
    else:
        failure = None
    assert failure is not None, "twice the free memory could be allocated"
    assert is_out_of_memory(failure), str(failure)
    text = explain(failure, MemoryView(device=device, strategy=Strategy(micro_batch=8)), where="the check").what
    assert "ran out of memory asking for" in text, text
    blocks = [torch.empty(2**26, dtype=torch.uint8, device=device) for _ in range(256)]
    del blocks[::2]
    fragments = explain(RuntimeError("CUDA out of memory"), MemoryView(device=device), where="the check").what
    assert "fragments" in fragments, fragments
    return {"said": text, "fragments": fragments}


def out_of_memory_run(device: torch.device) -> dict[str, Any]:
    """A run that needs more than there is ends with its own words and exit code, and leaves the device usable."""
    needs_cuda(device)
    command = [
        sys.executable,
        "-m",
        "gpuwise",
        "train",
        "llama3-8b",
        "--steps",
        "2",
        "--no-run",
        "--micro-batch",
        "64",
        "--precision",
        "fp32",
        "--preemption",
        "none",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LATE_S)
    assert done.returncode not in (0, 1), f"{done.returncode}: {done.stderr[-400:]}"
    assert "out of memory" in done.stderr or "not fit" in done.stderr, done.stderr[-600:]
    assert "Traceback" not in done.stderr, done.stderr[-600:]
    return {"exit_code": done.returncode, "said": done.stderr.strip()[-800:]}


CHECKS: dict[str, Callable[[torch.device], dict[str, Any]]] = {
    "continued, fp32": partial(resumed, job=partial(classifier, dropout=0.3), precision="fp32"),
    "continued, amp-fp16": partial(resumed, job=classifier, precision="amp-fp16"),
    "continued, language, bf16": partial(resumed, job=language, precision="bf16", accumulation=2),
    "continued, offload": partial(resumed, job=language, precision="fp32", offload="optimizer"),
    "SIGTERM": partial(stopped, number=signal.SIGTERM),
    "SIGKILL": partial(stopped, number=signal.SIGKILL),
    "out of memory": too_large,
    "out of memory, train": out_of_memory_run,
}
