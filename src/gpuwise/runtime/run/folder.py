"""The folder of a run: its files, its identity, and the check whether a run may continue in it."""

from __future__ import annotations

import itertools
import json
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from gpuwise.atomic import written_whole
from gpuwise.errors import FileFormatError, InputError
from gpuwise.job import Job, fingerprint
from gpuwise.notes import Note
from gpuwise.notes import training as training_notes
from gpuwise.plain_files import parse_json, read_regular
from gpuwise.runs.lock import LOCK, RunLock
from gpuwise.runs.state_file import STATE_FILE
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.strategy import Strategy
from gpuwise.version import __version__

FORMAT, VERSION = "gpuwise-run", 1
MAX_BYTES = 1_000_000  # largest accepted run.json
_KINDS = {"fingerprint": str, "strategy": dict, "global_batch": int, "seed": int, "steps": int, "recipe": dict}
_RECIPE = (
    "optimizer",
    "learning_rate",
    "schedule",
    "warmup_steps",
    "clip_norm",
    "ema_decay",
    "step",
)  # attributes that define a job's training
_HALF = re.compile(
    r"\.(run\.json|state\.json|report\.html|bad-batch\.json)\.\d{1,10}\.tmp"
)  # temporary files of `written_whole`


class RunIdentity(TypedDict):
    """The identity of a run: the content of run.json.

    Attributes:
        job: name of the job.
        fingerprint: fingerprint of the job.
        strategy: strategy of the run, with the host settings.
        recipe: training settings of the job, as far as JSON can represent them.
        begun: start of the run, in UTC.
        plan: the plan that the run carries out, if any.
        ended: TrainResult.stopped; absent while the run continues, or after it was killed.
    """

    format: str
    version: int
    job: str
    fingerprint: str
    strategy: Mapping[str, object]
    global_batch: int
    seed: int
    steps: int
    recipe: Mapping[str, object]
    gpuwise_version: str
    begun: str | None
    plan: NotRequired[Mapping[str, object]]
    ended: NotRequired[str]


@dataclass(frozen=True)
class RunFolder:
    """RUN/{run.json, state.json, log.jsonl, report.html, lock, checkpoints/, stalls/, bad-batch.json}."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes and locks the folder. On exit a new folder that is still empty is removed.

        Raises InputError when the folder cannot be made, or another run has locked it.
        """
        before = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            _make(self.path)
        except OSError as error:
            raise InputError(
                f"cannot make the run folder {self.path}: {error.strerror}.",
                ["--run FOLDER that can be written to", "--no-run keeps nothing"],
            ) from error
        try:
            with RunLock(self.path):
                self._remove_leftovers()
                yield
        finally:
            if before and not (self.path / "run.json").exists():
                with suppress(OSError):
                    for name in (STATE_FILE, LOCK):
                        (self.path / name).unlink(missing_ok=True)
                    for folder in before:
                        folder.rmdir()

    def exposure(self) -> list[Note]:
        """A note if every user of this machine can write to the folder."""
        if not self.path.stat().st_mode & stat.S_IWOTH:
            return []
        return [training_notes.folder_open_to_everybody(folder=str(self.path))]

    def _remove_leftovers(self) -> None:
        """Removes temporary files of a killed process; the caller must hold the lock."""
        for path in self.path.glob(".*.tmp"):
            if _HALF.fullmatch(path.name):
                with suppress(OSError):
                    path.unlink()

    def identity(self) -> RunIdentity | None:
        """The content of run.json; None if it does not exist. Raises FileFormatError for a damaged, foreign or newer file."""
        path = self.path / "run.json"
        try:
            content = parse_json(read_regular(path, limit_bytes=MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise FileFormatError(f"{path} cannot be read ({error}).", ["train in another folder: --run FOLDER"]) from None
        if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("version"), int):
            raise FileFormatError(f"{path} is not of a run of gpuwise.", ["train in another folder: --run FOLDER"])
        if content["version"] <= VERSION and not makes_sense(content):
            raise FileFormatError(f"{path} is damaged.", ["train in another folder: --run FOLDER"])
        if content["version"] > VERSION:
            raise FileFormatError(
                f"{path} is of gpuwise {content.get('gpuwise_version', '')}, newer than this one.",
                ["update gpuwise", "train in another folder: --run FOLDER"],
            )
        return cast(RunIdentity, content)

    def write_identity(self, identity: RunIdentity) -> None:
        with written_whole(self.path / "run.json") as file:
            file.write((json.dumps(identity, indent=2, default=str) + "\n").encode())


def makes_sense(content: Mapping[str, object]) -> bool:
    """Whether it has the fields of a RunIdentity that a continuation relies on."""
    if not all(isinstance(content.get(name), kind) for name, kind in _KINDS.items()):
        return False
    identity = cast(RunIdentity, content)
    return min(identity["global_batch"], identity["steps"]) >= 1 and identity["seed"] >= 0


def _make(folder: Path) -> None:
    """Makes a run's folder, accessible to its owner and, within a folder shared by a group, to that group. Raises OSError.

    A shared folder has the set-group-ID bit, or is writable by its group. An existing folder keeps its mode.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    mode = folder.parent.stat().st_mode
    shared = mode & stat.S_ISGID or (mode & stat.S_IWGRP and not mode & stat.S_ISVTX)  # /tmp belongs to no group
    folder.mkdir(mode=0o770 if shared else 0o700, exist_ok=True)


def identity_of(
    job: Job, strategy: Strategy, settings: TrainSettings, *, steps: int, plan: Mapping[str, object] | None = None
) -> RunIdentity:
    identity: RunIdentity = {
        "format": FORMAT,
        "version": VERSION,
        "job": job.name,
        "fingerprint": fingerprint(job),
        "strategy": {**strategy.to_dict(), **settings.host.to_dict()},
        "global_batch": strategy.global_batch,
        "seed": settings.seed,
        "steps": steps,
        "recipe": {name: _plain(getattr(job, name)) for name in _RECIPE},
        "gpuwise_version": __version__,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if plan is not None:
        identity["plan"] = dict(plan)
    return identity


def _plain(value: object) -> object:
    """Converts an entry of a recipe to JSON types."""
    if isinstance(value, Mapping):
        return f"its own: {', '.join(map(str, value))}"
    if callable(value):
        return "its own function"
    if value is None or isinstance(value, str | bool | int | float):
        return value
    try:
        return float(value)  # type: ignore[arg-type]  # a tensor or a NumPy number
    except (TypeError, ValueError):
        return str(value)


def usual_folder(root: Path, job: Job, strategy: Strategy, settings: TrainSettings) -> Path:
    """The default folder of a run: the first of root/<job>, root/<job>-2, -3, ... that is free or has the same unfinished run.

    Raises InputError when a run must be continued and none exists.
    """
    name = re.sub(r"[^a-z0-9.]+", "-", (job.name or "run").lower()).strip("-.") or "run"
    identity = identity_of(job, strategy, settings, steps=0)
    same = ("fingerprint", "global_batch", "seed")
    for number in itertools.count(1):
        folder = RunFolder(root / (name if number == 1 else f"{name}-{number}"))
        saved = folder.identity()
        if saved is None:
            if settings.resume == "must" and settings.copy_to is None:
                raise InputError(
                    f"there is no run of {job.name or 'this job'} to continue in {root}.",
                    ["leave out --resume to begin one", "--run FOLDER of the run to continue"],
                )
            return folder.path
        ended = saved.get("ended") in ("finished", "early stop")
        if settings.resume != "never" and not ended and all(saved.get(key) == identity.get(key) for key in same):
            return folder.path
    raise AssertionError("endless")
