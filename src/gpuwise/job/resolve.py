"""A JOB argument becomes a Job: a preset, `path/to/file.py:name`, `keras:...`, `hf:...` or `timm:...`."""

from __future__ import annotations

import os

from gpuwise.errors import InputError, JobError, unknown_name
from gpuwise.job.dependencies import require
from gpuwise.job.job import Job
from gpuwise.trace.presets.table import PRESETS


def resolve(text: str, *, seq_len: int | None = None, image_size: int | None = None) -> Job:
    """The job that `text` names.

    Arguments:
        text: a preset (`gpt2`), a Python file and a name in it (`train.py:job`, a Job or a function returning one),
            `keras:path/to/file.py:name` (a compiled Keras model or a function returning one), `hf:<hub id or local config
            folder>`, or `timm:<model>`.
        seq_len, image_size: sizes of the example batch, where the job can be given them.

    Raises UnknownNameError, JobError, InputError or MissingDependencyError, each with a way out.
    """
    _check_size("--seq-len", seq_len)
    _check_size("--image-size", image_size)
    scheme, _, rest = text.partition(":")
    if scheme in ("hf", "timm", "keras"):
        if not rest:
            example = "hf:gpt2, hf:./folder-with-config.json, timm:resnet18 or keras:path/to/file.py:model"
            raise JobError(f"{text!r} names no model.", [example])
        require("torch", purpose=f"build {text}", extra=scheme)
        if scheme == "hf":
            from gpuwise.job.hf import hf_job

            return hf_job(rest, seq_len=seq_len, image_size=image_size)
        if scheme == "keras":
            from gpuwise.job.keras.source import keras_file_job

            return keras_file_job(rest, seq_len=seq_len, image_size=image_size)
        from gpuwise.job.timm_models import timm_job

        return timm_job(rest, seq_len=seq_len, image_size=image_size)
    if _looks_like_a_file(text):
        require("torch", purpose=f"load {text}")
        from gpuwise.job.user_file import file_job

        return file_job(text, seq_len=seq_len, image_size=image_size)
    if text not in PRESETS and os.path.isfile(os.path.join(text, "config.json")):
        raise JobError(f"{text!r} is a folder with a config.json, and no preset.", [f"hf:./{text}"])
    if text not in PRESETS:
        raise unknown_name("preset", text, list(PRESETS), listing="gpuwise forecast --help")
    require("torch", purpose=f"build {text}")
    from gpuwise.job.presets import preset_job

    return preset_job(text, seq_len=seq_len, image_size=image_size)


def _looks_like_a_file(text: str) -> bool:
    path = text.rpartition(":")[0] or text
    return text.endswith(".py") or ".py:" in text or "/" in text or "\\" in text or os.path.isfile(path)


def _check_size(flag: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100_000_000):
        raise InputError(f"{flag} must be a whole number from 1 to 100,000,000, got {value!r}.")
