"""Writers of curves to TensorBoard and Weights & Biases, with a common interface."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from gpuwise.errors import InputError
from gpuwise.job.dependencies import require

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class Writer(Protocol):
    """A destination for curves. An error ends the writer, not the run."""

    def open(self, header: Mapping[str, object]) -> None:
        """Begins a run.

        Arguments:
            header: header of the log; `resumed_from` is the step after which a resumed run continues.
        """

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in folder/tensorboard, through PyTorch's own writer. Raises MissingDependencyError without tensorboard."""

    def __init__(self, folder: str | os.PathLike[str]):
        require("tensorboard", purpose="write TensorBoard's event files")
        self.folder = Path(folder) / "tensorboard"
        self._events: SummaryWriter | None = None

    def open(self, header: Mapping[str, object]) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        resumed_from = header.get("resumed_from")
        assert resumed_from is None or isinstance(resumed_from, int)
        # A resumed run writes the steps after its checkpoint again.
        purge_step = None if resumed_from is None else resumed_from + 1
        self._events = SummaryWriter(str(self.folder), purge_step=purge_step, flush_secs=10)
        text = escape(json.dumps(dict(header), indent=2))
        self._events.add_text("run", f"<pre>{text}</pre>", resumed_from or 0)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        assert self._events is not None
        for name, value in values.items():
            self._events.add_scalar(name, value, step)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


class WeightsAndBiases:
    """A Weights & Biases run with its files in folder/wandb.

    The run is online if the user is logged in, and offline otherwise (`wandb sync` uploads it later). The environment
    variable WANDB_MODE overrides both. A resumed run keeps its id. Raises MissingDependencyError without wandb.
    """

    def __init__(self, folder: str | os.PathLike[str], *, project: str = "gpuwise"):
        self._wandb: ModuleType = require("wandb", purpose="write to Weights & Biases")
        self.folder, self.project = Path(folder), project
        self._run: Any = None

    def open(self, header: Mapping[str, object]) -> None:
        mode = None
        if "WANDB_MODE" not in os.environ:
            mode = "online" if self._wandb.login(prompt=False, verify=False) else "offline"
        # console "off": wandb must not wrap stdout and stderr, on which the run shows its progress.
        self._run = self._wandb.init(
            project=self.project,
            dir=str(self.folder),
            config=dict(header),
            mode=mode,
            id=self._id(),
            resume="allow",
            settings=self._wandb.Settings(console="off", silent=True),
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _id(self) -> str:
        """The id of this run folder, created on first use and stored in a file."""
        path = self.folder / "wandb-id"
        if path.is_file() and (kept := path.read_text().strip()[:64]).isalnum():
            return kept
        new_id = os.urandom(8).hex()
        path.write_text(new_id + "\n")
        return new_id


WRITERS: dict[str, Callable[[str | os.PathLike[str]], Writer]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def writer(name: str, folder: str | os.PathLike[str]) -> Writer:
    """Makes the named writer for a run's folder.

    Raises InputError for another name, MissingDependencyError without its package.
    """
    if name not in WRITERS:
        raise InputError(f"unknown writer {name!r}.", [f"one of: {', '.join(WRITERS)}"])
    return WRITERS[name](folder)


class Fanout:
    """Several writers as one. Call it a few times per second, not every step.

    A writer that raises is dropped, and the run continues.

    Arguments:
        writers: the writers; may be empty.
        say: called with a sentence about a dropped writer.
    """

    def __init__(self, writers: Sequence[Writer], *, say: Callable[[str], None]):
        self._writers, self._say = list(writers), say

    def open(self, header: Mapping[str, object]) -> None:
        self._each(lambda writer: writer.open(header))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._each(lambda writer: writer.scalars(step, values))

    def close(self) -> None:
        self._each(lambda writer: writer.close())
        self._writers.clear()

    def _each(self, call: Callable[[Writer], None]) -> None:
        for one in list(self._writers):
            try:
                call(one)
            except Exception as error:  # third-party code may raise any exception
                self._writers.remove(one)
                self._say(f"{type(one).__name__} gets nothing more of this run: {type(error).__name__}: {error}")
