"""A run's state taken from what it works with, and put back there to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwise.errors import FileFormatError, InputError, JobError
from gpuwise.runtime.checkpoint import Checkpoint
from gpuwise.runtime.program_state import load_program, program_state
from gpuwise.runtime.run.folder import RunFolder, check_continues

if TYPE_CHECKING:
    from gpuwise.runtime.run.equipment import Equipment


def state_of(its: Equipment) -> dict[str, Any]:
    """All that the next step depends on, and what the account of the run is made of. Tensors are the program's own."""
    run = {"data": its.feed.state(), "evaluations": its.evaluations.state(), "first_loss": its.first_loss,
           "last_loss": its.good_loss, "spent_s": its.spent_s, "losses": its.watch.state()}  # fmt: skip
    return {**program_state(its.program), "run": run}


def to_continue(its: Equipment, folder: RunFolder) -> Checkpoint | None:
    """The newest whole checkpoint of the run in the folder; None where the run is to begin. Adds to `its.notes`.

    Raises InputError where the settings want it otherwise, or the run has taken all of its steps; JobError for another
    job's run; FileFormatError for damaged or newer files.
    """
    assert its.keeper is not None
    settings, found = its.settings, folder.identity()
    if found is not None and settings.resume == "never":
        raise InputError(f"{folder.path} holds a run already.", ["--resume continues it", "another --run FOLDER"])
    if found is not None:
        its.notes += check_continues(found, its.identity, folder.path)
        its.identity["begun"] = found.get("begun")
    checkpoint, notes = its.keeper.latest()
    its.notes += notes
    if checkpoint is not None and found is None:
        raise FileFormatError(f"{folder.path} has checkpoints, but no run.json that says of what run.",
                              ["copy it back", "train in another folder: --run FOLDER"])  # fmt: skip
    if checkpoint is None:
        if settings.resume == "must":
            raise InputError(f"there is nothing to continue in {folder.path}: it has no checkpoint.",
                             ["leave out --resume to begin", "--run FOLDER of the run to continue"])  # fmt: skip
        return None
    if checkpoint.meta.get("run", {}).get("fingerprint") != its.identity["fingerprint"]:
        raise JobError(f"the checkpoint {checkpoint.path} is of another job than the run.",
                       ["remove it", "train in another folder: --run FOLDER"])  # fmt: skip
    assert found is not None
    if checkpoint.step >= its.steps and found.get("ended"):  # else it was killed before its account was written
        raise InputError(f"the run in {folder.path} has taken all of its {checkpoint.step:,} steps.",
                         ["more of them, --steps N, continues it", "another --run FOLDER"])  # fmt: skip
    return checkpoint


def resume(its: Equipment, checkpoint: Checkpoint) -> None:
    """Puts the state back. Raises as Checkpoint.load does, and InputError or JobError where it is of something else."""
    state = checkpoint.load()
    run = state.pop("run")
    load_program(its.program, state)
    its.feed.load(run["data"])
    its.evaluations.load(run["evaluations"], checkpoint.step)
    its.start, its.spent_before_s = checkpoint.step, run["spent_s"]
    its.first_loss, its.good_loss = run["first_loss"], run["last_loss"]
    its.watch.load(run["losses"])
    its.notes.append(f"continues the run in {checkpoint.path.parent.parent} after step {checkpoint.step:,}.")
