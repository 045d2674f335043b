"""Parallelism: how the devices along each axis of a mesh share the work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpuwise.errors import InputError
from gpuwise.json_types import Json
from gpuwise.strategy.checks import check_choice, check_switches, check_whole

SHARDS = ("parameters", "gradients", "optimizer")
CONTEXTS = ("gather", "all-to-all", "ring")
# PyTorch's schedules (torch.distributed.pipelining). The first two run one stage on each rank, the others several.
PIPELINE_SCHEDULES = (
    "gpipe",
    "1f1b",
    "looped-bfs",
    "interleaved-1f1b",
    "interleaved-zero-bubble",
    "zbv-zero-bubble",
    "dualpipe-v",
)
SINGLE_STAGE_SCHEDULES = ("gpipe", "1f1b")


@dataclass(frozen=True)
class Parallelism:
    """How the devices along each axis of the mesh share the work. A field has no effect where its axis has one device.

    Attributes:
        shard: what the devices of dp_shard split: parameters (default), gradients and optimizer state (ZeRO stage 3) |
            gradients and optimizer state (stage 2) | optimizer state alone (stage 1).
        sequence_parallel: norms and residuals of tensor-parallel blocks are split along the sequence. False.
        loss_parallel: a tensor-parallel head's logits stay split along the vocabulary, and so does the loss. False.
        context: how devices of cp that each hold a part of the sequence attend to all of it: gather keys and values
            (default) | all-to-all, from parts of the sequence to parts of the heads | ring, passing keys and values on.
        pipeline_schedule: of PIPELINE_SCHEDULES, 1f1b by default. A step's micro-batches are strategy.accumulation.
        stages_per_rank: pipeline stages of one rank, 1 by default; at least 2 for schedules of several stages.
        compress_gradients: gradients are reduced in bf16. False.
    """

    shard: str = "parameters"
    sequence_parallel: bool = False
    loss_parallel: bool = False
    context: str = "gather"
    pipeline_schedule: str = "1f1b"
    stages_per_rank: int = 1
    compress_gradients: bool = False

    def __post_init__(self) -> None:
        check_choice("shard", self.shard, SHARDS)
        check_choice("context", self.context, CONTEXTS)
        check_choice("pipeline schedule", self.pipeline_schedule, PIPELINE_SCHEDULES)
        check_whole("stages per rank", self.stages_per_rank, 1, 1_000)
        check_switches(self, "sequence_parallel", "loss_parallel", "compress_gradients")

    def to_dict(self) -> dict[str, Json]:
        """The fields that differ from the default."""
        plain = asdict(Parallelism())
        return {name: value for name, value in asdict(self).items() if value != plain[name]}

    @classmethod
    def from_dict(cls, data: object) -> Parallelism:
        """The inverse of to_dict. Raises InputError for unknown keys or values out of range."""
        if not isinstance(data, Mapping) or set(data) - {f.name for f in fields(cls)}:
            raise InputError(f"unknown parallelism {data!r}.", [f"its keys: {', '.join(f.name for f in fields(cls))}"])
        values: dict[str, Any] = dict(data)
        return cls(**values)


def check_heads(degree: int, heads: Iterable[int]) -> None:
    """Raises InputError where heads cannot be exchanged for parts of the sequence."""
    for each in heads:
        if each % degree:
            raise InputError(
                f"all-to-all over {degree} devices of cp does not divide the {each} heads of a rank.",
                ["--context gather", "another --mesh cp=N"],
            )
