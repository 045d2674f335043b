"""A job from a Keras model in a Python file of the user's: `keras:path/to/file.py:name`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

from gpuwise.errors import JobError
from gpuwise.job.job import Job
from gpuwise.job.keras.backend import import_keras, is_keras_model
from gpuwise.job.keras.job import keras_job
from gpuwise.job.user_file import call, job_of_file, name_in_file

DATA = "data"  # name in the file of what to train on


def keras_file_job(text: str, *, seq_len: int | None = None, image_size: int | None = None) -> Job:
    """The job of a compiled Keras model, or of a function that makes one, in a file: `text` is "path/to/file.py:name".

    The file may have `data` beside it: arrays (x, y), or (x, y, sample_weight), or a function that makes them. `seq_len` and
    `image_size` go to functions that have parameters of these names, and to open sizes of the model's inputs. Raises the
    errors of `file_job` and of `keras_job`.
    """
    import_keras(purpose=f"build keras:{text}")
    sizes = {"seq_len": seq_len, "image_size": image_size}
    named = name_in_file(text)
    value, data = named.value, getattr(named.module, DATA, None)
    if isinstance(value, Job):
        raise JobError(f"{text}: {named.name} is a Job, not a Keras model.", [f"gpuwise takes it as {text}"])
    if not is_keras_model(value) and not inspect.isroutine(value):
        raise JobError(
            f"{text}: {named.name} is of type {type(value).__name__}, not a Keras model.",
            ["name a compiled keras.Model, or a function that returns one"],
        )
    model = value if is_keras_model(value) else partial(call, cast("Callable[..., object]", value), text, sizes)
    arrays = partial(call, data, f"{text.rpartition(':')[0]}:{DATA}", sizes) if inspect.isroutine(data) else data
    taken = set(inspect.signature(value).parameters) if inspect.isroutine(value) else set()
    job = keras_job(cast("Callable[[], object]", model), data=arrays, name=named.report_name, **sizes)  # type: ignore[arg-type]
    if taken & set(sizes):  # the function made the inputs of these sizes
        job = replace(job, **{key: sizes[key] for key in taken & set(sizes)})  # type: ignore[arg-type]
    return job_of_file(job, name=named.report_name, sizes=sizes)
