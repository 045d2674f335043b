"""ssh: machines that the user reaches, in a container (podman or docker) or in their own Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.launch.description import Launch
from gpuwise.launch.shell import ends_as_state, exports, joined, script
from gpuwise.launch.target import LaunchTarget, TargetSetting
from gpuwise.launch.torchrun import HOST, agent_lines

SCRIPT, REMOTE = "launch.sh", "run.sh"
_USER_HOST = rf"([A-Za-z0-9_][A-Za-z0-9._-]*@)?{HOST}"
_PORT = 29500  # where ranks of several machines meet, torchrun's


def files(launch: Launch) -> Mapping[str, str]:
    """launch.sh, which starts, stops or shows the run on all machines, and run.sh, which trains on one."""
    hosts = launch.settings["hosts"].split(",")
    if len(hosts) != launch.machines:
        raise InputError(
            f"the plan has {launch.machines} machine{'s' * (launch.machines > 1)}, and hosts names {len(hosts)}.",
            ["--set hosts=user@a,user@b names each machine once"],
        )
    if launch.machines > 1 and not launch.run_folder.startswith("/"):
        raise InputError(
            f"--run {launch.run_folder} lies in each machine's own folder, which the others cannot see.",
            ["--run /mnt/shared/run, a folder that all machines mount"],
        )
    return {SCRIPT: _here(launch, hosts), REMOTE: _there(launch, hosts)}


def _here(launch: Launch, hosts: Sequence[str]) -> str:
    """launch.sh. The launch's folder on a machine is ~/gpuwise/NAME."""
    home = f"gpuwise/{launch.name}"
    if launch.image:
        engine = launch.settings["engine"]
        start, stop = _container(launch, home), f"{engine} stop --time {launch.grace_s} {launch.name}"
        log = f"{engine} logs --tail 50 {launch.name}"
    else:
        start = f"cd {home} && (setsid nohup bash {REMOTE} </dev/null >>log.txt 2>&1 & echo $! >pid)"
        stop, log = f"kill -TERM $(cat {home}/pid)", f"tail -n 50 {home}/log.txt"
    port = ["-p", launch.settings["port"]] if "port" in launch.settings else []
    ssh = joined(["ssh", "-o", "BatchMode=yes", *port])
    return script(
        f"# Trains {launch.name} as planned: bash {SCRIPT} [start|stop|log]",
        "set -o pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2',
        f"hosts=({joined(hosts)})",
        f'everywhere() {{ for host in "${{hosts[@]}}"; do {ssh} "$host" "$1" || exit; done; }}',
        # GNU tar would take a backslash in the name of a file for the beginning of a code.
        "pack=(tar); if tar --version | grep -q GNU; then pack+=(--no-unquote); fi",
        'case "${1:-start}" in',
        "  start)",
        '    for host in "${hosts[@]}"; do',
        f'      "${{pack[@]}}" -cf - -- {joined([*launch.files, REMOTE])} |'
        f' {ssh} "$host" {shlex.quote(f"mkdir -p {home} && tar -C {home} -xf -")} || exit',
        "    done",
        f"    everywhere {shlex.quote(start)} ;;",
        f"  stop) everywhere {shlex.quote(stop)} ;;",
        f"  log) everywhere {shlex.quote(log)} ;;",
        f'  *) echo "bash {SCRIPT} [start|stop|log]" >&2; exit 2 ;;',
        "esac",
    )


def _container(launch: Launch, home: str) -> str:
    """The shell command that starts the container on a machine; it goes on when ssh ends."""
    assert launch.image is not None
    engine, run = launch.settings["engine"], launch.run_folder
    if run.startswith("/") and ":" in run:
        raise InputError(f"--run {run}: a container mounts no folder with a colon in its path.", ["another --run FOLDER"])
    words = [engine, "run", "--detach", "--name", launch.name, "--network", "host", "--ipc", "host"]
    words += ["--stop-timeout", str(launch.grace_s)]
    if launch.restarts:
        words += ["--restart", f"on-failure:{launch.restarts}"]
    if launch.devices_per_machine:
        words += _devices(launch.vendor, engine)
    if run.startswith("/"):
        words += ["--volume", f"{run}:{run}"]
    folder = f"mkdir -p {shlex.quote(run)} && " if run.startswith("/") else ""
    mount = f'--volume "$HOME/{home}:/launch" --workdir /launch'
    rid = f"{engine} rm {launch.name} >/dev/null 2>&1; "  # of one that has ended; one that runs refuses
    return f"{rid}{folder}{joined(words)} {mount} {joined([launch.image, 'bash', REMOTE])}"


def _devices(vendor: str, engine: str) -> list[str]:
    """Flags that give a container the accelerators. Raises UnsupportedError for a vendor without such flags here."""
    if vendor == "NVIDIA":
        return ["--device", "nvidia.com/gpu=all"] if engine == "podman" else ["--gpus", "all"]
    if vendor == "AMD":  # rocm.docs.amd.com, "Running ROCm Docker containers"
        return ["--device", "/dev/kfd", "--device", "/dev/dri", "--security-opt", "seccomp=unconfined"]
    raise UnsupportedError(f"ssh cannot give a container devices of {vendor}.", ["leave out --image"])


def _there(launch: Launch, hosts: Sequence[str]) -> str:
    """run.sh."""
    master = launch.settings.get("master") or hosts[0].rpartition("@")[2]
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{master}:{_PORT}", "--rdzv-id", launch.name)
    return script(
        f"# Run by {SCRIPT} on each machine.",
        "set -u",
        'cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2',
        exports(launch.environment),
        launch.setup_lines,
        agent_lines(launch, rendezvous=("--standalone",) if launch.machines == 1 else meet),
        ends_as_state(),
    )


def submit(launch: Launch) -> tuple[str, ...]:
    return ("bash", SCRIPT)


TARGET = LaunchTarget(
    name="ssh",
    client="ssh",
    client_source="OpenSSH's client",
    files=files,
    keeps_machines=True,
    submit=submit,
    default_grace_s=10.0,  # podman stop and docker stop, without --time
    settings={
        "hosts": TargetSetting(
            "The machines, USER@HOST, with commas.", rf"{_USER_HOST}(,{_USER_HOST})*", "me@node0,me@node1", required=True
        ),
        "port": TargetSetting("The port of their sshd.", r"[0-9]{1,5}", "22"),
        "engine": TargetSetting("What runs the image.", "podman|docker", "podman", default="podman"),
        "master": TargetSetting("The first machine as the others reach it, unless by its name in hosts.", HOST, "10.0.0.1"),
    },
)
