"""Exports the weights of a finished or interrupted run from its newest checkpoint."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import cast

import torch

from gpuwise.errors import InputError, JobError
from gpuwise.job import Job, fingerprint
from gpuwise.runtime.build.program import build
from gpuwise.runtime.checkpoint import CheckpointStore, export_weights, restore_weights
from gpuwise.runtime.checkpoint.program_state import ProgramState, restore_average
from gpuwise.runtime.run.folder import RunFolder
from gpuwise.strategy import Mesh, Parallelism, Strategy


def export_checkpoint(job: Job, folder: Path, path: Path) -> Path:
    """Writes the weights of the newest complete checkpoint in `folder` as `export_weights` does. Returns the file.

    Averages replace parameters if the job keeps averages. Raises InputError without a checkpoint, JobError when the run
    belongs to another job, FileFormatError for damaged files.
    """
    run = RunFolder(folder)
    identity, checkpoint = run.identity(), CheckpointStore(run.checkpoints).latest()
    if identity is None or checkpoint is None:
        raise InputError(f"there are no weights in {folder} yet.", ["run() it first", "the folder of another run"])
    if identity["fingerprint"] != fingerprint(job):
        raise JobError(f"{folder} holds a run of another job: {identity.get('job')!r}.", ["the job it was begun with"])
    state = cast(ProgramState, checkpoint.load())
    # The strategy of the training in one process, without settings that only change how a step is executed.
    strategy = Strategy.from_dict(identity["strategy"]).but(mesh=Mesh(), parallelism=Parallelism())
    strategy = strategy.but(compile=False, offload="none")
    program = build(job, strategy, torch.device("cpu"))
    restore_weights(program.model, state["model"])
    if program.average is not None and state["average"] is not None:
        restore_average(program.average, state["average"])
    with nullcontext() if program.average is None else program.average.in_place():
        return export_weights(program.model, path)
