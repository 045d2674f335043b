"""HostedExperts: a mixture whose experts are on the host of a card, under llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwise.api.beside_host import BesideHost
from gpuwise.api.devices import Device
from gpuwise.cost.memory.device import outside_bytes
from gpuwise.cost.parameters import parameters
from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.notes import Note
from gpuwise.notes import serving_modes as notes
from gpuwise.serving.experts import ExpertShape, expert_shape, experts_alone, without_experts
from gpuwise.serving.formats import Format, StoredWeights, expert_bytes, stored, stored_parts
from gpuwise.serving.host_experts import ExpertBytes, ExpertLayers, ExpertSplit, ExpertStep, expert_split_of
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.launch_modes import with_host_experts
from gpuwise.serving.split_layers import BESIDE_A_CARD, COPIED_FROM
from gpuwise.serving.step_time import EngineStep

if TYPE_CHECKING:
    from gpuwise.api.engine_model import ModelArguments
    from gpuwise.serving.generation import Generation


@dataclass(frozen=True)
class HostExperts:
    """What the user says of experts on the host.

    Attributes:
        layers: how many of the first layers have their experts there; "all", or "auto" for as few as fit.
        host: id of a processor, or "here"; "" for that of this machine, or the default.
        memory_bytes: of the host; None for this machine's, or the default.
    """

    layers: ExpertLayers
    host: str = ""
    memory_bytes: int | None = None

    @classmethod
    def of(cls, cpu_experts: str, *, host: str | None, memory_bytes: int | None) -> HostExperts:
        """From texts. Raises InputError for what is no number of layers."""
        text = cpu_experts.strip().lower()
        layers: ExpertLayers
        if text in ("all", "auto"):
            layers = "all" if text == "all" else "auto"
        elif text.isascii() and text.isdecimal() and len(text) < 7:
            layers = int(text)
        else:
            raise InputError(f"{cpu_experts!r} is not a number of layers.", ["--cpu-experts auto", "--cpu-experts 20"])
        return cls(layers, host or "", memory_bytes)


class HostedExperts(BesideHost):
    """A mixture whose experts are on the host of a card, all else on the card.

    Arguments:
        requested: what the user says of it.
        catalog: source of processors and links.
        arguments: those of EngineModel.

    Raises InputError where the engine does not leave experts to the host, or the host is no processor.
    """

    def __init__(self, requested: HostExperts, catalog: Catalog, *arguments: *ModelArguments) -> None:
        super().__init__("--cpu-experts", requested.host, requested.memory_bytes, catalog, *arguments)
        self._requested = requested
        self._splits: dict[str, ExpertSplit] = {}

    @property
    def notes(self) -> tuple[Note, ...]:
        """Also how experts on the host run."""
        split = (notes.experts_on_host(tokens=COPIED_FROM, slowdown=BESIDE_A_CARD),) if self._splits else ()
        return (*super().notes, *split)

    def mode(self, device: Device) -> ExpertSplit | None:
        """The split on a device whose instance was made."""
        return self._splits.get(device.cluster.name)

    def launched(self, line: str, device: Device) -> str:
        """The line with the number of layers whose experts are on the host."""
        split = self.mode(device)
        return with_host_experts(line, split.cpu_experts) if split and line else line

    def instance(self, device: Device, generation: Generation, load: LoadShape) -> Instance:
        """An instance with its experts on the host; raises JobError where the model has none, InputError where a memory does
        not hold its part."""
        shape = self._shape(generation)
        host, host_bytes = self._host(device)
        cache_tokens = self._cache_tokens(load)
        outside = outside_bytes(device.cluster, parameters())
        beside = self.engine.beside_bytes(generation, outside_bytes=outside, logits=self.engine.sequences)
        cache = self._cache_bytes(generation, cache_tokens)
        sizes = sizes_of(generation, self.format, shape, cache=cache, buffers=beside)
        split = expert_split_of(
            sizes,
            self._requested.layers,
            card=device.cluster.name,
            card_bytes=self._capacity_bytes(device),
            host=host.chip.id,
            host_bytes=host_bytes,
        )
        self._splits[device.cluster.name] = split
        of_host = self.of(host)
        rest = stored(generation, self.format, only=lambda each: not each.of_experts)
        experts = stored(generation, self.format, only=lambda each: each.of_experts)
        step = ExpertStep(
            rest=self._step(device, without_experts(generation), rest),
            card=self._step(device, experts_alone(generation), experts),
            host=self._step(host, experts_alone(of_host), experts),
            sizes=sizes,
            cpu_experts=split.cpu_experts,
            shape=shape,
            width=generation.width,
            link_bytes_per_s=self._link_bytes_per_s(device),
        )
        return self._served_by(step, self._policy(cache_tokens))

    def _shape(self, generation: Generation) -> ExpertShape:
        shape = expert_shape(generation)
        if shape is not None:
            return shape
        if any(each.of_experts for each in generation.weights):
            raise UnsupportedError(f"{self.job.name} runs its experts one by one, of which those read are not seen")
        raise JobError(
            f"{self.job.name} has no experts to leave to the host.",
            ["--gpu-layers auto: whole layers on the host", "a mixture of experts, such as hf:openai/gpt-oss-20b"],
        )

    def _step(self, device: Device, generation: Generation, weights: StoredWeights) -> EngineStep:
        return EngineStep(generation, device.cluster, costs=self.engine.costs, weights=weights)


def sizes_of(generation: Generation, format: Format | None, shape: ExpertShape, *, cache: int, buffers: int) -> ExpertBytes:
    """Bytes of a recorded mixture in a format. cache, buffers: as for ExpertBytes."""
    embedding, head, rest = stored_parts(generation, format)
    experts = expert_bytes(generation, format, layers=shape.layers)
    layers = max(sum(each.layers for each in generation.attention), shape.layers)
    return ExpertBytes(
        layers=layers,
        experts=experts,
        rest=head + rest - sum(experts),
        cache=cache,
        embedding=embedding,
        buffers=buffers,
    )
