"""How this process was started: alone, or as one rank of several by torchrun, Slurm's srun or a launcher of Kubernetes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from gpuwise.errors import InputError

# Variables of torchrun (https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables") and of Kubeflow's
# PyTorchJob, which sets the same without LOCAL_RANK and LOCAL_WORLD_SIZE: there each pod is one rank.
RANK, WORLD, LOCAL_RANK, LOCAL_WORLD = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
DEFAULT_PORT = 29500  # torchrun's
# Variables of srun (https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"). A batch script that starts Python
# without srun has no SLURM_STEP_NUM_TASKS, and is one process.
SLURM_RANK, SLURM_TASKS, SLURM_LOCAL_RANK = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
_LAUNCHED = "GPUWISE_LAUNCHED"  # set by `gpuwise train` for the ranks that it starts itself
_AGENT_STORE, _RESTARTS = "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True)
class RankEnvironment:
    """One rank among those that a launcher has started.

    Attributes:
        rank: number of this rank, from 0.
        size: number of ranks.
        local_rank: number of this rank on its machine, from 0.
        local_size: ranks on this machine; 1 if the launcher does not say.
        address: host where rank 0, or the launcher for it, keeps the store that ranks meet in.
        port: TCP port of that store.
        launcher: "gpuwise", "torchrun", "Slurm" or "environment" (RANK and WORLD_SIZE of something else).
        attempt: restarts so far.
        own_cores: whether the launcher has bound this rank to its share of the machine's cores.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    launcher: str
    attempt: int = 0
    own_cores: bool = False

    @property
    def hosted_by_agent(self) -> bool:
        """Whether the launcher's own process keeps the store; otherwise rank 0 does."""
        return self.launcher in ("gpuwise", "torchrun")

    def variables(self) -> dict[str, str]:
        """The variables that torch.distributed reads (its method env://)."""
        return {RANK: str(self.rank), WORLD: str(self.size), ADDRESS: self.address, PORT: str(self.port)}


def rank_environment(environment: Mapping[str, str] | None = None) -> RankEnvironment | None:
    """This process as a rank; None for a process that was started alone.

    Raises InputError for variables that contradict each other: WORLD_SIZE without RANK, a rank outside the world, no address.
    """
    environment = os.environ if environment is None else environment
    if {RANK, WORLD} & environment.keys():
        return _of_torch(environment)
    if _whole(environment, SLURM_TASKS, least=0, default=1) > 1 and SLURM_RANK in environment:
        return _of_slurm(environment)
    return None


def launched_here(environment: Mapping[str, str] | None = None) -> bool:
    """Whether `gpuwise train` has started this rank, and tells the user what it failed with."""
    return _LAUNCHED in (os.environ if environment is None else environment)


def leads_machine() -> bool:
    """Whether this process is the first rank of its machine, or no rank."""
    environment = rank_environment()
    return environment is None or environment.local_rank == 0


def leads_run() -> bool:
    """Whether this process is rank 0, or no rank."""
    with suppress(InputError):  # of variables that contradict each other, which others report
        environment = rank_environment()
        return environment is None or environment.rank == 0
    return True


def launched_variables() -> dict[str, str]:
    """The variable by which ranks recognise `gpuwise train` as their launcher."""
    return {_LAUNCHED: "1"}


def _of_torch(environment: Mapping[str, str]) -> RankEnvironment | None:
    size = _whole(environment, WORLD, least=1, default=1)
    if size == 1 and RANK not in environment:
        return None
    for name, other in ((RANK, WORLD), (WORLD, RANK)):
        if name not in environment:
            raise InputError(
                f"{other} is {environment[other]!r}, but {name} is not set: nothing says which rank of how many this is.",
                ["start it with torchrun, srun or gpuwise train --mesh, which set both", f"unset {other} to run one process"],
            )
    rank = _whole(environment, RANK, least=0, default=0)
    local_size = _whole(environment, LOCAL_WORLD, least=1, default=1)
    local_rank = _whole(environment, LOCAL_RANK, least=0, default=0)
    _check_inside(RANK, rank, WORLD, size)
    if LOCAL_WORLD in environment:
        _check_inside(LOCAL_RANK, local_rank, LOCAL_WORLD, local_size)
    if size == 1:
        return None
    if not environment.get(ADDRESS):
        raise InputError(
            f"{RANK} and {WORLD} are set, but not {ADDRESS}: this rank does not know where to meet the others.",
            [f"set {ADDRESS} to the host of rank 0", "start it with torchrun, which sets it"],
        )
    launcher = "torchrun" if environment.get(_AGENT_STORE) == str(True) else "environment"
    return RankEnvironment(
        rank,
        size,
        local_rank,
        local_size,
        environment[ADDRESS],
        _whole(environment, PORT, least=1, default=DEFAULT_PORT),
        "gpuwise" if _LAUNCHED in environment else launcher,
        attempt=_whole(environment, _RESTARTS, least=0, default=0),
    )


def _of_slurm(environment: Mapping[str, str]) -> RankEnvironment:
    rank, size = _whole(environment, SLURM_RANK, least=0, default=0), _whole(environment, SLURM_TASKS, least=1, default=1)
    _check_inside(SLURM_RANK, rank, SLURM_TASKS, size)
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    address = environment.get(ADDRESS) or first_node(nodes)
    if not address:
        raise InputError(
            "Slurm names no machine of this job step (SLURM_STEP_NODELIST): this rank does not know where to meet the others.",
            [f"set {ADDRESS} to the host of rank 0"],
        )
    # Two steps of one job, and two jobs on one machine, get different ports above those of services.
    job, step = (_whole(environment, name, least=0, default=0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return RankEnvironment(
        rank,
        size,
        _whole(environment, SLURM_LOCAL_RANK, least=0, default=0),
        _local_tasks(environment),
        address,
        _whole(environment, PORT, least=1, default=20_000 + (job * 7 + step % 7) % 10_000),
        "Slurm",
        attempt=_whole(environment, "SLURM_RESTART_COUNT", least=0, default=0),
        own_cores="SLURM_CPUS_PER_TASK" in environment,
    )


def first_node(nodes: str) -> str:
    """The first host of a list of Slurm: 'gpu[007-010,13],login' gives 'gpu007'."""
    match = re.match(r"([^,\[]*)(?:\[([0-9]+)[^\]]*\])?", nodes.strip())
    return "" if match is None else match[1] + (match[2] or "")


def _local_tasks(environment: Mapping[str, str]) -> int:
    """Tasks on this machine, from lists such as SLURM_STEP_TASKS_PER_NODE='4(x2),3'."""
    counts: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part.strip())
        counts += [int(match[1])] * int(match[2] or 1) if match else []
    node = _whole(environment, "SLURM_NODEID", least=0, default=0)
    return max(1, counts[node]) if node < len(counts) else 1


def _whole(environment: Mapping[str, str], name: str, *, least: int, default: int) -> int:
    text = environment.get(name)
    if text is None or text == "":
        return default
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) < least:
        raise InputError(f"the environment variable {name} is {text!r}; a whole number from {least} on was expected.")
    return int(text)


def _check_inside(name: str, number: int, of: str, size: int) -> None:
    if number >= size:
        raise InputError(
            f"{name} is {number}, and {of} is {size}: ranks are numbered from 0 to {size - 1}.",
            ["start all ranks with one launcher: torchrun, srun or gpuwise train --mesh"],
        )
