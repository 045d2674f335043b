"""What the cells of a notebook call. The text of this module is itself a cell; Python's standard library is all it needs."""

import base64
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def write_files(files: dict[str, str], folder: Path) -> None:
    """Writes the files of the launch, whose contents are base64."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))


def install(packages: list[str], folder: Path) -> None:
    """Installs what the training needs. A wheel among the files of the launch has a relative path."""
    if packages:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *packages], cwd=folder, check=True)


def continue_from(inputs: Path, run: Path, *, working: Path) -> None:
    """Copies the run that an earlier session has saved among the inputs of this one; of several the one with the most steps.

    working: the folder that becomes an input of the next session.
    """
    earlier = [top / run.relative_to(working) for top in folders(inputs, depth=4)]
    earlier = [each for each in earlier if (each / "run.json").exists()]
    if earlier and not (run / "run.json").exists():
        best = max(earlier, key=last_step)
        shutil.copytree(best, run, dirs_exist_ok=True)
        print(f"continues {best}, saved after step {last_step(best)}")


def folders(top: Path, *, depth: int) -> Iterator[Path]:
    """A folder and those in it, so many levels down: data sets may hold millions of files further down."""
    if top.is_dir():
        yield top
        if depth:
            for each in sorted(top.iterdir()):
                yield from folders(each, depth=depth - 1)


def last_step(run: Path) -> int:
    """The step of the newest checkpoint, 0 without one."""
    steps = [manifest.parent.name.rpartition("-")[2] for manifest in run.glob("checkpoints/step-*/manifest.json")]
    return max((int(step) for step in steps if step.isdecimal()), default=0)


def train(argv: list[str], folder: Path, *, environment: dict[str, str], setup: list[str], until_s: float) -> bool:
    """Trains until all is done or the time is over, saved; the stop button ends it saved, too. Returns whether all is done.

    until_s: the end on the clock of time.monotonic().
    """
    limit_s = until_s - time.monotonic()
    if limit_s <= 0:
        raise SystemExit("This session has no time left: begin the next one.")
    command = [sys.executable, *argv, "--time-limit", f"{limit_s:.3f}s"]
    if setup:
        command = ["bash", "-c", "\n".join([*setup, 'exec "$@"']), "train", *command]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that the stop button reaches this cell alone, which passes it on
    )
    assert process.stdout is not None
    with process.stdout as lines:
        while True:
            try:
                for line in lines:
                    print(line, end="", flush=True)
                break
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
    code = process.wait()
    if code not in (0, 130):
        raise RuntimeError(f"gpuwise train ended with exit code {code}; its own words stand above.")
    print("All is trained." if code == 0 else "Saved. Run this notebook again in the next session: it goes on from here.")
    return code == 0
