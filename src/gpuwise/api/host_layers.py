"""HostedModel: a model whose layers are split between a card and its host, under llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwise.api.devices import Device, device_of
from gpuwise.api.engine_model import ASSUMED_BYTES, EngineModel
from gpuwise.cost.memory.device import outside_bytes
from gpuwise.cost.offload import copy_bytes_per_s
from gpuwise.cost.parameters import parameters
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.links import host_link
from gpuwise.notes import Note
from gpuwise.notes import serving_modes as notes
from gpuwise.serving.formats import stored, stored_parts
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.launch import rounded_request
from gpuwise.serving.launch_modes import with_host_layers
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.split_layers import BESIDE_A_CARD, COPIED_FROM, HostSplit, LayerBytes, SplitStep, split_of
from gpuwise.serving.step_time import EngineStep

if TYPE_CHECKING:
    from gpuwise.api.engine_model import ModelArguments
    from gpuwise.serving.generation import Generation

ENGINE = "llama.cpp"
HOST = "ryzen-7950x"  # a desktop of two channels of DDR5, as it is bought with a card of its years
HERE = "here"


@dataclass(frozen=True)
class HostLayers:
    """What the user says of layers on the host.

    Attributes:
        gpu_layers: layers on the card, the head included; None for as many as fit.
        host: id of a processor, or "here"; "" for that of this machine, or the default.
        memory_bytes: of the host; None for this machine's, or the default.
    """

    gpu_layers: int | None
    host: str = ""
    memory_bytes: int | None = None

    @classmethod
    def of(cls, gpu_layers: str, *, host: str | None, memory_bytes: int | None) -> HostLayers:
        """From texts; "auto" for as many as fit. Raises InputError for what is no number of layers."""
        text = gpu_layers.strip().lower()
        if text != "auto" and not (text.isascii() and text.isdecimal() and len(text) < 7):
            raise InputError(f"{gpu_layers!r} is not a number of layers.", ["--gpu-layers auto", "--gpu-layers 20"])
        return cls(None if text == "auto" else int(text), host or "", memory_bytes)


class HostedModel(EngineModel):
    """A model whose layers are split between a card and its host.

    Arguments:
        requested: what the user says of it.
        catalog: source of processors and links.
        arguments: those of EngineModel.

    Raises InputError where the engine does not split layers, or the host is no processor.
    """

    def __init__(self, requested: HostLayers, catalog: Catalog, *arguments: *ModelArguments) -> None:
        super().__init__(*arguments)
        if self.engine.name != ENGINE:
            raise InputError(
                f"{self.engine.name} keeps all layers on its devices.",
                [f"--engine {ENGINE}", "leave out --gpu-layers and --host"],
            )
        self._requested, self._catalog = requested, catalog
        self._splits: dict[str, HostSplit] = {}
        self._assumed: dict[str, Note] = {}
        if requested.host and requested.host != HERE and device_of(requested.host, catalog).chip.kind != "cpu":
            raise InputError(f"{requested.host} is no processor of a host.", [f"--host {HOST}", "--host here"])

    @property
    def notes(self) -> tuple[Note, ...]:
        """Also what is assumed of the host."""
        split = (notes.layers_on_host(tokens=COPIED_FROM, slowdown=BESIDE_A_CARD),) if self._splits else ()
        return (*super().notes, *self._assumed.values(), *split)

    def mode(self, device: Device) -> HostSplit | None:
        """The split on a device whose instance was made."""
        return self._splits.get(device.cluster.name)

    def launched(self, line: str, device: Device) -> str:
        """The line with the number of layers on the card."""
        split = self.mode(device)
        return with_host_layers(line, split.gpu_layers) if split and line else line

    def check(self, device: Device) -> None:
        """Raises UnsupportedError where layers cannot be split there."""
        super().check(device)
        if device.devices > 1:
            raise UnsupportedError("layers split between a host and several cards have no figures yet")
        if device.chip.kind == "cpu" or device.chip.shares_host_memory:
            raise UnsupportedError(f"{device.chip.id} computes from the memory of its host: there is nothing to split")

    def instance(self, device: Device, generation: Generation, load: LoadShape) -> Instance:
        """An instance with its layers on the card and the host; raises InputError where they do not fit."""
        host, host_bytes = self._host(device)
        cache_tokens = self.engine.sequences * rounded_request(load.at(1.0), self.job.context_length)
        sizes = self._sizes(device, generation, cache_tokens)
        capacity = self._capacity_bytes(device)
        split = split_of(
            sizes,
            self._requested.gpu_layers,
            card=device.cluster.name,
            card_bytes=capacity,
            host=host.chip.id,
            host_bytes=host_bytes,
        )
        self._splits[device.cluster.name] = split
        link = host_link(device.chip, self._catalog)
        assert link is not None  # only processors have none
        step = SplitStep(
            self._step(device, generation),
            self._step(host, self.of(host)),
            sizes,
            split.gpu_layers,
            copy_bytes_per_s(link, parameters()),
        )
        return Instance(step, self._policy(cache_tokens), self.engine.spread)

    def _step(self, device: Device, generation: Generation) -> EngineStep:
        most = self.engine.batched_tokens + self.engine.sequences
        weights = stored(generation, self.format)
        return EngineStep(generation, device.cluster, costs=self.engine.costs, weights=weights, most_tokens=most)

    def _policy(self, cache_tokens: int) -> BatchingPolicy:
        engine = self.engine
        return BatchingPolicy(
            batched_tokens=engine.batched_tokens,
            sequences=engine.sequences,
            cache_tokens=cache_tokens,
            block_tokens=engine.block_tokens,
            chunked=engine.chunked,
        )

    def _sizes(self, device: Device, generation: Generation, cache_tokens: int) -> LayerBytes:
        layers = sum(each.layers for each in generation.attention)
        if not layers:
            raise UnsupportedError("the layers of a model without attention cannot be counted")
        embedding, head, rest = stored_parts(generation, self.format)
        cache = cache_tokens * generation.cache_bytes_per_token + self.engine.sequences * generation.cache_bytes_per_sequence
        outside = outside_bytes(device.cluster, parameters())
        return LayerBytes(
            layers=layers,
            layer=-(-rest // layers),
            layer_cache=-(-cache // layers),
            head=head,
            embedding=embedding,
            buffers=self.engine.beside_bytes(generation, outside_bytes=outside, logits=self.engine.sequences),
        )

    def _host(self, device: Device) -> tuple[Device, int]:
        """The host of a device, and its memory. Of a device of the catalog it is unknown."""
        requested = self._requested
        is_here = requested.host == HERE or (not requested.host and device.spec.machine is not None)
        host = _processor_here(self._catalog) if is_here else device_of(requested.host or HOST, self._catalog)
        memory_bytes = requested.memory_bytes or (_memory_here() if is_here else None)
        if not is_here and (not requested.host or memory_bytes is None):
            gib = (memory_bytes or ASSUMED_BYTES) // 2**30
            self._assumed[host.chip.id] = notes.assumed_host(host=host.chip.id, gib=gib)
        return host, memory_bytes or ASSUMED_BYTES


def _processor_here(catalog: Catalog) -> Device:
    """This machine's processor: as measured, where it is the device, else the one of the catalog most like it."""
    here = device_of(HERE, catalog)
    return here if here.chip.kind == "cpu" else device_of("cpu", catalog)


def _memory_here() -> int | None:
    from gpuwise.hardware.detect import detect_cpu

    return detect_cpu().memory_bytes
