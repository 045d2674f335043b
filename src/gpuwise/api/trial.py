"""The child process of one trial of `validate`: forecasts a job for this machine, says so, runs it, says what it measured.

    python -m gpuwise.api.trial (asked and answering as gpuwise.measure.child has it)

Asked: {"job": text, "sizes": {...}, "strategy": {...}, "steps": n or null, "suite": whether job names a member of the suite}.
Answers: {"doing": text} as it goes, {"forecast": {...}, ...}, {"measured": {...}}, or {"failed": {...}} or
{"out_of_memory": text} at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from gpuwise.api.forecasting import Priced, forecast_step
from gpuwise.api.measured import torch_version
from gpuwise.api.mesh_trial import run_ranks
from gpuwise.api.source import StepSource
from gpuwise.api.sources import job_of, source_of
from gpuwise.api.traced import JobSource
from gpuwise.errors import GpuwiseError, MissingDependencyError, UnsupportedError
from gpuwise.hardware.types import Chip
from gpuwise.measure.child import WorkerConnection
from gpuwise.notes.step import of_a_step
from gpuwise.step_settings import DeviceSettings, mesh_of
from gpuwise.trace.digest import digest

if TYPE_CHECKING:
    from gpuwise.job import Job

ON, ON_RANKS = "here:1", "here"  # a mesh says of itself how many devices it takes


def main() -> None:
    child = WorkerConnection()
    _end_before_others()
    job: Job | None = None
    doing = "preparing"

    def say(what: str) -> None:
        nonlocal doing
        doing = what
        child.send(doing=what)

    try:
        say("forecast")
        priced, job = _forecast(**child.request)
        import torch

        device = torch_device(priced.device.chip)
        forecast = replace(priced.forecast, assumption_notes=of_a_step(priced.forecast.assumption_notes))
        child.send(
            forecast=forecast.to_dict(),
            digest=digest(priced.trace, forecast.strategy),
            device=device,
            threads=torch.get_num_threads(),
            torch_version=torch_version(),
        )
        if forecast.strategy.mesh.devices > 1:
            run_ranks(child, forecast.strategy)
            return
        from gpuwise.measure.trial import run_trial

        measured = run_trial(job, forecast.strategy, torch.device(device), steps=child.request["steps"], say=say)
        child.send(measured=asdict(measured))
    except Exception as error:  # the job's own code may raise anything
        if _is_out_of_memory(error):
            child.send(out_of_memory=f"{' '.join(str(error).split())[:300] or type(error).__name__}")
        else:
            child.send(failed=_explained(error, job, doing).to_dict()["error"])


def _forecast(job: str, sizes: Mapping[str, int], strategy: DeviceSettings, suite: bool, **_: object) -> tuple[Priced, Job]:
    """The forecast of `gpuwise forecast --on here` without earlier measurements, and the job to run."""
    from gpuwise.job.dependencies import require

    require("torch", purpose=f"run {job}")
    if suite:
        return _of_suite(job)
    runnable, source = job_of(job, **sizes), source_of(job, **sizes)
    several = (mesh := mesh_of(strategy)) is not None and mesh.devices > 1
    return forecast_step(source, ON_RANKS if several else ON, history=False, **strategy), runnable


def _of_suite(name: str) -> tuple[Priced, Job]:
    """A member of the suite at a micro-batch for this machine, halved until its forecast leaves headroom."""
    from gpuwise.api.devices import device_of
    from gpuwise.hardware.catalog import load_catalog
    from gpuwise.measure.suite import LARGEST_SHARE, members, scaled
    from gpuwise.measure.suite_jobs import suite_job

    member = members((name,))[0]
    job = suite_job(member)
    source: StepSource = JobSource(job, "", {})
    device = device_of(ON, load_catalog())
    micro_batch = scaled(member, device.chip)
    while True:
        priced = forecast_step(source, ON, history=False, precision="fp32", micro_batch=micro_batch)
        memory = priced.forecast.memory
        if micro_batch == 1 or not memory.capacity_bytes or memory.device_bytes <= LARGEST_SHARE * memory.capacity_bytes:
            return priced, job
        micro_batch //= 2


def torch_device(chip: Chip) -> str:
    """PyTorch's device name of this machine's chip. Raises UnsupportedError if PyTorch cannot use it."""
    import torch

    from gpuwise.runtime.devices import accelerator

    if chip.kind == "cpu":
        return "cpu"
    if device := accelerator():
        return device.type
    raise UnsupportedError(
        f"`here` is {chip.name}, but PyTorch {torch.__version__} does not find it.",
        ["install a PyTorch built for it", "look at `gpuwise doctor`"],
    )


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MissingDependencyError):  # of PyTorch itself, for one
        return False
    from gpuwise.runtime.health import is_out_of_memory

    return is_out_of_memory(error)


def _explained(error: Exception, job: Job | None, doing: str) -> GpuwiseError:
    if job is None:
        if isinstance(error, GpuwiseError):
            return error
        return GpuwiseError(f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}")
    from gpuwise.runtime.build.failure import job_failure

    return job_failure(error, job, doing=doing, part=job.loss)


def _end_before_others() -> None:
    """Makes Linux kill this process first when memory runs out, not its parent (proc(5), oom_score_adj)."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


if __name__ == "__main__":
    main()
