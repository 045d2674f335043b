"""The ranks that `gpuwise train` starts on this machine itself, checked before any of them is started."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.api.rank_start import mesh_to_run
from gpuwise.api.run_start import check_device, planned_job, this_device
from gpuwise.api.sources import job_of
from gpuwise.api.train_keywords import TrainKeywords, train_settings
from gpuwise.errors import InputError, JobError
from gpuwise.hardware import detect_machine, load_catalog
from gpuwise.hardware.detect.ranks import rank_environment
from gpuwise.plan.types import Plan
from gpuwise.step_settings import RunSettings, job_word, named_sizes, strategy_to_run
from gpuwise.strategy import HostSettings, Mesh
from gpuwise.units import format_bytes

# Anonymous memory of a process that has imported what a rank needs and made nothing yet (PyTorch 2.13 for CPUs on Linux):
# python -c "from gpuwise.runtime import Training; print(open('/proc/self/status').read())" prints it as RssAnon.
RANK_BYTES = 225 * 2**20


@dataclass(frozen=True)
class LocalRanks:
    """Ranks to start.

    Attributes:
        count: how many.
        threads: of each rank; None where the user does not name them.
    """

    count: int
    threads: int | None


def ranks_to_start(
    job_argument: str, plan: Plan | None, keywords: TrainKeywords, *, requested: RunSettings, max_restarts: int
) -> LocalRanks | None:
    """The ranks of a mesh of several devices; None where this process trains, alone or as a rank of some launcher.

    A process that trains checks its settings itself.

    Arguments:
        requested: the step's settings among the keywords.

    Raises InputError for settings that exclude each other or make no sense, for more ranks than this machine has devices, and
    for a mesh that does not divide the job's layers, heads, experts or sequences; UnsupportedError for a plan for other
    devices.
    """
    if rank_environment() is not None:
        return None
    from gpuwise.job.dependencies import require

    mesh = mesh_to_run(requested, plan)
    if mesh.devices == 1:
        if max_restarts:
            raise InputError(
                "--max-restarts starts the ranks of a mesh again; this run is one process.",
                ["leave out --max-restarts", "--mesh dp=N"],
            )
        return None
    require("torch", purpose="train")
    host = HostSettings.from_dict(requested) if plan is None else plan.host
    train_settings(keywords, plan, host=host, job_argument=job_argument)
    if plan is not None:
        check_device(plan, this_device().chip)
    job = job_word(job_argument)
    elsewhere = "start the ranks of several machines with torchrun or srun"
    planned = "" if plan is None else f"plan for this machine: gpuwise plan {job} --on here -o plan.toml"
    check_devices_here(mesh, f"gpuwise train {job}", elsewhere, fewer=planned)
    _check_job(job_argument, plan, requested)
    return LocalRanks(mesh.devices, host.threads)


def check_devices_here(mesh: Mesh, command: str, elsewhere: str, *, fewer: str = "") -> None:
    """Raises InputError for more ranks than this machine has accelerators, and on a CPU for more than its memory has room for.

    Arguments:
        command: the command without its mesh.
        elsewhere: a way out with as many devices.
        fewer: a way out with fewer; "" (default) names a smaller mesh.
    """
    from gpuwise.runtime.devices import accelerator, backend_of

    here = accelerator()
    if here is None:
        _check_memory(mesh, elsewhere)
        return
    count = backend_of(here).count()
    if mesh.devices <= count:
        return
    smaller = f"--mesh dp={count}" if count > 1 else f"leave out --mesh: {command}"
    raise InputError(
        f"the mesh {mesh} is of {mesh.devices} devices; this machine has {count} of type {here.type}.",
        [fewer or smaller, elsewhere],
    )


def _check_job(job_argument: str, plan: Plan | None, requested: RunSettings) -> None:
    """Raises what every rank would raise of the job, where the mesh splits its model or sequences."""
    from gpuwise.runtime.parallel.job_checks import check_job

    strategy = strategy_to_run(requested) if plan is None else plan.strategy
    if strategy.mesh.devices == strategy.mesh.data_parallel and strategy.mesh.ep == 1:
        return  # any model has replicas and shards, so its file need not be run here
    try:
        job = job_of(job_argument, **named_sizes(requested)) if plan is None else planned_job(job_argument, plan)
    except JobError:
        return  # a file may be written for ranks, which will say what is wrong with it
    check_job(job, strategy)


def _check_memory(mesh: Mesh, elsewhere: str) -> None:
    """Raises InputError where PyTorch alone would take all memory of the machine."""
    memory_bytes = detect_machine(load_catalog()).host_memory_bytes
    if memory_bytes is None or mesh.devices * RANK_BYTES <= memory_bytes:
        return
    raise InputError(
        f"the mesh {mesh} is of {mesh.devices} devices: on this CPU each is a process, which takes {format_bytes(RANK_BYTES)} "
        f"for PyTorch alone, and the machine has {format_bytes(memory_bytes)}.",
        ["a smaller --mesh", elsewhere],
    )
