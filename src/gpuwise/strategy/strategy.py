"""Strategy: how one rank trains. The same object is searched by `plan`, priced by `cost` and applied by `runtime`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypedDict, Unpack

from gpuwise.errors import InputError
from gpuwise.json_types import Json
from gpuwise.strategy.checks import check_choice, check_switches, check_whole
from gpuwise.strategy.host import HostSettings
from gpuwise.strategy.kernels import OPTIMIZER_KERNELS, OPTIMIZERS
from gpuwise.strategy.mesh import Mesh
from gpuwise.strategy.parallelism import Parallelism

PRECISIONS = ("fp32", "tf32", "amp-bf16", "amp-fp16", "bf16", "fp16", "fp8")
RECOMPUTES = ("none", "selective", "full")
OFFLOADS = ("none", "optimizer", "parameters")
ADAPTERS = ("none", "lora", "qlora")
MODES = ("train", "infer")


class StrategyChanges(TypedDict, total=False):
    """The fields of Strategy, as keywords."""

    precision: str
    micro_batch: int
    accumulation: int
    recompute: str
    mesh: Mesh
    parallelism: Parallelism
    optimizer: str | None
    optimizer_kernels: str | None
    optimizer_in_backward: bool
    keep_gradients: bool
    offload: str
    adapter: str
    adapter_rank: int
    compile: bool
    channels_last: bool
    mode: str


@dataclass(frozen=True)
class Strategy:
    """How one rank trains.

    Attributes:
        precision: number formats of the arithmetic, fp32 by default. fp32 | tf32 | amp-bf16 | amp-fp16 | bf16 (parameters,
            too) | fp16 (parameters and gradients, too; the optimizer has fp32 master weights) | fp8 (linear layers; the rest
            as amp-bf16).
        micro_batch: samples a forward pass of one rank, 1 by default.
        accumulation: micro-batches before an optimizer step, 1 by default.
        recompute: which activations are computed again in backward. none (default) | selective | full.
        mesh: how many devices share the work along each axis, one device by default.
        optimizer: of OPTIMIZERS. None, the default, takes the job's own.
        optimizer_kernels: for-loop over tensors | foreach, many tensors a kernel | fused, one kernel for the whole update.
            None, the default, takes fused where PyTorch has it and has it right.
        optimizer_in_backward: each parameter is updated as soon as its gradient is there, which is then freed. False.
        keep_gradients: gradients are set to zero after a step instead of being freed. False.
        offload: what lives in host memory and visits the device. none (default) | optimizer (its state, and gradients on
            their way there) | parameters (those, too).
        adapter: none (default) | lora, which freezes the weights and trains low-rank additions to linear layers | qlora,
            which holds the frozen weights in 4 bits, too.
        adapter_rank: rank of those additions, 16 by default.
        compile: whether the step runs under torch.compile. False.
        channels_last: images and the parameters of two-dimensional convolutions lie with their channels innermost, as
            tensor cores read them. False.
        mode: train (default) | infer, a forward pass alone.
        parallelism: how the devices along each axis of the mesh share the work.
    """

    precision: str = "fp32"
    micro_batch: int = 1
    accumulation: int = 1
    recompute: str = "none"
    mesh: Mesh = field(default_factory=Mesh)
    optimizer: str | None = None
    optimizer_kernels: str | None = None
    optimizer_in_backward: bool = False
    keep_gradients: bool = False
    offload: str = "none"
    adapter: str = "none"
    adapter_rank: int = 16
    compile: bool = False
    channels_last: bool = False
    mode: str = "train"
    parallelism: Parallelism = field(default_factory=Parallelism)

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("recompute", self.recompute, RECOMPUTES)
        check_choice("mode", self.mode, MODES)
        if self.optimizer is not None:
            check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer_kernels is not None:
            check_choice("optimizer kernels", self.optimizer_kernels, OPTIMIZER_KERNELS)
        check_choice("offload", self.offload, OFFLOADS)
        check_choice("adapter", self.adapter, ADAPTERS)
        check_switches(self, "optimizer_in_backward", "keep_gradients", "compile", "channels_last")
        check_whole("adapter rank", self.adapter_rank, 1, 65_536)
        check_whole("micro-batch", self.micro_batch, 1, 10_000_000)
        check_whole("accumulation", self.accumulation, 1, 10_000_000)

    @property
    def global_batch(self) -> int:
        """Samples an optimizer step: micro_batch × accumulation × data-parallel ranks."""
        return self.micro_batch * self.accumulation * self.mesh.data_parallel

    @property
    def scales_loss(self) -> bool:
        """Whether gradients are in fp16, so that the loss is scaled."""
        return self.precision in ("amp-fp16", "fp16")

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of the parameters that are trained."""
        return 2 if self.precision in ("bf16", "fp16") else 4

    @property
    def recorded_precision(self) -> str:
        """The precision whose recording serves: tf32 runs the operations of fp32 at another speed."""
        return "fp32" if self.precision == "tf32" else self.precision

    @property
    def variant(self) -> Strategy:
        """What tells one recording of a single device from another: everything but the batch and the devices."""
        one_device = self.but(mesh=Mesh(), parallelism=Parallelism())
        return replace(one_device, precision=self.recorded_precision, micro_batch=1, accumulation=1)

    def but(self, **changes: Unpack[StrategyChanges]) -> Strategy:
        """A copy with some fields changed. Raises InputError for values out of range."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Json]:
        """Plain types; fields that are None are left out (TOML has no null), and so is a parallelism that is the default."""
        parallelism = self.parallelism.to_dict()
        plain = {key: value for key, value in asdict(self).items() if value is not None and key != "parallelism"}
        return {**plain, "parallelism": parallelism} if parallelism else plain

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Strategy:
        """The inverse of to_dict. Keys of HostSettings, which stand beside them in files, are left to HostSettings.from_dict.

        Raises InputError for unknown keys or values out of range.
        """
        own = {f.name for f in fields(cls)}
        unknown = set(data) - own - {f.name for f in fields(HostSettings)}
        if unknown:
            raise InputError(f"unknown strategy keys: {', '.join(sorted(unknown))}.")
        values: dict[str, Any] = {name: value for name, value in data.items() if name in own}
        mesh = Mesh.from_dict(values.get("mesh", {}))
        return cls(**{**values, "mesh": mesh, "parallelism": Parallelism.from_dict(values.get("parallelism", {}))})
