"""Whether a run goes on as it began: what must be the same, and notes on what has changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from gpuwise.errors import InputError, JobError
from gpuwise.notes import Note
from gpuwise.notes import training as training_notes
from gpuwise.runtime.run.folder import RunIdentity
from gpuwise.strategy import OPTIMIZERS, Mesh, Strategy


def check_continues(saved: RunIdentity, identity: RunIdentity, folder: Path) -> list[Note]:
    """Notes on differences between a run and its continuation.

    Raises JobError for another job, InputError for another seed or global batch, which would change the order of the data
    and the meaning of a step.
    """
    elsewhere = "train in another folder: --run FOLDER"
    if saved.get("fingerprint") != identity["fingerprint"]:
        raise JobError(
            f"{folder} holds a run of another job: {saved.get('job')!r}, fingerprint {saved.get('fingerprint')}; "
            f"this is {identity['job']!r}, {identity['fingerprint']}.",
            [elsewhere],
        )
    before, now = saved.get("strategy", {}), identity["strategy"]
    for name, meaning, way in (
        ("global_batch", "samples a step", lambda: _same_batch(before, now)),
        ("seed", "as its seed", lambda: f"as before: --seed {saved.get('seed')}"),
    ):
        if saved.get(name) != identity.get(name):
            raise InputError(
                f"the run in {folder} has {saved.get(name)} {meaning}, not {identity.get(name)}; "
                "continued so it would be another run.",
                [way(), elsewhere],
            )
    optimizers = [_optimizer(identity) for identity in (saved, identity)]
    if None not in optimizers and optimizers[0] != optimizers[1]:
        raise InputError(
            f"the run in {folder} trains with {optimizers[0]}, whose state {optimizers[1]} cannot go on with.",
            [f"as before: --optimizer {optimizers[0]}", elsewhere],
        )
    notes = []
    if changes := _changes(before, now):
        notes.append(training_notes.continued_with_other_settings(changes=changes))
    if changes := _changes(saved.get("recipe", {}), identity["recipe"]):
        notes.append(training_notes.continued_with_another_job(changes=changes))
    if saved.get("steps") != identity["steps"]:
        notes.append(training_notes.continued_to_another_length(before=saved["steps"], steps=identity["steps"]))
    return notes


def _optimizer(identity: RunIdentity) -> str | None:
    """Its name; None for a job's own."""
    name = identity.get("strategy", {}).get("optimizer") or identity.get("recipe", {}).get("optimizer")
    return name if isinstance(name, str) and name in OPTIMIZERS else None


def _changes(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return ", ".join(f"{name} {_text(name, before.get(name))} -> {_text(name, now.get(name))}" for name in names)


def _text(name: str, value: object) -> str:
    return str(Mesh.from_dict(value)) if name == "mesh" and value is not None else str(value)


def _same_batch(saved: Mapping[str, object], now: Mapping[str, object]) -> str:
    """The way to the samples a step of a saved strategy: its micro-batches, or those of another mesh that divides them."""
    before, mesh = Strategy.from_dict(saved), Mesh.from_dict(now["mesh"])
    if before.mesh.data_parallel == mesh.data_parallel:
        return f"as before: --micro-batch {before.micro_batch} --accumulate {before.accumulation}"
    if before.global_batch % mesh.data_parallel:
        return f"--mesh {before.mesh} as before: {mesh.data_parallel} data-parallel ranks do not divide {before.global_batch}"
    of_rank = before.global_batch // mesh.data_parallel
    micro_batch = math.gcd(before.micro_batch, of_rank)
    return f"the same on this mesh: --micro-batch {micro_batch} --accumulate {of_rank // micro_batch}"
