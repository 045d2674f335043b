"""Slurm: a batch script that srun starts the ranks from, one task a rank, and that requeues itself until all is trained."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwise.errors import EXIT_INTERRUPTED
from gpuwise.launch.description import Launch
from gpuwise.launch.shell import asks_state, exports, joined, script
from gpuwise.launch.target import LaunchTarget, TargetSetting

SCRIPT = "job.sbatch"
# srun takes a SIGTERM of its own as the order to kill all tasks, so none is passed on to it.
_SIGNALS = ["# Slurm signals the ranks itself. The script lives until they have saved.", "trap : TERM INT HUP USR1"]
_KILLED = 3  # restarts of a run whose ranks are killed, for their memory say: it may be so every time
_WORD = r"[A-Za-z0-9][A-Za-z0-9._,:&|*\[\]-]*"  # a value of a directive, which Slurm reads without a shell


def files(launch: Launch) -> Mapping[str, str]:
    """job.sbatch."""
    run_on = [f"#SBATCH --{name}={value}" for name, value in _directives(launch).items()]
    return {
        SCRIPT: script(
            f"# Trains {launch.name} as planned. In its folder: sbatch {SCRIPT}",
            run_on,
            ["#SBATCH --requeue", "", "set -u"],
            'cd "$SLURM_SUBMIT_DIR" || exit 2',
            exports(launch.environment),
            launch.setup_lines,
            _SIGNALS,
            [joined([*_srun(launch), "python", *launch.train_argv]), "code=$?"],
            asks_state(launch.run_folder),
            [
                "# Slurm requeues a preempted job that it had to kill, and takes one that ends within its grace as ended.",
                f"restarts={launch.restarts}",
                "# Killed, not stopped:",
                f'if [ "$code" -ne {EXIT_INTERRUPTED} ]; then restarts={min(launch.restarts, _KILLED)}; fi',
                'if [ "$state" = interrupted ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$restarts" ]; then',
                '  scontrol requeue "$SLURM_JOB_ID"',
                "fi",
                'if [ "$state" = done ]; then exit 0; fi',
                'if [ "$code" -ne 0 ]; then exit "$code"; else exit 1; fi',
            ],
        )
    }


def _srun(launch: Launch) -> list[str]:
    """srun itself. Since 22.05 it does not take over the cores of a task from the batch script (its --cpus-per-task)."""
    cores = launch.settings.get("cpus-per-task")
    return ["srun", *([f"--cpus-per-task={cores}"] if cores else [])]


def _directives(launch: Launch) -> dict[str, str]:
    """sbatch's flags: https://slurm.schedmd.com/sbatch.html."""
    settings = launch.settings
    flags = {
        "job-name": launch.name,
        "nodes": str(launch.machines),
        "ntasks-per-node": str(launch.ranks_per_machine),
        "time": _time(launch.time_limit_s),
        "signal": f"USR1@{launch.grace_s}",
        "open-mode": "append",
        "output": "slurm-%j.out",
    }
    if launch.devices_per_machine:
        kind = f"{settings['gpu']}:" if settings.get("gpu") else ""
        flags["gpus-per-node"] = f"{kind}{launch.devices_per_machine}"
    names = ("partition", "account", "qos", "constraint", "cpus-per-task", "mem")
    return {**flags, **{name: settings[name] for name in names if name in settings}}


def _time(seconds: int) -> str:
    """'2-03:30:00'."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"


def submit(launch: Launch) -> tuple[str, ...]:
    return ("sbatch", SCRIPT)


TARGET = LaunchTarget(
    name="slurm",
    client="sbatch",
    client_source="Slurm's client, on a login node of the cluster",
    files=files,
    submit=submit,
    default_grace_s=None,
    restarts_failures=False,
    settings={
        "partition": TargetSetting("The partition.", _WORD, "gpu"),
        "account": TargetSetting("The account that pays.", _WORD, "lab"),
        "qos": TargetSetting("The quality of service.", _WORD, "normal"),
        "constraint": TargetSetting("A feature of the nodes.", _WORD, "nvlink"),
        "gpu": TargetSetting("The site's name of the GPU, as sinfo -o %G shows it.", r"[A-Za-z0-9][A-Za-z0-9._-]*", "h100"),
        "cpus-per-task": TargetSetting("Cores of each rank.", r"[0-9]{1,4}", "8"),
        "mem": TargetSetting("Memory of a node.", r"[0-9]{1,7}[KMGT]?", "64G"),
    },
)
