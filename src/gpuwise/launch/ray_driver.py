"""Starts the ranks of a plan as workers of Ray Train. Its text is ray_train.py of a launch, which reads ray_launch.json."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

SETTINGS = "ray_launch.json"
USER_MISTAKE, INTERRUPTED = 2, 130  # exit codes of `gpuwise train`
# A rank ends with its worker, however that ends: 1 is PR_SET_PDEATHSIG, 9 SIGKILL (man 2 prctl).
WITH_ITS_WORKER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)


def rank(settings: dict) -> None:
    """One rank, in its worker. Raises RuntimeError where starting all of them again may help."""
    import ray.train

    context = ray.train.get_context()
    address, port = meeting_point(first=context.get_world_rank() == 0)
    variables = {
        **os.environ,
        **settings["environment"],
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
    left_s = settings["ends_unix_s"] - time.time()
    if left_s <= 0:
        return
    command = [sys.executable, *settings["argv"], "--time-limit", f"{left_s:.3f}s"]
    if settings["setup"]:
        command = ["bash", "-c", "\n".join([*settings["setup"], 'exec "$@"']), "train", *command]
    started = [sys.executable, "-c", WITH_ITS_WORKER, str(os.getpid()), *command]
    code = subprocess.run(started, cwd=folder_of_job(), env=variables).returncode
    ended = code == INTERRUPTED and time.time() >= settings["ends_unix_s"] - 2 * settings["margin_s"]
    if code and code != USER_MISTAKE and not ended:
        raise RuntimeError(f"rank {context.get_world_rank()} ended with exit code {code}")


def folder_of_job() -> Path:
    """Where Ray has unpacked the job on this node. A worker's own folder is another, but its modules come from there."""
    return next(folder for folder in map(Path, sys.path) if (folder / SETTINGS).is_file())


def meeting_point(*, first: bool) -> tuple[str, int]:
    """Host and a free port of the first rank, from it to all."""
    import ray
    import torch.distributed

    point = [("", 0)]
    if first:
        with socket.socket() as free:
            free.bind(("", 0))
            point = [(ray.util.get_node_ip_address(), free.getsockname()[1])]
    torch.distributed.broadcast_object_list(point, src=0)
    return point[0]


def main() -> int:
    """All ranks until the run is done, time is over, or it has failed too often. 0 only where all is trained."""
    import ray.train.torch

    settings = json.loads((Path(__file__).parent / SETTINGS).read_text())
    settings["ends_unix_s"] = time.time() + settings["time_limit_s"] - settings["margin_s"]
    trainer = ray.train.torch.TorchTrainer(
        rank,
        train_loop_config=settings,
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),  # it only tells the ranks where to meet
        scaling_config=ray.train.ScalingConfig(**settings["scaling"]),
        run_config=ray.train.RunConfig(
            name=settings["name"],
            storage_path=settings["storage_path"],
            failure_config=ray.train.FailureConfig(max_failures=settings["restarts"]),
        ),
    )
    trainer.fit()
    query = [sys.executable, "-m", "gpuwise", "state", settings["run"]]
    state = subprocess.run(query, stdout=subprocess.PIPE, text=True).stdout.strip()
    print(f"{settings['run']} is {state}")
    return 0 if state == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
