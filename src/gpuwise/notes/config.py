"""Notes on a file of another trainer that a forecast was made from."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note


@kind_of_note(flag="--config")
def read_from_file(*, file: str, kind: str, settings: str) -> str:
    """Settings of a forecast come from a file of another trainer. kind: which trainer's. settings: its keys and values."""
    return f"read from {file} ({kind}): {settings or 'nothing that is not its default'}"


@kind_of_note(flag="--config")
def trainer_differs(*, file: str, keys: str, difference: str) -> str:
    """The trainer of the file does otherwise than what is forecast. keys: what in the file says so; empty for all of it."""
    return f"read from {file}{f', {keys}' if keys else ''}: {difference}"


@kind_of_note(flag="--config")
def keys_ignored(*, file: str, keys: str) -> str:
    """Keys of the file that move no forecast."""
    return f"of {file}, these move no forecast: {keys}"


@kind_of_note(flag="--config")
def keys_of_the_model(*, file: str, keys: str) -> str:
    """Keys of the file that describe the model, which is the job's."""
    return f"of {file}, these describe the model, which is JOB's: {keys}"


@kind_of_note(flag="--config")
def left_to_the_script(*, file: str, settings: str) -> str:
    """Settings that the file leaves to the user's script. settings: their flags."""
    return f"{file} leaves these to your script, and the flags say them: {settings}"
