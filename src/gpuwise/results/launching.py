"""What `launch` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.plan.types import Plan
from gpuwise.printed import Printed


@dataclass(frozen=True, repr=False)
class LaunchResult(Printed):
    """A plan, written for a target.

    Attributes:
        folder: where it is written.
        target: name of the target.
        plan: the plan.
        submit: the user's client and its arguments, run in the folder.
        digests: SHA-256 of each file, by path in the folder.
        grace_s: seconds from the signal until the target kills.
        save_s: seconds that a stop needs at most.
        time_limit_s: seconds until the target ends the job.
        restarts: times that the run starts again by itself.
        run_folder: folder of the run, as the machines see it.
        launch_notes: what is assumed, and what to know before money is spent.
        exit_code: of the client; None where it was not run.
    """

    folder: Path
    target: str
    plan: Plan
    submit: tuple[str, ...]
    digests: Mapping[str, str] = field(hash=False)
    grace_s: int
    save_s: float
    time_limit_s: int
    restarts: int
    run_folder: str
    launch_notes: tuple[Note, ...] = ()
    exit_code: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return sentences(self.launch_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise launch --json`."""
        return {
            "folder": str(self.folder),
            "target": self.target,
            "job": self.plan.job,
            "device": self.plan.device,
            "count": self.plan.count,
            "machines": self.plan.machines,
            "offer": self.plan.offer.to_dict(),
            "hours": self.plan.hours,
            "usd": self.plan.usd.value,
            "usd_interval": {"low": self.plan.usd.low, "high": self.plan.usd.high},
            "price_as_of": self.plan.price_as_of,
            "submit": list(self.submit),
            "files": dict(self.digests),
            "grace_s": self.grace_s,
            "save_s": self.save_s,
            "time_limit_s": self.time_limit_s,
            "restarts": self.restarts,
            "run_folder": self.run_folder,
            "notes": list(self.notes),
            "launch_notes": to_dicts(self.launch_notes),
            "exit_code": self.exit_code,
        }
