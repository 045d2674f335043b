"""A job from a Python file of the user's. Only the file named on the command line is run."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from gpuwise.errors import GpuwiseError, JobError, message_of
from gpuwise.job.classical import ClassicalJob
from gpuwise.job.deferred_errors import deferred_errors, problem_of
from gpuwise.job.job import Job
from gpuwise.job.keras.backend import choose_backend, is_keras_model
from gpuwise.job.library_logging import silence_libraries
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.step_settings import job_word

_LOADED: dict[str, Path] = {}  # files by the text that named them


def file_job(text: str, *, seq_len: int | None = None, image_size: int | None = None) -> Job:
    """The job that `path/to/file.py:name` names: a Job, or a function that returns one.

    `seq_len` and `image_size` go to a function that has parameters of these names. Raises JobError for a path without
    a name, a file or name that is missing, a file that raises, and an object that is no Job; InputError of the user's own
    function passes through.
    """
    sizes = {"seq_len": seq_len, "image_size": image_size}
    named = file_object(text, sizes)
    job = named.value
    if isinstance(job, ClassicalJob):
        raise JobError(
            f"{text} is a ClassicalJob, which only plan and forecast take, from the file that makes it.",
            [f"gpuwise plan {job_word(text)}", f"gpuwise forecast {job_word(text)} --on here"],
        )
    if not isinstance(job, Job):
        raise JobError(
            f"{text}: {named.subject} {_kind(job)}, not a Job.",
            [
                "from gpuwise import Job; job = Job(model=..., ...)",
                "or ClassicalJob(estimator=..., data=...), without a network",
            ],
        )
    return job_of_file(job, name=named.name, sizes=sizes)


@dataclass(frozen=True)
class FileObject:
    """What a name in a user's file stands for.

    Attributes:
        value: the object, or what the function of that name returned.
        name: what reports call it, "file:name".
        subject: of a sentence about it, "job is" or "job() returned".
    """

    value: object
    name: str
    subject: str


def file_object(text: str, sizes: Mapping[str, int | None]) -> FileObject:
    """What `path/to/file.py:name` names. Arguments and errors as for `file_job`, but for the kind of object."""
    named = name_in_file(text)
    if is_keras_model(named.value):
        raise JobError(f"{text}: {named.name} is a Keras model, not a Job.", [f"gpuwise takes it as keras:{text}"])
    if callable(named.value) and not isinstance(named.value, type):
        return FileObject(call(named.value, text, sizes), named.report_name, f"{named.name}() returned")
    return FileObject(named.value, named.report_name, f"{named.name} is")


@dataclass(frozen=True)
class NameInFile:
    """A name at the top level of a user's file.

    Attributes:
        name: the name.
        value: what it stands for, a function as it is.
        report_name: what reports call it, "file:name".
        module: the file, loaded.
    """

    name: str
    value: object
    report_name: str
    module: ModuleType


def name_in_file(text: str) -> NameInFile:
    """The name in `path/to/file.py:name`, after loading the file. Raises JobError as `file_job` does."""
    path_text, separator, name = text.rpartition(":")
    if not separator or not name.isidentifier():
        raise JobError(f"{text!r} names a file but no job in it.", [f"{text.rstrip(':')}:job, where job = Job(...)"])
    path = Path(path_text).expanduser()
    if path.suffix != ".py":
        raise JobError(f"{path_text!r} is not a Python file.", ["name a file that ends in .py"])
    if not os.path.isfile(path):
        path = _LOADED.get(path_text, path)  # a job that changes the working folder, loaded once more
    if not os.path.isfile(path):  # False also for a name that is too long for the system
        raise JobError(f"there is no file {path_text!r}.", ["check the path; it is taken from the current folder"])
    _LOADED[path_text] = path = path.resolve()
    module = _load(path)
    named = getattr(module, name, None)
    if (problem := problem_of(named)) is not None:
        raise JobError(f"{path_text}, line {problem.line}: {problem.error.what}", problem.error.ways_out) from problem.error
    if not hasattr(module, name):
        jobs = [
            k for k, value in vars(module).items() if isinstance(value, Job | ClassicalJob) or _local_function(value, module)
        ]
        near = get_close_matches(name, jobs, n=3, cutoff=0.3) or jobs[:5]
        more = f", and {len(jobs) - len(near)} more" if len(jobs) > len(near) else ""
        ways = [f"the file has: {', '.join(near)}{more}"] if near else []
        raise JobError(f"{path_text} has no {name!r}.", [*ways, f"add {name} = Job(...)"])
    stem = path.stem.encode(errors="backslashreplace").decode()  # bytes of a file's name may be no text
    return NameInFile(name, named, f"{stem}:{name}", module)


def _load(path: Path) -> ModuleType:
    # Each file has its own module name: two files called train.py do not clash, and a class of the file can be imported.
    name = f"gpuwise_job_{path.stem}_{sha256(os.fsencode(path)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise JobError(f"cannot load {path}.", ["name a file that ends in .py"])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    silence_libraries()
    choose_backend()  # the file may import Keras
    make_importable()  # the file may import torchvision, or what imports it
    try:
        with _on_path(path.parent), deferred_errors(str(path)) as problems:
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, GpuwiseError | KeyboardInterrupt):
            raise
        if problems:  # a job that could not be made was used as if it were one
            first = problems[0]
            raise JobError(f"{path.name}, line {first.line}: {first.error.what}", first.error.ways_out) from error
        ways = ["run it with Python by itself to see where"]
        if isinstance(error, ModuleNotFoundError):
            ways.insert(0, "install what it imports beside gpuwise")
        if isinstance(error, ImportError) and "relative import" in str(error):
            ways = ["import by the whole name (from package.module import ...), its parent folder in PYTHONPATH"]
        if isinstance(error, SystemExit):
            ways = ['put what ends the program under if __name__ == "__main__":']
        message = f"{type(error).__name__}: {message_of(error)}{_line(error, path)}"
        raise JobError(f"{path.name} raised while loading: {message}.", ways) from error
    return module


def _line(error: BaseException, path: Path) -> str:
    """' (line 12)' of the file's own code that was running."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""


@contextlib.contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """The file's folder first on sys.path while it loads, so that it can import its neighbours."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def call(function: Callable[..., object], text: str, sizes: Mapping[str, int | None]) -> object:
    """What a function of the user's file returns, called with those of the sizes that it takes. Raises JobError."""
    parameters = inspect.signature(function).parameters
    arguments = {key: value for key, value in sizes.items() if key in parameters and value is not None}
    try:
        return function(**arguments)
    except (GpuwiseError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise JobError(
            f"{text} raised when called: {type(error).__name__}: {message_of(error)}.",
            ["a function that makes a job is called without arguments, but for seq_len and image_size"],
        ) from error


def job_of_file(job: Job, *, name: str, sizes: Mapping[str, int | None]) -> Job:
    """The job, with a name. Raises JobError for a size that it does not take."""
    for key, value in sizes.items():
        if value is not None and getattr(job, key) != value:
            flag = f"--{key.replace('_', '-')}"
            raise JobError(
                f"{name} does not take {flag}: its example batch decides.",
                [f"make it a function with a {key} parameter that sets Job({key}=...)", f"leave out {flag}"],
            )
    return job if job.name else replace(job, name=name)


def _local_function(value: object, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
