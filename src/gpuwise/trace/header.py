"""The head of a trace: which step of which job it is, and what the recording assumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpuwise.errors import UnsupportedError
from gpuwise.notes import Note, sentences
from gpuwise.strategy import StepFacts, Strategy, check_techniques

RECORDED = 2  # micro-batches of a recorded step, unless the header says otherwise
_ON_DISK = {"target": "substrate", "assumption_notes": "assumptions"}  # names of fields in files, where they differ


@dataclass(frozen=True)
class RankGroup:
    """The ranks that a collective connects, which are equally far apart.

    Attributes:
        axis: the axis of the mesh along which they lie, such as "tp"; several joined by "+", such as "dp_replicate+dp_shard".
        ranks: how many they are.
        stride: difference of the numbers of two neighbours: of ranks numbered through machines of eight, eight with stride 1
            share a machine, and two with stride 8 do not.
    """

    axis: str
    ranks: int
    stride: int


@dataclass(frozen=True)
class UpdatedParameter:
    """A parameter, or this rank's part of one, that the optimizer updates.

    Attributes:
        shape: shape of this rank's part.
        element_bytes: bytes of one element.
        module: index of the module that has it.
    """

    shape: tuple[int, ...]
    element_bytes: int
    module: int


@dataclass(frozen=True)
class Header:
    """The header of a trace: its job, sizes and strategy, and the assumptions of the recording.

    Attributes:
        job: the job's name.
        fingerprint: fingerprint of the job's parameters, 16 hexadecimal digits (gpuwise.job.fingerprint).
        sizes: sizes of the recorded batch: "micro_batch" in samples, and "seq_len" in tokens or "image_size" in pixels an edge
            if the job has one.
        strategy: precision, recompute, optimizer, mode and techniques of the step.
        parameters: number of parameters of the model.
        trainable_parameters: number of parameters with a gradient.
        sample_unit: what throughput counts, "sample" | "image" | "token". Default "sample".
        units_per_sample: tokens a sample, else 1 (the default).
        target: the kind of device whose kernels were recorded, "accelerator" (the default) | "pre-ampere" | "cpu".
        torch_version: PyTorch's version in the recording; "" (the default) where unknown.
        blocks: paths of the model's repeated blocks; empty by default.
        assumption_notes: guesses of the recording, each with the flag that changes it; none by default.
        gradient_shapes: the shape of the parameter behind each storage of category gradient, in their order, which is that
            of the model's parameters; empty (the default) in files of older versions.
        averages: whether an average of the parameters is updated after the optimizer's step. Default False.
        own_step: whether the job updates inside a step of its own. Such a step is recorded with one micro-batch, and nothing
            is accumulated over several. Default False.
        rank: the rank of strategy.mesh whose step it is. Default 0.
        stages: the pipeline's stages that this rank runs; empty (the default) without a pipeline.
        groups: the groups of ranks of the collectives; none by default.
        model_flops: of a rank that runs a part of the model, model operations of a micro-batch over all ranks that share it;
            0 (the default) where each device runs the whole model.
        updated: of one of several ranks, what its optimizer updates, in the model's order; none (the default) on one device,
            where the gradients show it, and in files of older versions.
        expert_modules: of a step on one device, paths of the modules that hold all experts of a mixture, each tensor with an
            entry for each expert; none (the default) where experts are modules of their own, and in files of older versions.
        experts: the experts of each of these modules, or the largest number that divides them all; 0 (the default) for none.
        micro_batches: how many micro-batches are recorded, 2 by default. Positions with micro_step 1 run
            accumulation - micro_batches + 1 times. 0: those of the strategy, and no other number follows from them.
    """

    job: str
    fingerprint: str
    sizes: dict[str, int]
    strategy: Strategy
    parameters: int
    trainable_parameters: int
    sample_unit: str = "sample"
    units_per_sample: int = 1
    target: str = "accelerator"
    torch_version: str = ""
    blocks: tuple[str, ...] = ()
    assumption_notes: tuple[Note, ...] = ()
    gradient_shapes: tuple[tuple[int, ...], ...] = ()
    averages: bool = False
    own_step: bool = False
    rank: int = 0
    stages: tuple[int, ...] = ()
    groups: tuple[RankGroup, ...] = ()
    model_flops: int = 0
    updated: tuple[UpdatedParameter, ...] = ()
    expert_modules: tuple[str, ...] = ()
    experts: int = 0
    micro_batches: int = RECORDED

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as sentences."""
        return sentences(self.assumption_notes)

    @property
    def step_facts(self) -> StepFacts:
        """The facts of the recorded step, for check_techniques."""
        return StepFacts(self.job, own_step=self.own_step, scalar_parameter=() in self.gradient_shapes)

    def check_accumulation(self, accumulation: int) -> None:
        """Raises UnsupportedError where the step has no such number of micro-batches."""
        fewest = self.micro_batches or self.strategy.accumulation
        if self.micro_batches != RECORDED and (accumulation < fewest or (not self.micro_batches and accumulation > fewest)):
            or_more = " or more" if self.micro_batches else ""
            raise UnsupportedError(
                f"the step of {self.job} is recorded with {fewest} micro-batches{or_more}, which do not show {accumulation}.",
                ["record it with this accumulation"],
            )
        if accumulation > 1:
            strategy = self.strategy.but(accumulation=accumulation)
            check_techniques(strategy, self.step_facts)

    def to_dict(self) -> dict[str, object]:
        data = {_ON_DISK.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        notes = [note.to_dict() for note in self.assumption_notes]
        of_ranks = {
            "stages": list(self.stages),
            "groups": [asdict(group) for group in self.groups],
            "updated": [asdict(parameter) for parameter in self.updated],
            "expert_modules": list(self.expert_modules),
        }
        return {**data, **of_ranks, "strategy": self.strategy.to_dict(), "blocks": list(self.blocks), "assumptions": notes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Header:
        strategy = Strategy.from_dict(data["strategy"])
        names = {on_disk: name for name, on_disk in _ON_DISK.items()}
        return cls(
            **{
                **{names.get(name, name): value for name, value in data.items()},
                "strategy": strategy,
                "blocks": tuple(data["blocks"]),
                "assumption_notes": tuple(map(Note.from_dict, data["assumptions"])),
                "stages": tuple(data.get("stages", ())),
                "expert_modules": tuple(data.get("expert_modules", ())),
                "groups": tuple(RankGroup(**group) for group in data.get("groups", ())),
                "updated": tuple(
                    UpdatedParameter(tuple(item["shape"]), item["element_bytes"], item["module"])
                    for item in data.get("updated", ())
                ),
                "gradient_shapes": tuple(map(tuple, data.get("gradient_shapes", ()))),
            }
        )
