"""Ways a save can be cut short, and a check that nothing is lost: a file layer that counts system calls and, at one of
them, ends the process, cuts the power or refuses; damage to files, and stores that do it wrong.

Run as a program it is killed by the system itself, at every call of a save in turn (see `main`).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpuwise.runtime.checkpoint import Checkpoint, CheckpointStore, Files, pack
from gpuwise.runtime.checkpoint.checkpoint import write_checkpoint

CALLS = ("make_folder", "create", "write", "sync", "close", "sync_folder", "rename", "remove", "remove_folder", "names")


class DeadError(BaseException):
    """The process ended here: as an exception, so that a test can look at what it left."""


class Quick(Files):
    """Does not wait for the disk: a test's machine keeps its power."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


class Injector(Quick):
    """Counts the system calls and does nothing else. `before(number, call)` is where a fault goes."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def before(self, number: int, call: str, *arguments: Any) -> None:
        pass


def _counted(call: str) -> Callable[..., Any]:
    def counted(self: Injector, *arguments: Any) -> Any:
        self.calls.append(call)
        self.before(len(self.calls), call, *arguments)
        return getattr(Quick, call)(self, *arguments)

    return counted


for _call in CALLS:
    setattr(Injector, _call, _counted(_call))


class Ends(Injector):
    """The process ends before call number `at`: neither that nor anything after it happens, no cleaning up either."""

    def __init__(self, at: int):
        super().__init__()
        self.at = at

    def before(self, number: int, call: str, *arguments: Any) -> None:
        if number >= self.at:
            if call == "close":
                os.close(*arguments)
            raise DeadError


class Killed(Injector):
    """The system kills the process before call number `at`."""

    def __init__(self, at: int):
        super().__init__()
        self.at = at

    def before(self, number: int, call: str, *arguments: Any) -> None:
        if number == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class PowerCut(Ends):
    """The machine loses power: what was not synced is lost, too, once `lose` is called.

    Of a file that was not synced half is left. keeps_names: whether names (new files, renames) reach the disk by
    themselves, before the contents they name, as on some filesystems; else those of a folder that was not synced are undone.
    """

    def __init__(self, at: int, *, keeps_names: bool):
        super().__init__(at)
        self.keeps_names = keeps_names
        self._open: dict[int, Path] = {}
        self._unsynced: set[Path] = set()
        self._new_names: list[Path] = []
        self._renames: list[tuple[Path, Path]] = []

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._open[fd] = path
        self._unsynced.add(path)
        self._new_names.append(path)
        return fd

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._unsynced.discard(self._open[fd])

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self._new_names = [name for name in self._new_names if name.parent != path]
        self._renames = [(old, new) for old, new in self._renames if new.parent != path]

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._renames.append((old, new))
        self._unsynced = {_moved(path, old, new) for path in self._unsynced}
        self._new_names = [_moved(path, old, new) for path in self._new_names]

    def lose(self) -> None:
        for path in self._unsynced:
            if path.exists():
                os.truncate(path, path.stat().st_size // 2)
        if self.keeps_names:
            return
        for path in self._new_names:
            path.unlink(missing_ok=True)
        for old, new in reversed(self._renames):
            if new.exists() and not old.exists():
                os.rename(new, old)


class Refuses(Injector):
    """Of the calls of these kinds, number `at` and every later one fail with this error; a write first writes half."""

    def __init__(self, at: int, error: int = errno.ENOSPC, kinds: tuple[str, ...] = CALLS):
        super().__init__()
        self.at, self.error, self.kinds = at, error, kinds
        self._met = 0

    def before(self, number: int, call: str, *arguments: Any) -> None:
        self._met += call in self.kinds
        if self._met >= self.at and call in self.kinds:
            if call == "write":
                fd, data = arguments
                os.write(fd, data[: len(data) // 2])
            raise OSError(self.error, os.strerror(self.error))


class RemovesFirst(CheckpointStore):
    """Makes room before the new checkpoint is there."""

    def write(self, packed: Any, **options: Any) -> Checkpoint:
        for old in self.all():
            self._remove(old.path)
        return super().write(packed, **options)


class WritesInPlace(CheckpointStore):
    """Gives a checkpoint its name before it is whole."""

    def write(self, packed: Any, *, step: int, meta: Any = None, best: bool = False) -> Checkpoint:
        self._make_folders()
        path = self.folder / f"step-{step:08d}"
        write_checkpoint(self.files, path, packed, step=step, meta=meta or {}, best=best)
        self.prune(written=step)
        return Checkpoint(path, step)


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(path: Path, at: int | None = None, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1 << bit
    path.write_bytes(data)


def sample_state(seed: int) -> dict[str, Any]:
    """A small state with something of everything."""
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(6, 4, generator=random)
    return {
        "model": {
            "head.weight": weight,
            "tied.weight": weight,
            "conv.weight": torch.randn(2, 3, 2, 2, generator=random).to(memory_format=torch.channels_last),
        },
        "optimizer": {
            "state": {0: {"step": torch.tensor(float(seed)), "exp_avg": weight.bfloat16()}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0]}],
        },
        "rest": {
            "rng": torch.arange(9, dtype=torch.uint8),
            "numpy": np.arange(seed, seed + 3),
            "loss": float("nan"),
            "data": b"\0x",
        },
        "plain": {"epoch": seed, "name": "ü"},
    }


def same(first: Any, second: Any) -> bool:
    """Whether two trees are equal to the bit, in types and the order of memory."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return (first.dtype, first.shape, _layout(first)) == (second.dtype, second.shape, _layout(second)) and torch.equal(
            _raw(first), _raw(second)
        )
    if isinstance(first, np.ndarray | np.generic):
        return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    if isinstance(first, dict):
        return (
            list(first) == list(second)
            and [type(k) for k in first] == [type(k) for k in second]
            and all(same(first[k], second[k]) for k in first)
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return repr(first) == repr(second)  # also tells -0.0 from 0.0, and a NaN from no NaN


def save(folder: Path, files: Files, *, step: int, seed: int, store: type[CheckpointStore] = CheckpointStore) -> None:
    store(folder, files=files).write(pack(sample_state(seed)), step=step, meta={"seed": seed})


def check_nothing_lost(folder: Path, *, before: int, saving: int, saved: bool) -> None:
    """What a new process finds is whole, and is the state before the save, or the one that was being saved.

    Arguments:
        before, saving: seeds of these states.
        saved: whether the save had returned, so that only its state will do.
    """
    store = CheckpointStore(folder)
    store.remove_leftovers()
    latest = store.latest()
    assert latest is not None, "no checkpoint is left"
    assert not store.notes, store.notes
    allowed = (saving,) if saved else (before, saving)
    assert latest.meta["seed"] in allowed, f"the state of seed {latest.meta['seed']} came back"
    assert same(latest.load(), sample_state(latest.meta["seed"])), "the state is another"
    assert all(path.name.startswith("step-") for path in folder.iterdir()), "something half done is left"


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _layout(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of what has neither gaps nor overlaps; else it counts as contiguous."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    dense = tensor.permute(order).is_contiguous() and not tensor.is_contiguous()
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1) if dense else None


def _moved(path: Path, old: Path, new: Path) -> Path:
    return new / path.relative_to(old) if path.is_relative_to(old) else path


def main(root: str) -> None:
    """In a folder for each: saves twice, and a third time in a process that is killed at call 1, 2, ... of it, until one
    lives to its end. The last folder's name ends in "-saved"."""
    for at in range(1, 1000):
        folder = Path(root) / f"{at:03d}"
        save(folder, Quick(), step=1, seed=1)
        save(folder, Quick(), step=2, seed=2)
        child = os.fork()
        if child == 0:
            save(folder, Killed(at), step=3, seed=3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            folder.rename(folder.with_name(folder.name + "-saved"))
            return
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, status


if __name__ == "__main__":
    main(sys.argv[1])
