"""torchrun: a script for each machine. PyTorch's elastic agent starts the ranks, which meet at the first machine."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwise.errors import InputError
from gpuwise.launch.description import Launch
from gpuwise.launch.shell import asks_state, ends_as_state, exports, joined, runs, script
from gpuwise.launch.target import LaunchTarget, TargetSetting

SCRIPT = "launch.sh"
HOST = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# --shutdown-timeout is of PyTorch 2.13 (pytorch/pytorch#172596). Older agents kill ranks 30 s after the signal.
AGENT_GRACE_S = 30.0
_PORT = 29500


def files(launch: Launch) -> Mapping[str, str]:
    """launch.sh, the same for each machine."""
    return {
        SCRIPT: script(
            f"# Trains {launch.name} as planned. On each of {launch.machines} machines: bash {SCRIPT}",
            "set -u",
            'cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2',
            exports(launch.environment),
            launch.setup_lines,
            agent_lines(launch, rendezvous=rendezvous(launch)),
            ends_as_state(),
        )
    }


def rendezvous(launch: Launch) -> tuple[str, ...]:
    """torchrun's flags by which machines meet."""
    if launch.machines == 1:
        return ("--standalone",)
    if "master" not in launch.settings:
        raise InputError(
            f"the plan has {launch.machines} machines, and torchrun needs master: the one where they meet.",
            ["--set master=HOST, as the others reach it"],
        )
    host, _, port = launch.settings["master"].partition(":")
    return ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{port or _PORT}", "--rdzv-id", launch.name)


def agent_lines(launch: Launch, *, rendezvous: tuple[str, ...]) -> list[str]:
    """Lines that run torchrun and then ask what became of the run: $code and $state.

    rendezvous: flags of torchrun, quoted here.
    """
    agent = ["--nnodes", str(launch.machines), "--nproc-per-node", str(launch.ranks_per_machine), *rendezvous]
    agent += ["--max-restarts", str(launch.restarts), "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]
    # Without -- torchrun takes the --run of `gpuwise train` for one of its own flags, --run-path.
    module, *train = launch.train_argv
    agent += [module, "--", *train]
    return [
        "grace=()",
        "if python -m torch.distributed.run --help | grep -q -e --shutdown-timeout; then",
        f"  grace=(--shutdown-timeout {launch.grace_s})",
        "else",
        f'  echo "this PyTorch ends ranks {AGENT_GRACE_S:g} s after a signal; a save may take {launch.save_s:.0f} s" >&2',
        "fi",
        *runs(f'python -m torch.distributed.run "${{grace[@]}}" {joined(agent)}'),
        asks_state(launch.run_folder),
    ]


def submit(launch: Launch) -> tuple[str, ...]:
    return ("bash", SCRIPT)


TARGET = LaunchTarget(
    name="torchrun",
    client="bash",
    client_source="it comes with the system",
    files=files,
    keeps_machines=True,
    submit=submit,
    default_grace_s=AGENT_GRACE_S,
    settings={
        "master": TargetSetting(
            help="The machine where the others meet, HOST or HOST:PORT, for several machines.",
            pattern=rf"{HOST}(:[0-9]{{1,5}})?",
            example="node0:29500",
        )
    },
)
