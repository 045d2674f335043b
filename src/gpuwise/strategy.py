"""Strategy: how one rank trains. The same object is searched by `plan`, priced by `cost` and applied by `runtime`."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from gpuwise.errors import InputError, shown

PRECISIONS = ("fp32", "tf32", "amp-bf16", "amp-fp16", "bf16", "fp8")
RECOMPUTES = ("none", "selective", "full")
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adafactor", "muon", "adamw-8bit", "adamw-4bit")
OPTIMIZER_KERNELS = ("for-loop", "foreach", "fused")
# What each optimizer's update can run in, the usual one first (see kernels_for). Adafactor's own default is the loop,
# because foreach holds intermediates of all tensors at once. torchao compiles its update into fused kernels.
KERNELS_OF = {
    **dict.fromkeys(("sgd", "momentum", "adam", "adamw"), ("fused", "foreach", "for-loop")),
    "adafactor": ("for-loop", "foreach"),
    "muon": ("for-loop",),
    **dict.fromkeys(("adamw-8bit", "adamw-4bit"), ("fused",)),
}
OFFLOADS = ("none", "optimizer", "parameters")
ADAPTERS = ("none", "lora", "qlora")
MODES = ("train", "infer")
# Fields about the host that feeds the device: they change no operation of the step. None leaves the choice to the runtime.
HOST_FIELDS = ("threads", "pin_threads", "loader_workers", "prefetch", "pinned_memory")


@dataclass(frozen=True)
class Mesh:
    """Degrees of parallelism; their product is the number of devices."""

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for f in fields(self):
            _whole(f"mesh {f.name}", getattr(self, f.name), 1, 1_000_000)

    @property
    def data_parallel(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def devices(self) -> int:
        return self.data_parallel * self.tp * self.pp * self.cp

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """'dp=8', 'dp_shard=8,tp=2'. `dp` means dp_replicate. Raises InputError."""
        degrees: dict[str, int] = {}
        for part in text.split(","):
            name, _, number = part.partition("=")
            name = {"dp": "dp_replicate", "fsdp": "dp_shard"}.get(name.strip(), name.strip())
            if name not in {f.name for f in fields(cls)} or not re.fullmatch(r"[0-9]{1,9}", number.strip()) or name in degrees:
                raise InputError(
                    f"cannot read mesh {text!r}: {part!r} is not an axis and a degree.",
                    ["write it like dp=8 or dp_shard=4,tp=2"],
                )
            degrees[name] = int(number)
        return cls(**degrees)


@dataclass(frozen=True)
class Strategy:
    """How one rank trains.

    precision: fp32 | tf32 | amp-bf16 | amp-fp16 | bf16 (pure) | fp8 (linear layers, the rest as amp-bf16).
    micro_batch: samples a forward pass of one rank. accumulation: micro-batches before an optimizer step. recompute:
    which activations are computed again in backward. optimizer: None takes the job's own. optimizer_kernels: a loop over
    tensors, many tensors a kernel (foreach), or one kernel for the whole update (fused); None takes fused where PyTorch
    has it and has it right. optimizer_in_backward: each parameter is updated as soon as its gradient is there, which is then
    freed. keep_gradients: gradients are set to zero after a step, not freed. offload: what lives in host memory and visits
    the device: optimizer (its state, and gradients on their way there), or parameters too. adapter: lora freezes the
    model's weights and trains low-rank additions of adapter_rank to its linear layers; qlora holds the frozen weights
    in 4 bits, too. channels_last: images and the parameters of two-dimensional convolutions lie with their channels
    innermost, as tensor cores read them.

    Of the host, None leaving the choice to the runtime: threads of the CPU's operations; pin_threads: each on a core of its
    own; loader_workers: processes that read data (0: the training's own); prefetch: micro-batches made ready ahead;
    pinned_memory: batches wait in memory the device can read by itself.
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
    threads: int | None = None
    pin_threads: bool | None = None
    loader_workers: int | None = None
    prefetch: int | None = None
    pinned_memory: bool | None = None

    def __post_init__(self) -> None:
        _choice("precision", self.precision, PRECISIONS)
        _choice("recompute", self.recompute, RECOMPUTES)
        _choice("mode", self.mode, MODES)
        if self.optimizer is not None:
            _choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer_in_backward and self.accumulation > 1:
            raise InputError(
                "an optimizer in backward updates after every micro-batch, so nothing can be accumulated.",
                ["--accumulate 1", "leave out --optimizer-in-backward"],
            )
        if self.optimizer_kernels is not None:
            _choice("optimizer kernels", self.optimizer_kernels, OPTIMIZER_KERNELS)
        _choice("offload", self.offload, OFFLOADS)
        _choice("adapter", self.adapter, ADAPTERS)
        for name in ("optimizer_in_backward", "keep_gradients", "compile", "channels_last"):
            _choice(name.replace("_", " "), getattr(self, name), (False, True))
        for name in ("pin_threads", "pinned_memory"):
            _choice(name.replace("_", " "), getattr(self, name), (None, False, True))
        for name, low, high in (("threads", 1, 4096), ("loader_workers", 0, 1024), ("prefetch", 0, 1024)):
            if getattr(self, name) is not None:
                _whole(name.replace("_", " "), getattr(self, name), low, high)
        _whole("adapter rank", self.adapter_rank, 1, 65_536)
        _whole("micro-batch", self.micro_batch, 1, 10_000_000)
        _whole("accumulation", self.accumulation, 1, 10_000_000)

    @property
    def global_batch(self) -> int:
        """Samples an optimizer step: micro_batch × accumulation × data-parallel ranks."""
        return self.micro_batch * self.accumulation * self.mesh.data_parallel

    @property
    def recorded_precision(self) -> str:
        """The precision whose recording serves: tf32 runs the operations of fp32 at another speed."""
        return "fp32" if self.precision == "tf32" else self.precision

    @property
    def variant(self) -> Strategy:
        """What tells one recording from another: everything but the batch, the mesh and the host."""
        nothing_said: dict[str, Any] = dict.fromkeys(HOST_FIELDS)
        return replace(self, precision=self.recorded_precision, micro_batch=1, accumulation=1, mesh=Mesh(), **nothing_said)

    def but(self, **changes: Any) -> Strategy:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain types; fields that are None are left out (TOML has no null)."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Strategy:
        """Raises InputError for unknown keys or values out of range."""
        unknown = set(data) - {f.name for f in fields(cls)}
        if unknown:
            raise InputError(f"unknown strategy keys: {', '.join(sorted(unknown))}.")
        data = dict(data)
        mesh = data.pop("mesh", {})
        if not isinstance(mesh, dict) or set(mesh) - {f.name for f in fields(Mesh)}:
            raise InputError(f"unknown mesh {mesh!r}.", ["axes are dp_replicate, dp_shard, tp, pp, cp, ep"])
        return cls(mesh=Mesh(**mesh), **data)


def fused_sgd_fault(*, on_cpu: bool, in_16_bits: bool, scaled: bool) -> str | None:
    """Why PyTorch's fused SGD trains wrongly there; None where it is right.

    Arguments:
        on_cpu: the update runs in host memory. in_16_bits: on parameters of which some are held in 16 bits. scaled: the
            gradients are scaled for fp16.

    Source: pytorch#191763 (PyTorch 2.13 and before), and for scaled gradients _fused_sgd in torch/optim/sgd.py: momentum
    is made with empty_like, the kernel writes nothing in a step that overflows, and the next step reads what is there.
    """
    if on_cpu and in_16_bits:
        return "PyTorch's fused SGD skips whole blocks of 16-bit parameters on a CPU (pytorch#191763): they would not train"
    if scaled:
        return "PyTorch's fused SGD starts from uninitialised momentum where the first step overflows in fp16"
    return None


def kernels_for(optimizer: str, *, on_cpu: bool = False, in_16_bits: bool = False, scaled: bool = False) -> tuple[str, ...]:
    """The kernels that an optimizer's update can run in, the usual one first. Arguments as fused_sgd_fault has them.

    The one place where this is decided: the runtime, the recorder, composed traces and `fit` all ask here. Raises
    InputError for an unknown optimizer.
    """
    _choice("optimizer", optimizer, OPTIMIZERS)
    wrong = optimizer in ("sgd", "momentum") and fused_sgd_fault(on_cpu=on_cpu, in_16_bits=in_16_bits, scaled=scaled)
    return tuple(kernels for kernels in KERNELS_OF[optimizer] if not (wrong and kernels == "fused"))


def kernels_of(
    optimizer: str, kernels: str | None, *, on_cpu: bool = False, in_16_bits: bool = False, scaled: bool = False
) -> str:
    """The kernels of an update: those requested, else the first of kernels_for. Raises InputError for those it lacks."""
    able = kernels_for(optimizer, on_cpu=on_cpu, in_16_bits=in_16_bits, scaled=scaled)
    if kernels is None or kernels in able:
        return kernels or able[0]
    if kernels in KERNELS_OF[optimizer]:
        fault = fused_sgd_fault(on_cpu=on_cpu, in_16_bits=in_16_bits, scaled=scaled)
        raise InputError(
            f"{fault}.", [f"--optimizer-kernels {able[0]}, which {optimizer} takes by itself", "--precision amp-bf16 or fp32"]
        )
    raise InputError(f"{optimizer} has no {kernels} kernels.", [f"it has: {', '.join(able)}"])


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise InputError(f"unknown {name} {shown(value)}.", [f"one of: {', '.join(map(str, allowed))}"])


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} must be a whole number from {low} to {high:,}, got {shown(value)}.")
