"""Notes on a run's copies in a folder elsewhere."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note


@kind_of_note(flag="--copy-to")
def copied_back(*, folder: str, step: int) -> str:
    """The run goes on from a copy, because its own folder has no checkpoint as new."""
    return f"the checkpoint of step {step:,} was copied back from {folder}."


@kind_of_note(flag="--copy-to")
def incomplete_copies(*, folder: str, steps: str) -> str:
    """Copies that were cut short are passed over."""
    return f"passed over in {folder}: the copy of step {steps} is not complete, because it was cut short."


@kind_of_note(flag="--copy-to")
def copies_on_the_same_disk(*, folder: str) -> str:
    """The folder of copies is on the disk of the run: a mount that is not there, perhaps."""
    return f"the folder of copies {folder} is on the same disk as the run: copies there are lost with it; is its mount there?"


@kind_of_note(flag="--copy-to")
def copies_not_removed(*, problem: str) -> str:
    """Old copies stay, which fills the folder of copies."""
    return f"an old copy could not be removed, and may fill the folder of copies: {problem}."
