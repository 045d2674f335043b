"""pipelined: an instance of a model whose layers are spread over several machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from gpuwise.api.devices import Device
from gpuwise.cost.memory.device import outside_bytes
from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.parameters import parameters
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.serving.engines import Engine
from gpuwise.serving.formats import Format, stored, stored_parts
from gpuwise.serving.generation import Generation
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.pipelined import Hop, Pipelined, PipelinedStep
from gpuwise.serving.step_time import EngineStep
from gpuwise.trace.header import RankGroup

ENGINES = ("vllm", "vllm-2024", "tensorrt-llm")
MANY_TOKENS = 1024  # of a message whose time, over that of one token, gives what each adds


@dataclass(frozen=True)
class AcrossMachines:
    """A model on several machines.

    Attributes:
        device: the machines.
        generation: of the model on one of the devices that share the layers of a machine.
        engine: that runs it.
        format: of weights; None as recorded.

    Raises UnsupportedError where the engine does not span machines, or the model has fewer layers than there are.
    """

    device: Device
    generation: Generation
    engine: Engine
    format: Format | None

    def __post_init__(self) -> None:
        if self.engine.name not in ENGINES:
            raise UnsupportedError(f"{self.engine.name} across machines has no figures", [f"--engine {ENGINES[0]}"])
        if self._layers < self.device.machines:
            raise UnsupportedError(f"{self._layers:,} layers cannot be spread over {self.device.machines:,} machines")

    @property
    def _layers(self) -> int:
        return sum(each.layers for each in self.generation.attention)

    @property
    def layers(self) -> int:
        """Most layers of a machine."""
        return -(-self._layers // self.device.machines)

    @property
    def weight_bytes(self) -> int:
        """Bytes on a device of the machine with most: its layers, and the larger of embedding and head."""
        embedding, head, rest = stored_parts(self.generation, self.format)
        return -(-rest * self.layers // self._layers) + max(embedding, head)

    @cached_property
    def hop(self) -> Hop:
        """Between machines: each device sends what the layers give for a token to its neighbour."""
        attention = self.generation.attention[0]
        token_bytes = self.device.count * attention.query_bytes / 2
        one_s, many_s = (self._sent_s(tokens * token_bytes) for tokens in (1, MANY_TOKENS))
        token_s = (many_s - one_s) / (MANY_TOKENS - 1)
        return Hop(one_s - token_s, token_s)

    def _sent_s(self, payload_bytes: float) -> float:
        group = RankGroup("pp", 2, self.device.count)
        cluster = self.device.cluster
        call = collective_time("send", payload_bytes=payload_bytes, group=group, cluster=cluster, parameters=parameters())
        return call.seconds

    def instance(self, load: LoadShape, *, capacity_bytes: int) -> Instance:
        """An instance; raises InputError where a machine's part does not fit."""
        share = self.layers / self._layers
        part = replace(
            self.generation,
            cache_bytes_per_token=-(-self.generation.cache_bytes_per_token * self.layers // self._layers),
            cache_bytes_per_sequence=round(share * self.generation.cache_bytes_per_sequence),
            attention=tuple(replace(layer, key_bytes=round(share * layer.key_bytes)) for layer in self.generation.attention),
        )
        policy = self.engine.policy(
            part,
            capacity_bytes=capacity_bytes,
            outside_bytes=outside_bytes(self.device.cluster, parameters()),
            longest=round(load.lengths.input_tokens + load.lengths.output_tokens),
            weight_bytes=self.weight_bytes,
            chip=self.device.chip.id,
        )
        step = EngineStep(
            self.generation,
            self._machine,
            costs=self.engine.costs,
            weights=stored(self.generation, self.format),
        )
        stages = self.device.machines
        rounds = PipelinedStep(step, stages, policy.batched_tokens, self.hop)
        policy = replace(policy, batched_tokens=stages * policy.batched_tokens)
        return Instance(rounds, policy, self.engine.spread, first_token_spread=self.engine.first_token_spread)

    @property
    def _machine(self) -> Cluster:
        return replace(self.device.cluster, machines=1, between=None)

    @property
    def mode(self) -> Pipelined:
        """What the row says of it."""
        network = self.device.network
        assert network is not None
        return Pipelined(
            self.device.machines,
            self.device.count,
            self.layers,
            network.link.name,
            self.hop.latency_s + self.hop.token_s,
        )
