"""What `doctor` reports of this installation and this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from gpuwise.notes import Note, sentences
from gpuwise.printed import Printed


@dataclass(frozen=True, repr=False)
class Installation(Printed):
    """This installation and this machine.

    Attributes:
        versions: of packages; None where a package is absent.
        machine: this machine in words.
        device: the catalog id that `here` stands for.
        cpu: the processor, a part of `detected`.
        gpus: the GPUs by name, "NVIDIA L4 x 2".
        chips, links, offers: how many the catalog has.
        prices_from, prices_to: dates of the oldest and the newest price; "" without prices.
        stale_offers: offers whose price is over a year older than the newest.
        unverified: figures of chips without a verified source.
        config_files: the user's own catalog files.
        presets: the PyTorch version each was recorded with; None where the recording is missing.
        problem_notes: what the user should mend.
        machine_key: this hardware's name in files.
        detected: all that was detected of this machine (gpuwise.hardware.detect.DetectedMachine.to_dict).
    """

    versions: Mapping[str, str | None] = field(hash=False)
    machine: str
    device: str
    cpu: Mapping[str, object] = field(hash=False)
    gpus: tuple[str, ...]
    chips: int
    links: int
    offers: int
    prices_from: str
    prices_to: str
    stale_offers: int
    unverified: int
    config_files: tuple[str, ...]
    presets: Mapping[str, str | None] = field(hash=False)
    problem_notes: tuple[Note, ...] = ()
    machine_key: str = ""
    detected: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems as sentences."""
        return sentences(self.problem_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise doctor --json`."""
        return {**asdict(self), "problems": list(self.problems)}
