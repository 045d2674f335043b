"""Which checkpoint of a folder a run goes on from, and whether it may."""

from __future__ import annotations

from gpuwise.errors import FileFormatError, InputError, JobError, RunEndedError
from gpuwise.notes import Note
from gpuwise.notes.training import continues_run, random_numbers_drawn_anew
from gpuwise.runtime.checkpoint import Checkpoint
from gpuwise.runtime.copies import RunCopies
from gpuwise.runtime.run.checkpoint_manager import CheckpointManager
from gpuwise.runtime.run.continuing import check_continues
from gpuwise.runtime.run.folder import RunFolder, RunIdentity


def checkpoint_to_continue(
    folder: RunFolder, checkpoints: CheckpointManager, copies: RunCopies, identity: RunIdentity, *, resume: str, steps: int
) -> tuple[Checkpoint | None, list[Note]]:
    """The newest whole checkpoint of the run in the folder or its copies, None where the run is to begin; and notes on it.

    Arguments:
        identity: of the run that is to go on; it takes over when the run was begun.
        resume: as in TrainSettings.
        steps: in all.

    Raises InputError where the settings want it otherwise, RunEndedError where the run has taken all of its steps (and what was
    not copied of it is now), JobError for another job's run, FileFormatError for damaged or newer files.
    """
    saved = folder.identity()
    if saved is not None and resume == "never":
        raise InputError(f"{folder.path} holds a run already.", ["--resume continues it", "another --run FOLDER"])
    notes: list[Note] = []
    if saved is not None:
        notes = check_continues(saved, identity, folder.path)
        identity["begun"] = saved.get("begun")
        if "plan" in saved and "plan" not in identity:  # continued without --plan, it is still measured against it
            identity["plan"] = saved["plan"]
    checkpoint, checkpoint_notes = copies.latest(checkpoints)
    if checkpoint is None:
        if resume == "must":
            raise InputError(
                f"there is nothing to continue in {folder.path}: it has no checkpoint.",
                ["leave out --resume to begin", "--run FOLDER of the run to continue"],
            )
        return None, notes + checkpoint_notes
    if saved is None:
        raise FileFormatError(
            f"{folder.path} has checkpoints, but no run.json that says of what run.",
            ["copy it back", "train in another folder: --run FOLDER"],
        )
    if checkpoint.of_run != identity["fingerprint"]:
        raise JobError(
            f"the checkpoint {checkpoint.path} is of another job than the run.",
            ["remove it", "train in another folder: --run FOLDER"],
        )
    if checkpoint.step >= steps and saved.get("ended"):  # else it was killed before its end was noted
        copies.catch_up(checkpoint.step)
        raise RunEndedError(
            f"the run in {folder.path} has taken all of its {checkpoint.step:,} steps; its weights are in "
            f"{checkpoint.path / 'model.safetensors'}.",
            ["more of them, --steps N, continues it", "--export FILE writes its weights"],
            folder=str(folder.path),
            step=checkpoint.step,
        )
    notes += [*checkpoint_notes, continues_run(folder=str(folder.path), step=checkpoint.step)]
    if checkpoint.manifest.mesh != str(checkpoints.mesh):
        notes.append(random_numbers_drawn_anew(before=checkpoint.manifest.mesh, mesh=str(checkpoints.mesh)))
    return checkpoint, notes
