"""The report of `doctor` on this installation and this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from gpuwise.notes import Note, sentences
from gpuwise.printed import Printed
from gpuwise.results.listings import FetchedList


@dataclass(frozen=True, repr=False)
class Installation(Printed):
    """This installation and this machine.

    Attributes:
        versions: version of each package; None if the package is absent.
        machine: this machine in words.
        device: catalog id of the device `here`.
        cpu: the processor, a part of `detected`.
        gpus: the GPUs by name, "NVIDIA L4 x 2".
        chips, links, offers: number of each in the catalog.
        prices_from, prices_to: dates of the oldest and the newest price; "" without prices.
        stale_offers: number of offers whose price is over a year old.
        unverified: number of chip figures without a verified source.
        config_files: the user's own catalog files.
        presets: PyTorch version of each preset's recording; None if the recording is missing.
        problem_notes: problems that the user should fix.
        machine_key: name of this hardware in files.
        measured: when `gpuwise measure` measured this machine, and how ("2026-11-30, quick"); "" where it did not.
        price_lists: fetched price lists that count.
        detected: the detected hardware (gpuwise.hardware.detect.DetectedMachine.to_dict).
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
    price_lists: tuple[FetchedList, ...] = ()
    measured: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems as sentences."""
        return sentences(self.problem_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise doctor --json`."""
        return {**asdict(self), "problems": list(self.problems)}
