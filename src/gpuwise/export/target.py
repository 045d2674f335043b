"""ExportTarget: one peer that a plan is exported to, as a table of rows, a form of file and a command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path

from gpuwise.export.cells import Keys, Reading, Row
from gpuwise.export.values import Values, number_of
from gpuwise.json_types import Json, JsonObject

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Schema:
    """The keys that a peer takes, as benchmarks/peer_keys.py read them from the installed peer.

    Attributes:
        peer: name of its package.
        version: the version they were read from.
        keys: dotted paths, with the peer's own value where the key is absent. A path that ends in `.*` takes any key below it.
        whole: whether these are all of its keys. Megatron-LM's package has only those of its core.
    """

    peer: str
    version: str
    keys: Keys
    whole: bool = True

    def names(self, key: str) -> bool:
        """Whether the peer takes this key."""
        parts = key.split(".")
        return key in self.keys or any(".".join([*parts[:i], "*"]) in self.keys for i in range(1, len(parts)))


@dataclass(frozen=True)
class DeviceSet:
    """The devices that a file is for. on_cpu: they are CPUs."""

    devices: int
    machines: int = 1
    on_cpu: bool = False

    @property
    def of_a_machine(self) -> int:
        """Devices of one machine."""
        return self.devices // self.machines


@dataclass(frozen=True)
class Heading:
    """What every exported file carries.

    Attributes:
        job: name of the job.
        plan_sha256: of the plan file.
        gpuwise_version: that wrote the file.
        peer: the peer and the version that the table was written for.
        command: what runs the file.
        script: what the user's script sets.
        world: the devices that it runs on.
    """

    job: str
    plan_sha256: str
    gpuwise_version: str
    peer: str
    command: str
    script: tuple[str, ...] = ()
    world: DeviceSet = DeviceSet(1)

    def lines(self) -> list[str]:
        """As lines of a comment."""
        first = f"{self.job}, exported by gpuwise {self.gpuwise_version} for {self.peer}"
        yours = [f"in your script: {text}" for text in self.script]
        return [line.replace("\n", " ") for line in (first, f"plan sha256 {self.plan_sha256}", f"run: {self.command}", *yours)]

    def line(self) -> str:
        """The same, without the script, on one line."""
        return "; ".join(self.lines()[:3])


@dataclass(frozen=True)
class ExportTarget:
    """One peer.

    Attributes:
        name: as --to names it.
        title: the peer and its form of file, in words.
        suffix: of the file's name.
        rows: how it writes each field of gpuwise.export.values.FIELDS; each field stands in exactly one row.
        write: the text of a file, from its keys as dotted paths.
        parse: the keys of a text, nested. Raises ValueError.
        recognises: whether a text's nested keys are of this peer.
        command: what runs a file of this name.
        fixed: keys that every file has.
        world: keys that follow from the devices. A file that is read must agree with them.
        global_batch: the key of the samples a step over all devices; "" where the peer has none.
        ignored: keys that move no forecast, as patterns of fnmatch.
        of_the_model: keys that describe the model, which JOB has, as patterns.
        refused: keys that gpuwise cannot forecast, as patterns, with the reason.
        comment: a key that carries the heading where the form of file has no comments; "" where it has.
        auto: a value that the peer fills in itself, and which therefore fixes nothing; None without one.
        complete: what the peer itself does to its keys before it uses them.
        settle: what the peer does to fields that were read, in spite of its keys.
        of_a_keras_model: whether the file runs Keras models alone.
    """

    name: str
    title: str
    suffix: str
    rows: tuple[Row, ...]
    write: Callable[[Keys, Heading], str]
    parse: Callable[[str], JsonObject]
    recognises: Callable[[JsonObject], bool]
    command: Callable[[DeviceSet, str], str]
    fixed: Keys = field(default_factory=dict)
    world: Callable[[DeviceSet], Keys] = lambda world: {}
    global_batch: str = ""
    ignored: Sequence[str] = ()
    of_the_model: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""
    auto: Json = None
    complete: Callable[[Keys], Keys] = lambda keys: keys
    settle: Callable[[Values], Reading | None] = lambda values: None
    of_a_keras_model: bool = False

    @property
    def schema(self) -> Schema:
        return schema_of(self.name)

    @property
    def peer(self) -> str:
        """'deepspeed 0.19.8'"""
        return f"{self.schema.peer} {self.schema.version}"

    def batch_keys(self, values: Values) -> Keys:
        """The samples a step over all devices, where the peer has a key for them."""
        if not self.global_batch:
            return {}
        factors = ("micro_batch", "accumulation", "dp_replicate", "dp_shard")
        return {self.global_batch: prod(number_of(values, name) for name in factors)}


@cache
def schema_of(name: str) -> Schema:
    """The shipped keys of a target's peer."""
    data = json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8"))
    return Schema(data["peer"], data["version"], data["keys"], data.get("whole", True))


def launched(program: str, world: DeviceSet) -> str:
    """torchrun's command of a program on these devices."""
    nodes = (
        "" if world.machines == 1 else f"--nnodes {world.machines} --node-rank $RANK_OF_MACHINE --master-addr $FIRST_MACHINE "
    )
    return f"torchrun {nodes}--nproc-per-node {world.of_a_machine} {program}"
