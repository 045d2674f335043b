"""HostedModel: a model whose layers are split between a card and its host, under llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwise.api.beside_host import BesideHost
from gpuwise.api.devices import Device
from gpuwise.cost.memory.device import outside_bytes
from gpuwise.cost.parameters import parameters
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.notes import Note
from gpuwise.notes import serving_modes as notes
from gpuwise.serving.formats import stored, stored_parts
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.launch_modes import with_host_layers
from gpuwise.serving.split_layers import BESIDE_A_CARD, COPIED_FROM, HostSplit, LayerBytes, SplitStep, split_of
from gpuwise.serving.step_time import EngineStep

if TYPE_CHECKING:
    from gpuwise.api.engine_model import ModelArguments
    from gpuwise.serving.generation import Generation


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


class HostedModel(BesideHost):
    """A model whose layers are split between a card and its host.

    Arguments:
        requested: what the user says of it.
        catalog: source of processors and links.
        arguments: those of EngineModel.

    Raises InputError where the engine does not split layers, or the host is no processor.
    """

    def __init__(self, requested: HostLayers, catalog: Catalog, *arguments: *ModelArguments) -> None:
        super().__init__("--gpu-layers", requested.host, requested.memory_bytes, catalog, *arguments)
        self._requested = requested
        self._splits: dict[str, HostSplit] = {}

    @property
    def notes(self) -> tuple[Note, ...]:
        """Also how layers on the host run."""
        split = (notes.layers_on_host(tokens=COPIED_FROM, slowdown=BESIDE_A_CARD),) if self._splits else ()
        return (*super().notes, *split)

    def mode(self, device: Device) -> HostSplit | None:
        """The split on a device whose instance was made."""
        return self._splits.get(device.cluster.name)

    def launched(self, line: str, device: Device) -> str:
        """The line with the number of layers on the card."""
        split = self.mode(device)
        return with_host_layers(line, split.gpu_layers) if split and line else line

    def instance(self, device: Device, generation: Generation, load: LoadShape) -> Instance:
        """An instance with its layers on the card and the host; raises InputError where they do not fit."""
        host, host_bytes = self._host(device)
        cache_tokens = self._cache_tokens(load)
        sizes = self._sizes(device, generation, cache_tokens)
        split = split_of(
            sizes,
            self._requested.gpu_layers,
            card=device.cluster.name,
            card_bytes=self._capacity_bytes(device),
            host=host.chip.id,
            host_bytes=host_bytes,
        )
        self._splits[device.cluster.name] = split
        step = SplitStep(
            self._step(device, generation),
            self._step(host, self.of(host)),
            sizes,
            split.gpu_layers,
            self._link_bytes_per_s(device),
        )
        return self._served_by(step, self._policy(cache_tokens))

    def _step(self, device: Device, generation: Generation) -> EngineStep:
        weights = stored(generation, self.format)
        return EngineStep(generation, device.cluster, costs=self.engine.costs, weights=weights)

    def _sizes(self, device: Device, generation: Generation, cache_tokens: int) -> LayerBytes:
        layers = sum(each.layers for each in generation.attention)
        if not layers:
            raise UnsupportedError("the layers of a model without attention cannot be counted")
        embedding, head, rest = stored_parts(generation, self.format)
        outside = outside_bytes(device.cluster, parameters())
        return LayerBytes(
            layers=layers,
            layer=-(-rest // layers),
            layer_cache=-(-self._cache_bytes(generation, cache_tokens) // layers),
            head=head,
            embedding=embedding,
            buffers=self.engine.beside_bytes(generation, outside_bytes=outside, logits=self.engine.sequences),
        )
