"""Settings of serve_check, read and checked."""

from __future__ import annotations

from math import inf, isinf
from typing import TYPE_CHECKING

from gpuwise.api.devices import Device
from gpuwise.api.serving_job_kinds import check_engine_writes_text
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.serving.graph_engines import GraphEngine
from gpuwise.serving.windowed import WindowPolicy
from gpuwise.serving_settings import CheckSettings
from gpuwise.units import parse_duration, parse_rate

if TYPE_CHECKING:
    from gpuwise.job import Job

BATCH, QUEUE = 8, 1000
PACKED = 16  # requests together in Transformers' continuous batching
MOST_REQUESTS = 100_000


def check_used(requested: CheckSettings, *, generates: bool) -> None:
    """Raises InputError for a setting that changes nothing."""
    unused = [] if generates else [name for name in ("input", "output", "spread") if requested.get(name) is not None]
    if unused:
        raise InputError(
            f"--{unused[0]} is of jobs that generate tokens; a request of this one is a sample of its batch.",
            [f"leave out --{unused[0]}", "--seq-len or --image-size, the sizes of a sample"],
        )
    if requested.get("weights") is not None and requested.get("engine") != "llama.cpp":
        raise InputError(
            "--weights names a format of llama.cpp; the other servers have the type of --precision.",
            ["--engine llama.cpp", "leave out --weights"],
        )
    if requested.get("duration") is not None and requested.get("requests") is not None:
        raise InputError(
            "--duration is in place of --requests: a rate and one of them say the other.",
            ["leave out --requests", "leave out --duration"],
        )
    if requested.get("duration") is not None and requested.get("rate") is not None and isinf(named_rate(requested) or 0.0):
        raise InputError("requests that come all at once have no --duration.", ["--requests, their number"])


def check_packs(job: Job, requested: CheckSettings) -> None:
    """Raises InputError where Transformers' continuous batching cannot serve a job as requested."""
    from gpuwise.job.job import meta_model

    if job.generate is None or not hasattr(meta_model(job), "generate_batch"):
        raise InputError(
            f"{job.name or 'the job'} is no model of Transformers that generates.", ["leave out --engine", "name an hf: model"]
        )
    for name in ("window", "queue", "patience"):
        if requested.get(name) is not None:
            raise InputError(f"--engine transformers has no --{name}.", [f"leave out --{name}", "--engine pytorch"])


def check_runs_graph(engine: GraphEngine, job: Job, device: Device, *, precision: str | None) -> None:
    """Raises InputError or UnsupportedError where an engine of exported graphs cannot serve a job here as requested."""
    if job.generate is not None:
        check_engine_writes_text(
            engine.name, job=job.name or "the job", others="--engine pytorch, or transformers of hf: models"
        )
    if device.target != "cpu":
        raise UnsupportedError(
            f"{engine.name} has figures for processors alone, and this machine serves on {device.chip.id}.",
            ["--engine pytorch", "hide the card: CUDA_VISIBLE_DEVICES= gpuwise serve-check ..."],
        )
    engine.check(device.chip, precision or engine.precision)


def policy_of(requested: CheckSettings, *, generates: bool, joining: int, spread: float) -> WindowPolicy:
    """How the server forms batches. joining: usual number of requests that run together where they join at every iteration; 0
    where whole requests run together."""
    batch = whole(requested, "batch", joining or (1 if generates else BATCH))
    if generates and not joining and batch > 1 and spread > 0:
        raise InputError(
            "plain PyTorch runs prompts of one length together, and these differ.", ["--spread 0", "leave out --batch"]
        )
    window, patience = requested.get("window"), requested.get("patience")
    return WindowPolicy(
        batch,
        window_s=0.0 if window in (None, "0") else parse_duration(str(window)),
        queue=whole(requested, "queue", QUEUE),
        patience_s=inf if patience is None else parse_duration(patience),
    )


def whole(requested: CheckSettings, name: str, default: int, *, least: int = 1) -> int:
    value = requested.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_REQUESTS:
        raise InputError(f"--{name} must be a whole number from {least} to {MOST_REQUESTS:,}, got {value!r}.")
    return value


def named_rate(requested: CheckSettings) -> float | None:
    text = requested.get("rate")
    if text is None:
        return None
    return inf if text.strip().lower() == "inf" else parse_rate(text)


def arrive_s(requested: CheckSettings) -> float | None:
    """Seconds over which requests arrive; None where their number decides."""
    whole(requested, "requests", 1)
    duration = requested.get("duration")
    return None if duration is None else parse_duration(duration)
