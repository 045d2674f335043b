"""SkyPilot: a task for the cloud, region and machine that the plan priced; a managed job where the run must move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.json_types import Json
from gpuwise.launch.description import Launch
from gpuwise.launch.device_names import device_name, device_tables
from gpuwise.launch.secret_names import no_secrets
from gpuwise.launch.shell import ends_as_state, exports, joined, script
from gpuwise.launch.target import LaunchTarget, TargetSetting
from gpuwise.launch.torchrun import agent_lines
from gpuwise.yaml_text import yaml_text

TASK, SCRIPT = "task.yaml", "run.sh"
_TABLE = "skypilot-"  # of device names, before the provider
_BUCKET, _VOLUME = "/bucket", "/runs"  # where they are mounted
_PORT, _INTERRUPTED, _TIMED_OUT = 29500, 130, 124  # 124: of timeout, GNU coreutils
_IDLE_MINUTES = 5
_ASKS_S = 30  # after the ranks have ended: the script asks for the state of the run
# Providers whose regions and instances have the same names in SkyPilot's lists.
_REGIONS = ("aws", "azure", "gcp", "nebius")
_INSTANCES = ("aws", "azure", "gcp", "lambda", "nebius", "paperspace")
_MEGA = "a3-megagpu-"  # of Google; its H100 is called H100-MEGA (fetch_gcp.py)


def files(launch: Launch) -> Mapping[str, str]:
    """task.yaml, and run.sh, which it runs on each machine."""
    _check(launch)
    placed = _placed(launch)
    header = f"Trains as plan.toml says. In its folder: {joined(submit(launch))}"
    return {TASK: yaml_text(_task(launch), comment=[header]), SCRIPT: _script(placed)}


def managed(launch: Launch) -> bool:
    """Whether SkyPilot's controller watches the run: it moves one whose machine is gone, and starts all machines again."""
    return launch.plan.offer.terms == "spot" or (launch.machines > 1 and launch.restarts > 0)


def _check(launch: Launch) -> None:
    """Raises InputError or UnsupportedError for what SkyPilot cannot do with the plan, before anything is written."""
    offer = launch.plan.offer
    if f"{_TABLE}{offer.provider}" not in device_tables():
        clouds = ", ".join(name.removeprefix(_TABLE) for name in device_tables() if name.startswith(_TABLE))
        raise UnsupportedError(
            f"SkyPilot does not rent at {offer.provider or 'machines of your own'}, which the plan is for.",
            [f"a plan for an offer of {clouds}: gpuwise offers lists them", "--to ssh"],
        )
    if offer.terms not in ("on-demand", "spot"):
        raise UnsupportedError(
            f"the plan is priced {offer.terms}, which SkyPilot does not buy.",
            ["plan on demand or spot: gpuwise plan --on DEVICE"],
        )
    if offer.provider == "runpod" and "community" in offer.instance:  # fetch_runpod.py: "Only secure cloud instances"
        raise UnsupportedError(
            "the plan is for a community machine of runpod, and SkyPilot rents its secure ones alone, at another price.",
            [
                "a plan for another offer: gpuwise plan --where provider!=runpod",
                "--to ssh, on a machine that you rent yourself",
            ],
        )
    no_secrets(launch, "--set secrets=NAME,NAME: `sky` reads them from your environment")
    if not _kept_elsewhere(launch) and (managed(launch) or launch.machines > 1):
        raise InputError(
            f"{launch.run_folder} lies on the machine's own disk: a run folder no other machine can see, so that the next one "
            "would begin anew.",
            ["--set bucket=s3://BUCKET", "--set volume=NAME of `sky volumes apply`"],
        )


def _kept_elsewhere(launch: Launch) -> bool:
    return "bucket" in launch.settings or "volume" in launch.settings


def _placed(launch: Launch) -> Launch:
    """The launch with its run where a task finds it, and restarts by the agent only where no controller makes them."""
    restarts = 0 if managed(launch) else launch.restarts
    if "volume" in launch.settings:
        return replace(launch, restarts=restarts, run_folder=_in_volume(launch))
    if "bucket" in launch.settings:
        return replace(launch, restarts=restarts, copy_to=f"{_BUCKET}/{launch.name}")
    return replace(launch, restarts=restarts)


def _in_volume(launch: Launch) -> str:
    """The folder of the run in the volume, which is mounted as the folder around it.

    Raises InputError for a path that has no folder around it to mount at.
    """
    folder = PurePosixPath(launch.run_folder)
    if not folder.is_absolute():
        return f"{_VOLUME}/{launch.name}"
    if len(folder.parts) < 3 or ".." in folder.parts:
        raise InputError(
            f"--run {launch.run_folder} is not in a folder where the volume could be mounted.",
            [f"--run {_VOLUME}/{launch.name}"],
        )
    return str(folder)


def _task(launch: Launch) -> dict[str, Json]:
    """docs.skypilot.co, "YAML spec"."""
    settings = launch.settings
    task: dict[str, Json] = {
        "name": launch.name,
        "workdir": ".",
        "num_nodes": launch.machines,
        "resources": _resources(launch),
    }
    if "volume" in settings:
        task["volumes"] = {_in_volume(launch).rpartition("/")[0]: settings["volume"]}
    elif "bucket" in settings:
        task["file_mounts"] = {_BUCKET: {"source": settings["bucket"], "mode": "MOUNT_CACHED"}}
    task["run"] = _run(launch)
    return task


def _resources(launch: Launch) -> dict[str, Json]:
    """What is bought for each machine: the row of the price list that the plan is for."""
    offer, provider = launch.plan.offer, launch.plan.offer.provider
    region = f"/{offer.region}" if provider in _REGIONS else ""
    resources: dict[str, Json] = {"infra": f"{provider}{region}"}
    instance = offer.instance.partition("+")[0]  # "n1-standard-8+1xT4": Google's GPUs are added to a machine
    if provider in _INSTANCES and " " not in instance and offer.count == launch.devices_per_machine:
        resources["instance_type"] = instance
    elif not launch.devices_per_machine:
        raise UnsupportedError(
            f"SkyPilot has no name for {provider}'s {offer.instance}.", ["plan for another offer: gpuwise offers lists them"]
        )
    if count := launch.devices_per_machine:
        ways = ["plan for another offer: gpuwise offers lists them", "--to ssh, on a machine that you rent yourself"]
        name = device_name(f"{_TABLE}{provider}", launch.plan.device, speaker=f"SkyPilot at {provider}", ways_out=ways)
        resources["accelerators"] = f"{'H100-MEGA' if instance.startswith(_MEGA) else name}:{count}"
    resources["use_spot"] = offer.terms == "spot"
    if launch.image:
        resources["image_id"] = f"docker:{launch.image}"
    if managed(launch):
        # 130 is a run that saved before its machine went: it goes on, however often. Other failures count.
        recovery: dict[str, Json] = {"max_restarts_on_errors": launch.restarts, "recover_on_exit_codes": [_INTERRUPTED]}
        resources["job_recovery"] = recovery
    else:
        # With the run on its own disk the machine is stopped, not deleted.
        resources["autostop"] = {"idle_minutes": _IDLE_MINUTES, "down": _kept_elsewhere(launch)}
    return resources


def _run(launch: Launch) -> str:
    """The command of each machine. SkyPilot has no time limit: past it the run is saved, and ends without a restart."""
    return "\n".join(
        [
            f"timeout --kill-after={launch.grace_s + _ASKS_S} {launch.time_limit_s} bash {SCRIPT}",
            "code=$?",
            f"if [ $code -eq {_TIMED_OUT} ]; then",
            f'  echo "the time limit of {launch.time_limit_s} s has passed: the run is saved, and not done" >&2',
            "  exit 0  # any other code would start it again",
            "fi",
            "exit $code",
            "",
        ]
    )


def _script(launch: Launch) -> str:
    """run.sh. Variables: docs.skypilot.co, "Secrets and environment variables"; torchrun reads PET_*."""
    meets = [
        'PET_MASTER_ADDR="$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"',
        f'export PET_MASTER_ADDR PET_MASTER_PORT={_PORT} PET_NODE_RANK="$SKYPILOT_NODE_RANK"',
    ]
    own_python = [
        "# SkyPilot's images come with conda, and may have an older Python than gpuwise needs.",
        "if ! python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then",
        "  conda create --yes --quiet --name gpuwise python=3.12 || exit 2",
        '  PATH="$(conda info --base)/envs/gpuwise/bin:$PATH"',
        "fi",
    ]
    return script(
        f"# Run by {TASK} on each machine.",
        "set -u",
        'cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2',
        exports(launch.environment),
        [] if launch.machines == 1 else meets,
        own_python if launch.install and not launch.image else [],
        launch.setup_lines,
        agent_lines(launch, rendezvous=("--standalone",) if launch.machines == 1 else ()),
        # With a bucket only the first machine has the state of the run; ranks end with 0 when all is done.
        'if [ "$code" -eq 0 ]; then exit 0; fi',
        ends_as_state(),
    )


def submit(launch: Launch) -> tuple[str, ...]:
    """The client shows what it will rent, and asks before it does."""
    secrets = [word for name in launch.settings.get("secrets", "").split(",") if name for word in ("--secret", name)]
    if managed(launch):
        return ("sky", "jobs", "launch", "--name", launch.name, *secrets, TASK)
    return ("sky", "launch", "--cluster", launch.name, *secrets, TASK)


_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
TARGET = LaunchTarget(
    name="skypilot",
    client="sky",
    client_source="pip install 'skypilot[aws]', or the cloud of the plan",
    files=files,
    submit=submit,
    default_grace_s=30.0,  # sky/skylet/subprocess_daemon.py: SIGKILL 30 s after SIGTERM
    installs=True,
    mounts=True,
    settings={
        "bucket": TargetSetting(
            "A bucket that checkpoints are copied to, and taken from by the next machine.",
            r"(s3|gs|r2|nebius)://[A-Za-z0-9][A-Za-z0-9._/-]{1,200}",
            "s3://runs",
        ),
        "volume": TargetSetting(
            "A volume of SkyPilot that all machines mount; the run is a folder of it.", r"[a-z0-9-]{1,60}", "runs"
        ),
        "secrets": TargetSetting(
            "Variables of your environment that the training gets, with commas.", rf"{_NAME}(,{_NAME})*", "HF_TOKEN"
        ),
    },
)
