"""A run's state: taken from its parts to be saved, and put back into them to go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuwise.errors import FileFormatError, InputError, JobError, RunEndedError
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.checkpoint import Checkpoint
from gpuwise.runtime.checkpoint.program_state import load_program, program_state
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.health import LossWatch
from gpuwise.runtime.run.checkpoint_manager import CheckpointManager
from gpuwise.runtime.run.evaluation import Evaluations
from gpuwise.runtime.run.folder import RunFolder, check_continues


@dataclass(frozen=True)
class Parts:
    """All that the next step depends on, and what is said of the run."""

    program: Program
    loader: MicroBatchLoader
    evaluations: Evaluations
    watch: LossWatch

    def state(self, account: dict[str, Any]) -> dict[str, Any]:
        """To be saved; account: what the run's own account is made of. Tensors are the program's own, not copies."""
        run = {**account, "data": self.loader.state(), "evaluations": self.evaluations.state(), "losses": self.watch.state()}
        return {**program_state(self.program), "run": run}

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Puts the state back. Returns the account. Raises as Checkpoint.load does, and InputError or JobError where it is
        of something else."""
        state = checkpoint.load()
        run: dict[str, Any] = state.pop("run")
        load_program(self.program, state)
        self.loader.load(run.pop("data"))
        self.evaluations.load(run.pop("evaluations"), checkpoint.step)
        self.watch.load(run.pop("losses"))
        return run


def to_continue(
    folder: RunFolder, checkpoints: CheckpointManager, identity: dict[str, Any], *, resume: str, steps: int
) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of the run in the folder, None where the run is to begin; and what to say of it.

    Arguments:
        identity: of the run that is wanted; when it was begun is taken over. resume: as in TrainSettings. steps: in all.

    Raises InputError where the settings want it otherwise, or the run has taken all of its steps; JobError for another
    job's run; FileFormatError for damaged or newer files.
    """
    found = folder.identity()
    if found is not None and resume == "never":
        raise InputError(f"{folder.path} holds a run already.", ["--resume continues it", "another --run FOLDER"])
    notes = []
    if found is not None:
        notes = check_continues(found, identity, folder.path)
        identity["begun"] = found.get("begun")
    checkpoint, told = checkpoints.latest()
    if checkpoint is None:
        if resume == "must":
            raise InputError(
                f"there is nothing to continue in {folder.path}: it has no checkpoint.",
                ["leave out --resume to begin", "--run FOLDER of the run to continue"],
            )
        return None, notes + told
    if found is None:
        raise FileFormatError(
            f"{folder.path} has checkpoints, but no run.json that says of what run.",
            ["copy it back", "train in another folder: --run FOLDER"],
        )
    if checkpoint.of_run != identity["fingerprint"]:
        raise JobError(
            f"the checkpoint {checkpoint.path} is of another job than the run.",
            ["remove it", "train in another folder: --run FOLDER"],
        )
    if checkpoint.step >= steps and found.get("ended"):  # else it was killed before its account was written
        raise RunEndedError(
            f"the run in {folder.path} has taken all of its {checkpoint.step:,} steps; its weights are in "
            f"{checkpoint.path / 'model.safetensors'}.",
            ["more of them, --steps N, continues it", "--export FILE writes its weights"],
            folder=str(folder.path),
            step=checkpoint.step,
        )
    return checkpoint, [*notes, *told, f"continues the run in {folder.path} after step {checkpoint.step:,}."]
