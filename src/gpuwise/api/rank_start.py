"""The start of a run on several ranks: how many there are, which one this process is, and what rank 0 chooses for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpuwise.api.train_keywords import TrainKeywords, step_keywords, train_settings
from gpuwise.errors import InputError
from gpuwise.hardware.detect.ranks import RankEnvironment, rank_environment
from gpuwise.json_types import Json
from gpuwise.notes import Note
from gpuwise.plan.types import Plan
from gpuwise.step_settings import ParallelSettings, job_word
from gpuwise.strategy import HostSettings, Mesh, Strategy

if TYPE_CHECKING:
    import torch

    from gpuwise.runtime import TrainSettings
    from gpuwise.runtime.ranks import RunRanks


def mesh_of(settings: ParallelSettings, plan: Plan | None) -> Mesh:
    """The mesh of the settings, or of a plan. Raises InputError for one that cannot be read."""
    if plan is not None:
        return plan.strategy.mesh
    mesh = settings.get("mesh")
    return Mesh.parse(mesh) if isinstance(mesh, str) else mesh or Mesh()


def check_launch(mesh: Mesh, environment: RankEnvironment | None, job_argument: str) -> None:
    """Raises InputError for a mesh of another number of devices than there are ranks, before anything is started."""
    from gpuwise.runtime.run.preparation import check_ranks

    check_ranks(mesh, 1 if environment is None else environment.size, job_argument)


def joined(environment: RankEnvironment | None) -> tuple[RunRanks, torch.device | None]:
    """The ranks of the run and this rank's device; a process alone, and None, without an environment of ranks."""
    from gpuwise.runtime.ranks import ALONE_IN_RUN
    from gpuwise.runtime.ranks.joining import join

    if environment is None:
        return ALONE_IN_RUN, None
    device = rank_device(environment)
    return join(environment, device), device


def rank_device(environment: RankEnvironment) -> torch.device:
    """The device of a rank. Raises InputError where it has none.

    A launcher other than torchrun may show each process its own device alone, which is then the first.
    """
    from gpuwise.runtime.devices import accelerator, backend_of
    from gpuwise.runtime.devices.here import device_of_rank

    here = accelerator()
    bound = here is not None and not environment.hosted_by_agent and backend_of(here).count() == 1
    device = device_of_rank(0 if bound else environment.local_rank)
    backend_of(device).use()
    return device


def chosen_by_first(
    ranks: RunRanks, choose: Callable[[], tuple[Strategy, tuple[Note, ...]]]
) -> tuple[Strategy, tuple[Note, ...]]:
    """A strategy that depends on the machine, as rank 0 chooses it."""

    def choice() -> Json:
        strategy, notes = choose()
        return {"strategy": strategy.to_dict(), "notes": [note.to_dict() for note in notes]}

    answer = cast(dict[str, Json], ranks.own.of_first("strategy", choice))
    strategy = cast(dict[str, object], answer["strategy"])
    return Strategy.from_dict(strategy), tuple(map(Note.from_dict, cast(list[Json], answer["notes"])))


def folder_of_first(
    ranks: RunRanks, environment: RankEnvironment, settings: TrainSettings, in_folder: Callable[[TrainSettings], TrainSettings]
) -> TrainSettings:
    """The settings with the folder that rank 0 chooses. After a restart it is that of the first start, and is continued."""
    again = environment.attempt > 0 and settings.resume == "never"
    settings = replace(settings, resume="auto") if again else settings

    def choice() -> Json:
        folder = in_folder(settings).folder
        return None if folder is None else str(folder)

    folder = ranks.own.of_first("folder", lambda: ranks.own.lasting("folder", choice))
    return replace(settings, folder=None if folder is None else Path(str(folder)))


def ranks_to_start(mesh: Mesh, job_argument: str, *, max_restarts: int | None) -> int:
    """Ranks that the command line is to start itself: 0 where this process is one of a launcher's, or the only one.

    Raises InputError for a mesh that does not fit the launcher or this machine.
    """
    environment = rank_environment()
    if environment is not None:
        check_launch(mesh, environment, job_argument)
        return 0
    if mesh.devices == 1:
        if max_restarts:
            raise InputError(
                "--max-restarts starts the ranks of a mesh again; this run is one process.",
                ["leave out --max-restarts", "--mesh dp=N"],
            )
        return 0
    check_local_devices(mesh, job_argument)
    return mesh.devices


def checked_host(keywords: TrainKeywords, plan: Plan | None, job_argument: str) -> HostSettings:
    """The host settings of each rank. Raises InputError for keywords that make no sense, before ranks are started with them."""
    host = HostSettings.from_dict(step_keywords(keywords, plan)) if plan is None else plan.host
    return train_settings(keywords, plan, host=host, job_argument=job_argument).host


def check_local_devices(mesh: Mesh, job_argument: str) -> None:
    """Raises InputError for more ranks than this machine has accelerators; on CPUs, any number of ranks shares the cores."""
    from gpuwise.runtime.devices import accelerator, backend_of

    here = accelerator()
    if here is None:
        return
    count = backend_of(here).count()
    if mesh.devices > count:
        raise InputError(
            f"the mesh {mesh} is of {mesh.devices} devices; this machine has {count} of type {here.type}.",
            [
                f"--mesh dp={count}" if count > 1 else f"leave out --mesh: gpuwise train {job_word(job_argument)}",
                "start the ranks of several machines with torchrun or srun",
            ],
        )
