"""dstack: a task of one or several nodes, whose script dstack copies into the container beside the files of the launch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from gpuwise.errors import InputError
from gpuwise.json_types import Json
from gpuwise.launch.description import Launch
from gpuwise.launch.device_names import device_name, device_tables
from gpuwise.launch.shell import ends_as_state, exports, script
from gpuwise.launch.target import LaunchTarget, TargetSetting
from gpuwise.launch.torchrun import agent_lines
from gpuwise.notes import Note
from gpuwise.notes import launch as notes
from gpuwise.yaml_text import yaml_text

CONFIGURATION, SCRIPT = "gpuwise.dstack.yml", "run.sh"
# Its runner interrupts the commands and kills them after this: dstackai/dstack runner/internal/runner/executor (killDelay).
# stop_duration is not this: it is how long dstack waits for volumes before it detaches them by force.
KILL_S = 10.0
_FOLDER = "/gpuwise"  # in the container
_PORT = 29500
_RETRY = "1d"  # dstack counts no restarts; it tries again for so long after each interruption
_BACKENDS = ("aws", "azure", "gcp")  # whose instance types have the same names in the catalog
_PYTHON = "3.12"
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def adapts(launch: Launch) -> tuple[Launch, tuple[Note, ...]]:
    """The launch as it is; raises InputError for a run folder that ends with the container, or that nodes do not share."""
    settings = launch.settings
    if len(launch.name) < 2:
        raise InputError(f"dstack's names have 2 characters or more, and {launch.name} has less.", ["--name NAME"])
    if "volume" in settings and "shared" in settings:
        raise InputError("--set volume and --set shared both say where the run folder is.", ["leave out one of them"])
    if launch.machines > 1 and "shared" not in settings:
        raise InputError(
            f"the plan has {launch.machines} machines, and a volume of dstack is attached to one: they share no run folder.",
            ["--set shared=/mnt/runs --run /mnt/runs/NAME, a network file system that the instances mount"],
        )
    if launch.restarts and not {"volume", "shared"} & settings.keys():
        raise InputError(
            "the container's disk is gone after an interruption, and the run folder with it.",
            ["--set volume=NAME --run /runs/NAME keeps it on a volume of dstack", "--restarts 0"],
        )
    run = PurePosixPath(launch.run_folder)
    if {"volume", "shared"} & settings.keys() and (not run.is_absolute() or ".." in run.parts or len(run.parts) < 3):
        raise InputError(
            f"--run {launch.run_folder} is not in a folder where the volume could be mounted.", [f"--run /runs/{launch.name}"]
        )
    return launch, (notes.restarts_not_counted(tool="dstack", lasts=_RETRY),) if launch.restarts else ()


def files(launch: Launch) -> Mapping[str, str]:
    """gpuwise.dstack.yml, and run.sh, which runs on each node."""
    return {CONFIGURATION: yaml_text(_task(launch)), SCRIPT: _script(launch)}


def _task(launch: Launch) -> dict[str, Json]:
    """The configuration: https://dstack.ai/docs/reference/dstack.yml/task."""
    folder = f"{_FOLDER}/{launch.name}"
    task: dict[str, Json] = {"type": "task", "name": launch.name, "nodes": launch.machines}
    task |= {"image": launch.image} if launch.image else {"python": _PYTHON}
    task |= {
        "files": [{"local_path": f"./{name}", "path": f"{folder}/{name}"} for name in (*launch.files, SCRIPT)],
        "commands": [f"bash {folder}/{SCRIPT}"],
        "resources": _resources(launch),
        **_instances(launch),
        "spot_policy": {"spot": "spot", "on-demand": "on-demand"}.get(launch.plan.offer.terms, "auto"),
        "max_duration": launch.time_limit_s,
    }
    if launch.restarts:
        task["retry"] = {"on_events": ["no-capacity", "interruption", "error"], "duration": _RETRY}
    mounted = PurePosixPath(launch.run_folder).parent
    if "volume" in launch.settings:
        task["volumes"] = [{"name": launch.settings["volume"], "path": str(mounted)}]
    elif "shared" in launch.settings:
        task["volumes"] = [{"instance_path": launch.settings["shared"], "path": str(mounted)}]
    if "max-price" in launch.settings:
        task["max_price"] = float(launch.settings["max-price"])
    return task


def _instances(launch: Launch) -> dict[str, Json]:
    """Where and on what it may run: the plan's instance at a provider whose names dstack shares, or what the user says."""
    settings, offer = launch.settings, launch.plan.offer
    backend = settings.get("backend", offer.provider if offer.provider in _BACKENDS else "")
    instance = settings.get("instance-type", offer.instance if backend == offer.provider else "")
    chosen: dict[str, Json] = {"backends": [backend]} if backend else {}
    if instance:
        chosen["instance_types"] = [instance]
    if "region" in settings:
        chosen["regions"] = [settings["region"]]
    return chosen


def _resources(launch: Launch) -> dict[str, Json]:
    """The devices of a node. Raises UnsupportedError for a chip that dstack has no name for, or one name with others."""
    if not launch.devices_per_machine:
        return {"gpu": 0}
    chip, instances = launch.plan.device, _instances(launch)
    unsure = device_tables()["dstack"].unsure
    if "instance_types" in instances and chip in unsure:
        text = unsure[chip]
    else:
        text = device_name(
            "dstack", chip, speaker="dstack", ways_out=["--set instance-type=NAME, as `dstack offer` lists them"]
        )
    name, _, memory = text.partition(":")
    gpu: dict[str, Json] = {"name": [name], "memory": memory, "count": launch.devices_per_machine}
    return {"gpu": gpu, **({"shm_size": launch.settings["shm-size"]} if "shm-size" in launch.settings else {})}


def _script(launch: Launch) -> str:
    """run.sh. The environment is set here: in its own file dstack would read ${{ }} in a value."""
    meets = ("--standalone",) if launch.machines == 1 else ("--rdzv-backend", "c10d", "--rdzv-id", launch.name)
    # torchrun takes flags from PET_ variables: https://docs.pytorch.org/docs/stable/elastic/run.html
    master = [f'export PET_RDZV_ENDPOINT="$DSTACK_MASTER_NODE_IP:{_PORT}"']
    return script(
        f"# Run by {CONFIGURATION} on each node.",
        "set -u",
        'cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2',
        exports(launch.environment),
        [] if launch.machines == 1 else master,
        launch.setup_lines,
        agent_lines(launch, rendezvous=meets),
        ends_as_state(),
    )


def submit(launch: Launch) -> tuple[str, ...]:
    return ("dstack", "apply", "-f", CONFIGURATION)


TARGET = LaunchTarget(
    name="dstack",
    client="dstack",
    client_source="pip install dstack, with a project of yours",
    files=files,
    submit=submit,
    default_grace_s=KILL_S,
    longest_grace_s=KILL_S,
    installs=True,
    adapts=adapts,
    settings={
        "volume": TargetSetting("The volume of dstack where the run folder is kept, of one node.", _WORD, "runs"),
        "shared": TargetSetting(
            "The network file system of the instances where the run folder is kept.", r"/[^\0\n:]+", "/mnt/runs"
        ),
        "backend": TargetSetting("The backend (the plan's provider, where dstack calls it the same).", _WORD, "aws"),
        "region": TargetSetting("The region.", _WORD, "us-east-1"),
        "instance-type": TargetSetting("The instance type (the plan's, at aws, azure and gcp).", r"[^\0\n]+", "p5.48xlarge"),
        "max-price": TargetSetting("The most dollars an hour of an instance.", r"[0-9]{1,6}(\.[0-9]{1,4})?", "30"),
        "shm-size": TargetSetting("Shared memory of a node.", r"[0-9]{1,5}(MB|GB)", "16GB"),
    },
)
