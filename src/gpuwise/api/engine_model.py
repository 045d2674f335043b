"""EngineModel: a job's model as an engine runs it, recorded for each kind of device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.api.devices import Device
from gpuwise.api.pipelining import AcrossMachines
from gpuwise.api.served_job import ServedJob
from gpuwise.cost.memory.device import outside_bytes
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import precisions_of
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.notes import serving_modes as mode_notes
from gpuwise.serving.attention_layers import sharing_heads
from gpuwise.serving.continuous import IterationTime
from gpuwise.serving.engines import Engine, engines
from gpuwise.serving.formats import CacheFormat, Format, stored
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.launch import rounded_request
from gpuwise.serving.launch_modes import across_machines
from gpuwise.serving.modes import ServingMode
from gpuwise.serving.platforms import fast_formats, has_kernels, nearest_formats, runs_on
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.reasons import narrower_weights
from gpuwise.serving.sharing import Degrees, has_experts
from gpuwise.serving.step_time import EngineStep

if TYPE_CHECKING:
    from gpuwise.serving.generation import Generation

    ModelArguments = tuple[ServedJob, Engine, str | None, Format | None, CacheFormat | None]  # of EngineModel

EXPERTS = "experts"  # the name that models of Hugging Face and ours give the list of experts
PRECISION_BYTES = {"fp16": 2, "bf16": 2}
ASSUMED_BYTES = 64 * 2**30  # of a machine whose processor alone is named


class EngineModel:
    """A model under an engine.

    Arguments:
        job: whose model generates.
        engine: that runs it.
        precision: of activations, and of a cache and weights without a format of their own. None: the engine's own, and
            fp16 on devices that do not compute in its bf16.
        format: of weights; None for the precision.
        cache: format of keys and values; None for the precision.
    """

    def __init__(
        self, job: ServedJob, engine: Engine, precision: str | None, format: Format | None, cache: CacheFormat | None
    ) -> None:
        self.job, self.engine, self.format, self.cache = job, engine, format, cache
        self.precision, self.named_precision = precision or engine.precision, precision
        self._recordings: dict[tuple[str, str], Generation] = {}
        self._kept: dict[tuple[str, int, str], Generation] = {}  # with caches in their format
        self._memory_assumed: set[str] = set()
        self._in_fp16: set[str] = set()  # chips without the engine's bf16
        self._elsewhere: dict[str, Chip] = {}  # that the engine does not run on

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is assumed of formats, experts, and machines of which the processor alone is named."""
        return (
            *self._of_config(),
            *((notes.format_of_weights(format=self.format.name, quality=self.format.quality),) if self.format else ()),
            *((notes.format_of_cache(format=self.cache.name, quality=self.cache.quality),) if self.cache else ()),
            *((notes.served_in_fp16(chips=", ".join(sorted(self._in_fp16))),) if self._in_fp16 else ()),
            *((self._runs_on_others(),) if self._elsewhere else ()),
            *((mode_notes.layers_in_turn(engine=self.engine.name),) if self._works_in_turn() else ()),
            *(notes.assumed_host_memory(chip=chip, gib=ASSUMED_BYTES // 2**30) for chip in sorted(self._memory_assumed)),
            *((notes.all_experts_run(),) if self._has_experts() else ()),
        )

    def _of_config(self) -> list[Note]:
        """What the job's config says that serving does not follow: parts for images, and a format where none is named."""
        kinds = ("text-of-multimodal", *(("quantized-config",) if self.format is None else ()))
        return [note for note in self.job.assumption_notes if note.kind in kinds]

    def of(self, device: Device) -> Generation:
        """How the model generates on one device, of those that share each layer; whole where devices have layers each.

        Raises UnsupportedError where so many devices cannot share its heads.
        """
        target = engine_target(device.chip)
        key = target, device.count, self._recorded_in(device.chip)
        if key not in self._kept:
            recorded = self._recording(target, self._recorded_in(device.chip))
            if device.count > 1 and self.engine.shares_heads:
                self._check_heads(recorded, device)
                recorded = recorded.shared(Degrees(tp=device.count, expert_tp=device.count))
            cache_bytes = self.cache.element_bytes if self.cache else PRECISION_BYTES.get(self.precision, 4)
            self._kept[key] = recorded.cached_in(cache_bytes)
        return self._kept[key]

    def _check_heads(self, recorded: Generation, device: Device) -> None:
        most = sharing_heads(recorded.attention, device.count)
        if most < device.count:
            heads = " or ".join(sorted({f"{layer.heads} and {layer.key_heads}" for layer in recorded.attention}))
            raise UnsupportedError(
                f"{self.engine.name} does not share heads of queries and keys ({heads}) among {device.count} devices",
                [f"--on {device.chip.id}" if most == 1 else f"--on {device.chip.id}:{most}"],
            )

    def _recording(self, target: str, precision: str) -> Generation:
        """The whole model, recorded once on GPUs: in fp16 it runs the operations of bf16."""
        key = target, precision
        if key not in self._recordings:
            if key == ("accelerator", "fp16"):
                self._recordings[key] = self._recording(target, "bf16").in_fp16()
            else:
                self._recordings[key] = self.job.generation(target, precision)
        return self._recordings[key]

    def _across(self, device: Device, generation: Generation) -> AcrossMachines:
        return AcrossMachines(device, generation, self.engine, self.format)

    def weight_bytes(self, device: Device, generation: Generation) -> int:
        """Bytes of the weights on one device."""
        if device.machines > 1:
            return self._across(device, generation).weight_bytes
        return -(-stored(generation, self.format).bytes // self.in_turn(device))

    def in_turn(self, device: Device) -> int:
        """How many devices work one after the other, each on layers of its own; 1 where all share each layer."""
        return 1 if self.engine.shares_heads else device.count

    def instance(self, device: Device, generation: Generation, load: LoadShape) -> Instance:
        """An instance of the model on a device.

        Raises InputError where it does not fit, with the widest format of weights that does, if there is one.
        """
        if device.machines > 1:
            return self._across(device, generation).instance(load, capacity_bytes=self._capacity_bytes(device))
        weights = stored(generation, self.format)

        def policy_with(weight_bytes: int) -> BatchingPolicy:
            return self.engine.policy(
                generation,
                capacity_bytes=self._capacity_bytes(device),
                outside_bytes=self._outside_bytes(device),
                longest=round(load.lengths.input_tokens + load.lengths.output_tokens),
                weight_bytes=weight_bytes,
                chip=device.chip.id,
            )

        try:
            policy = policy_with(weights.bytes)
        except InputError as error:
            able = {each: stored(generation, each).bytes for each in fast_formats(self.engine.name, device.chip)}
            ways = narrower_weights(able, weights.bytes, load, policy_with)
            raise InputError(error.what, [*ways, *error.ways_out][:2]) from None
        if self.engine.slots:
            policy = policy.with_slots(rounded_request(load.at(1.0), self.job.context_length))
        step = EngineStep(generation, device.cluster, costs=self.engine.costs, weights=weights)
        return self._served_by(step, policy)

    def _served_by(self, step: IterationTime, policy: BatchingPolicy) -> Instance:
        """An instance with these iterations, and the engine's intervals."""
        return Instance(step, policy, self.engine.spread, first_token_spread=self.engine.first_token_spread)

    def mode(self, device: Device) -> ServingMode | None:
        """What is special about the instance on a device; None for a model on its devices alone."""
        return self._across(device, self.of(device)).mode if device.machines > 1 else None

    def launched(self, line: str, device: Device) -> str:
        """The command of the instance on a device, from that of a model on its devices alone."""
        return across_machines(line, machines=device.machines) if device.machines > 1 else line

    def check(self, device: Device) -> None:
        """Raises UnsupportedError where the engine has no figures for the device."""
        if device.machines > 1 and not self.engine.shares_heads:
            raise UnsupportedError(f"{self.engine.name} across machines has no figures yet", ["devices of one machine"])
        if device.chip.kind == "cpu" and not self.engine.on_cpus:
            others = [name for name, engine in engines().items() if engine.on_cpus]
            ways = [] if self.format else [f"--engine {name}" for name in others[:1]]
            raise UnsupportedError(f"iterations of {self.engine.name} on a CPU have no figures yet", ways)
        if self._recorded_in(device.chip) not in precisions_of(device.chip):
            ways = self._other_precisions(device.chip)
            raise UnsupportedError(f"{device.chip.id} does not compute in {self.precision}", ways)
        if self.precision_on(device.chip) != self.precision:
            self._in_fp16.add(device.chip.id)
        if device.cluster.capacity_bytes is None and device.chip.kind != "cpu":
            raise UnsupportedError(f"the memory of {device.chip.id} is unknown")
        if self.format and not has_kernels(self.engine.name, self.format.name, device.chip):
            nearest = nearest_formats(self.engine.name, self.format.name, device.chip)
            raise UnsupportedError(
                f"{self.engine.name} has no kernels for weights in {self.format.name} on {device.chip.id}",
                [*(f"--weights {name}" for name in nearest[:1]), "leave out --weights"],
            )
        if not runs_on(self.engine.name, device.chip):
            self._elsewhere[device.chip.id] = device.chip

    def _runs_on_others(self) -> Note:
        chips = [chip for _, chip in sorted(self._elsewhere.items())]
        other = next((name for name in engines() if all(self._serves(name, chip) for chip in chips)), "")
        return notes.engine_runs_on_others(engine=self.engine.name, chips=", ".join(chip.id for chip in chips), other=other)

    def _other_precisions(self, chip: Chip) -> list[str]:
        if self.named_precision:
            return ["leave out --precision"]
        return [f"--precision {name}" for name in PRECISION_BYTES if name in precisions_of(chip)]

    def _serves(self, engine: str, chip: Chip) -> bool:
        """Whether another engine runs on a chip, with weights in this format."""
        if self.format and (engine not in self.format.engines or not has_kernels(engine, self.format.name, chip)):
            return False
        return runs_on(engine, chip)

    def precision_on(self, chip: Chip) -> str:
        """That of activations on a chip: fp16 where the engine's own is bf16, and the chip does not compute in it."""
        able = precisions_of(chip)
        if self.named_precision or self.precision != "bf16" or "bf16" in able or "fp16" not in able:
            return self.precision
        return "fp16"

    def _recorded_in(self, chip: Chip) -> str:
        """The precision of the recording: CPUs widen 16 bits that they do not compute in."""
        precision = self.precision_on(chip)
        return "fp32" if chip.kind == "cpu" and precision not in precisions_of(chip) else precision

    def _capacity_bytes(self, device: Device) -> int:
        """Memory for what one device runs: that of all devices where each has layers of its own."""
        capacity = device.cluster.capacity_bytes
        if capacity is None:
            self._memory_assumed.add(device.chip.id)
        return ASSUMED_BYTES if capacity is None else self.in_turn(device) * capacity

    def _works_in_turn(self) -> bool:
        """Whether some instance has several devices with layers of their own."""
        return not self.engine.shares_heads and any(count > 1 for _, count, _ in self._kept)

    def _outside_bytes(self, device: Device) -> int:
        """What the driver and communicators take of that memory."""
        return self.in_turn(device) * outside_bytes(device.cluster, parameters())

    def _has_experts(self) -> bool:
        """Whether a recorded model runs its experts one by one, by the names of its modules."""
        apart = [kept for kept in self._kept.values() if not has_experts(kept.tokens.operations)]
        return any(EXPERTS in path.split(".") for kept in apart for path in kept.tokens.modules)


def engine_target(chip: Chip) -> str:
    """The tracing target of a chip for models under an engine, which brings attention of its own to GPUs before Ampere, too."""
    return "cpu" if chip.kind == "cpu" else "accelerator"
