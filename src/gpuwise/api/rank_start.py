"""The start of a run on several ranks: how many there are, which one this process is, and what rank 0 chooses for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from gpuwise.hardware.detect.ranks import RankEnvironment
from gpuwise.json_types import Json
from gpuwise.notes import Note
from gpuwise.plan.types import Plan
from gpuwise.step_settings import RunSettings, strategy_to_run
from gpuwise.strategy import Mesh, Strategy

if TYPE_CHECKING:
    import torch

    from gpuwise.cost import Forecast
    from gpuwise.runtime import TrainSettings
    from gpuwise.runtime.ranks import RunRanks

Choice: TypeAlias = "tuple[Strategy, tuple[Note, ...], Forecast | None]"  # the reasons of a strategy, and its forecast


def mesh_to_run(settings: RunSettings, plan: Plan | None) -> Mesh:
    """The mesh of a plan, or of the settings. Raises the errors of strategy_of for settings that exclude each other."""
    return strategy_to_run(settings).mesh if plan is None else plan.strategy.mesh


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


def chosen_by_first(ranks: RunRanks, choose: Callable[[], Choice]) -> Choice:
    """A choice that depends on the machine, as rank 0 makes it. Rank 0 alone has the forecast."""
    if not ranks.own.several:
        return choose()
    forecasts: list[Forecast | None] = [None]

    def choice() -> Json:
        strategy, notes, forecasts[0] = choose()
        return {"strategy": strategy.to_dict(), "notes": [note.to_dict() for note in notes]}

    answer = cast(dict[str, Json], ranks.own.of_first("strategy", choice))
    strategy = Strategy.from_dict(cast(dict[str, object], answer["strategy"]))
    return strategy, tuple(map(Note.from_dict, cast(list[Json], answer["notes"]))), forecasts[0]


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
