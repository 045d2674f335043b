"""Where curves go besides the log: TensorBoard and Weights & Biases, behind one small interface."""

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
    """Something that curves are written to; what it raises ends its part, not the run."""

    def open(self, header: Mapping[str, object]) -> None:
        """The run begins. header: as in the log; with `resumed_from`, the step it continues after."""

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
        # What an interrupted run wrote beyond the step it is resumed from will be written again.
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
    """A run of Weights & Biases, whose files lie in folder/wandb.

    online where the user is logged in, offline elsewhere (`wandb sync` sends it later); the environment variable WANDB_MODE
    overrules both. A resumed run goes by the same id. Raises MissingDependencyError without wandb.
    """

    def __init__(self, folder: str | os.PathLike[str], *, project: str = "gpuwise"):
        self._wandb: ModuleType = require("wandb", purpose="write to Weights & Biases")
        self.folder, self.project = Path(folder), project
        self._run: Any = None

    def open(self, header: Mapping[str, object]) -> None:
        mode = None
        if "WANDB_MODE" not in os.environ:
            mode = "online" if self._wandb.login(prompt=False, verify=False) else "offline"
        # console "off": it would wrap stdout and stderr, where the run shows itself.
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
        """Of this run folder: made when it is first asked for, and kept in a file."""
        path = self.folder / "wandb-id"
        if path.is_file() and (kept := path.read_text().strip()[:64]).isalnum():
            return kept
        new_id = os.urandom(8).hex()
        path.write_text(new_id + "\n")
        return new_id


WRITERS: dict[str, Callable[[str | os.PathLike[str]], Writer]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def writer(name: str, folder: str | os.PathLike[str]) -> Writer:
    """The writer of that name, for a run's folder.

    Raises InputError for another name, MissingDependencyError without its package.
    """
    if name not in WRITERS:
        raise InputError(f"unknown writer {name!r}.", [f"one of: {', '.join(WRITERS)}"])
    return WRITERS[name](folder)


class Fanout:
    """Several writers as one; without any it does nothing. Worth a call a few times a second, not every step.

    One that raises is left out from then on, which `say` is told, and the run goes on.
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
            except Exception as error:  # a foreign service may raise anything
                self._writers.remove(one)
                self._say(f"{type(one).__name__} gets nothing more of this run: {type(error).__name__}: {error}")
