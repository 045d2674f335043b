"""BesideHost: a model of which a card has a part and its host the rest, under llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.api.devices import Device, device_of
from gpuwise.api.engine_model import ASSUMED_BYTES, EngineModel
from gpuwise.cost.offload import copy_bytes_per_s
from gpuwise.cost.parameters import parameters
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.links import host_link
from gpuwise.notes import Note
from gpuwise.notes import serving_modes as notes
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.launch import rounded_request
from gpuwise.serving.policy import BatchingPolicy

if TYPE_CHECKING:
    from gpuwise.api.engine_model import ModelArguments
    from gpuwise.serving.generation import Generation

ENGINE = "llama.cpp"
HOST = "ryzen-7950x"  # a desktop of two channels of DDR5, as it is bought with a card of its years
HERE = "here"


class BesideHost(EngineModel):
    """A model of which a card has a part and its host the rest.

    Arguments:
        flag: that asks for it.
        host: id of a processor, or "here"; "" for that of this machine, or the default.
        memory_bytes: of the host; None for this machine's, or the default.
        catalog: source of processors and links.
        arguments: those of EngineModel.

    Raises InputError where the engine does not share a model with the host, or the host is no processor.
    """

    def __init__(self, flag: str, host: str, memory_bytes: int | None, catalog: Catalog, *arguments: *ModelArguments) -> None:
        super().__init__(*arguments)
        if self.engine.name != ENGINE:
            raise InputError(
                f"{self.engine.name} keeps all layers on its devices.", [f"--engine {ENGINE}", f"leave out {flag} and --host"]
            )
        self._flag, self._host_name, self._host_bytes, self._catalog = flag, host, memory_bytes, catalog
        self._assumed: dict[str, Note] = {}
        if host and host != HERE and device_of(host, catalog).chip.kind != "cpu":
            raise InputError(f"{host} is no processor of a host.", [f"--host {HOST}", "--host here"])

    @property
    def notes(self) -> tuple[Note, ...]:
        """Also what is assumed of the host."""
        return (*super().notes, *self._assumed.values())

    def check(self, device: Device) -> None:
        """Raises UnsupportedError where nothing can be left to a host."""
        super().check(device)
        if device.devices > 1:
            raise UnsupportedError(
                "layers split between a host and several cards have no figures yet",
                [f"one card (--on {device.chip.id})", f"leave out {self._flag}"],
            )
        if device.chip.kind == "cpu" or device.chip.shares_host_memory:
            raise UnsupportedError(f"{device.chip.id} computes from the memory of its host: there is nothing to split")

    def _link_bytes_per_s(self, device: Device) -> float:
        link = host_link(device.chip, self._catalog)
        assert link is not None  # only processors have none
        return copy_bytes_per_s(link, parameters())

    def _cache_tokens(self, load: LoadShape) -> int:
        """Tokens of the caches of all slots."""
        return self.engine.sequences * rounded_request(load.at(1.0), self.job.context_length)

    def _cache_bytes(self, generation: Generation, cache_tokens: int) -> int:
        return cache_tokens * generation.cache_bytes_per_token + self.engine.sequences * generation.cache_bytes_per_sequence

    def _policy(self, cache_tokens: int) -> BatchingPolicy:
        engine = self.engine
        return BatchingPolicy(
            batched_tokens=engine.batched_tokens,
            sequences=engine.sequences,
            cache_tokens=cache_tokens,
            block_tokens=engine.block_tokens,
            chunked=engine.chunked,
        )

    def _host(self, device: Device) -> tuple[Device, int]:
        """The host of a device, and its memory. Of a device of the catalog it is unknown."""
        name = self._host_name
        is_here = name == HERE or (not name and device.spec.machine is not None)
        host = _processor_here(self._catalog) if is_here else device_of(name or HOST, self._catalog)
        memory_bytes = self._host_bytes or (_memory_here() if is_here else None)
        if not is_here and (not name or memory_bytes is None):
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
