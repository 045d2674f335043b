"""The files that travel with a plan: the job's file, the modules beside it that it imports, and what the user includes."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from gpuwise.errors import FileFormatError, InputError, JobError
from gpuwise.launch.description import RESERVED
from gpuwise.plan.types import Plan

LARGEST_BYTES = 16 * 2**20  # of all files together: data belong on the machines, not into a launch
_HF = "hf:"


def job_files(plan: Plan, include: Sequence[str] = ()) -> tuple[str, dict[str, bytes]]:
    """The JOB argument in the folder of a launch, and the files that it needs there, by path.

    A Python file takes along the modules of its folder that it imports, theirs included; a local `hf:` folder its JSON files.
    Presets and hub names need none. Raises JobError for a job without a name, InputError for files that are too large.
    """
    argument = plan.job_argument
    if not argument:
        raise JobError(
            f"the plan was made from a Job object ({plan.job}), which no other machine can load.",
            ["name the job by its file: gpuwise plan path/to/file.py:job -o plan.toml"],
        )
    files: dict[str, bytes] = {}
    path_text, _, name = argument.rpartition(":")
    if path_text.endswith(".py"):
        path = Path(path_text).expanduser()
        for module in sorted(_modules(path)):
            files[module.relative_to(path.resolve().parent).as_posix()] = _read(module)
        argument = f"./{path.name}:{name}" if path.name.startswith("-") else f"{path.name}:{name}"
    elif argument.startswith(_HF) and (folder := Path(argument.removeprefix(_HF)).expanduser()).is_dir():
        for file in sorted(folder.glob("*.json")):
            files[f"{folder.resolve().name}/{file.name}"] = _read(file)
        argument = f"{_HF}{folder.resolve().name}"
    for text in include:
        files.update(_included(Path(text)))
    if wrong := sorted(set(files) & set(RESERVED)):
        raise InputError(f"a file of the job is called {wrong[0]}, as a file of the launch is.", ["rename it"])
    if (size := sum(map(len, files.values()))) > LARGEST_BYTES:
        largest = max(files, key=lambda path: len(files[path]))
        raise InputError(
            f"the files that would travel have {size / 1e6:.0f} MB, over {LARGEST_BYTES / 1e6:.0f}; {largest} is the largest.",
            ["put data where the machines read them, and name that path in the job"],
        )
    return argument, files


def _modules(path: Path) -> set[Path]:
    """The file, and the modules of its folder that it imports by a statement, in turn."""
    home = path.resolve().parent
    waiting, modules = [path.resolve()], set[Path]()
    while waiting:
        module = waiting.pop()
        if module in modules:
            continue
        modules.add(module)
        try:
            tree = ast.parse(_read(module))
        except (SyntaxError, ValueError) as error:
            raise JobError(f"{module.name} is no Python that can be read: {error}.", ["run it with Python by itself"]) from None
        for name in _imported(tree):
            waiting += [file for file in _files_of(home, name) if file.is_file()]
    return modules


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files_of(home: Path, name: str) -> Iterator[Path]:
    """Where a module of that name would lie, and the packages around it."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        yield home.joinpath(*parts[:count], "__init__.py")
    yield home.joinpath(*parts[:-1], f"{parts[-1]}.py")


def _included(path: Path) -> dict[str, bytes]:
    """A file by its name, or the files of a folder by their paths under its name."""
    if not path.exists():
        raise InputError(f"--include {path}: there is no such file or folder.", ["check the path"])
    root = path.resolve()
    files = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
    return {PurePosixPath(root.name, *file.relative_to(root).parts).as_posix(): _read(file) for file in files}


def _read(path: Path) -> bytes:
    try:
        if os.path.getsize(path) > LARGEST_BYTES:
            raise InputError(f"{path} has over {LARGEST_BYTES / 1e6:.0f} MB.", ["put data where the machines read them"])
        return path.read_bytes()
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}.", ["check the path"]) from None
