"""The memory techniques a user can turn on, each as a change of the requested strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpuwise.cost.rates import family, precisions_of
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.types import Chip
from gpuwise.plan.space import legal
from gpuwise.strategy import OPTIMIZERS, Mesh, Strategy, StrategyChanges, check_techniques, kernels_for

SHARDS = (2, 4, 8)
SHARDED = "shards in place of copies"
# These change the training, so the user has to choose them.
CHANGES = {"bf16": "parameters are rounded every step", "fp8": "linear layers compute in 8 bits"}
_OPTIMIZERS = {
    "adamw-8bit": ("8-bit Adam", "optimizer state in 8 bits a number"),
    "adamw-4bit": ("4-bit Adam", "optimizer state in 4 bits a number"),
    "adafactor": ("Adafactor", "keeps sums of rows and columns instead of squares"),
    "muon": ("Muon", "one state tensor for matrices; AdamW for the rest"),
    "momentum": ("SGD with momentum", "one state tensor"),
    "sgd": ("SGD", "no optimizer state"),
}
_MANY = 16  # micro-batches of a step
_KERNELS = {
    "for-loop": "one tensor at a time",
    "foreach": "many tensors a kernel, with copies of them",
    "fused": "one kernel for the whole update",
}


@dataclass(frozen=True)
class Technique:
    """One memory technique: a change of a strategy.

    Attributes:
        name: name in words.
        kind: precision | recompute | accumulation | update | optimizer | offload | adapter | compile | sharding | allocator |
            combination. Techniques of one kind exclude each other.
        changes: fields of Strategy by name.
        note: its effect in words; "" by default.
        changes_training: whether the trained parameters or the convergence differ; False by default.
    """

    name: str
    kind: str
    changes: StrategyChanges = field(hash=False)
    note: str = ""
    changes_training: bool = False

    def of(self, strategy: Strategy) -> Strategy:
        """The strategy with this technique."""
        return strategy.but(**self.changes)


def techniques(requested: Strategy, chip: Chip) -> list[Technique]:
    """The techniques that differ from the requested strategy and that the chip supports.

    Arguments:
        requested: strategy at the micro-batch at which techniques are compared, with its optimizer if that is known.
    """
    available = [*_precisions(requested, chip)]
    if requested.mode == "train":
        available += [*_recomputes(requested), *_accumulations(requested), *_updates(requested, chip), *_optimizers(requested)]
        available += [*_placements(requested, chip), *_adapters(requested), *_shards(requested), *_combinations(requested)]
    if not requested.compile:
        available.append(Technique("compile", "compile", {"compile": True}, "chains of small operations become one kernel"))
    if family(chip) == "gpu" and chip.vendor == "NVIDIA":
        available.append(
            Technique(
                "expandable segments",
                "allocator",
                {},
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: what is reserved fits closer",
            )
        )
    return available


def _precisions(requested: Strategy, chip: Chip) -> Iterator[Technique]:
    names = legal.precisions_for(chip)
    if chip.kind != "cpu":
        names += [name for name in CHANGES if name in precisions_of(chip)]
    for name in names:
        if name != requested.precision:
            changed = name in CHANGES
            yield Technique(f"precision {name}", "precision", {"precision": name}, CHANGES.get(name, ""), changed)


def _recomputes(requested: Strategy) -> Iterator[Technique]:
    if requested.recompute == "none":
        kept = "activations are computed again in backward, except attention and every second matrix product"
        yield Technique("selective recompute", "recompute", {"recompute": "selective"}, kept)
    if requested.recompute != "full":
        yield Technique("full recompute", "recompute", {"recompute": "full"}, "activations are computed again in backward")


def _accumulations(requested: Strategy) -> Iterator[Technique]:
    """The same batch in a few more micro-batches, and in many."""
    if requested.optimizer_in_backward:
        return
    samples = requested.micro_batch
    parts = [n for n in range(2, samples + 1) if samples % n == 0]
    many = [n for n in parts if n <= _MANY]
    for count in dict.fromkeys([*parts[:1], *many[-1:]]):
        changes: StrategyChanges = {"micro_batch": samples // count, "accumulation": requested.accumulation * count}
        yield Technique(
            f"accumulation of {count:,} x {samples // count:,}",
            "accumulation",
            changes,
            "the same samples an optimizer step, in more and smaller micro-batches",
        )


def _updates(requested: Strategy, chip: Chip) -> Iterator[Technique]:
    optimizer = requested.optimizer or "adamw"
    able = (
        kernels_for(
            optimizer,
            on_cpu=chip.kind == "cpu" or requested.offload != "none",
            in_16_bits=requested.precision == "bf16",
            scaled=requested.scales_loss,
        )
        if optimizer in OPTIMIZERS
        else ()
    )
    for name in able:
        if name != (requested.optimizer_kernels or able[0]):
            yield Technique(f"{name} optimizer kernels", "update", {"optimizer_kernels": name}, _KERNELS[name])
    alone = not requested.optimizer_in_backward and requested.accumulation == 1
    if alone and not requested.scales_loss and requested.offload == "none":
        yield Technique(
            "optimizer in backward",
            "update",
            {"optimizer_in_backward": True, "optimizer_kernels": None},
            "each gradient is used and freed at once: no accumulation, no clipping by their norm",
        )


def _optimizers(requested: Strategy) -> Iterator[Technique]:
    for name, (words, note) in _OPTIMIZERS.items():
        if name != requested.optimizer:
            yield Technique(words, "optimizer", {"optimizer": name, "optimizer_kernels": None}, note, True)


def _placements(requested: Strategy, chip: Chip) -> Iterator[Technique]:
    if chip.kind == "cpu" or requested.optimizer_in_backward:
        return
    if requested.offload == "none":
        yield Technique("offload of the optimizer", "offload", {"offload": "optimizer"}, "state and update in host memory")
    if requested.offload != "parameters":
        yield Technique(
            "offload of parameters",
            "offload",
            {"offload": "parameters"},
            "blocks visit the device; state and update in host memory",
        )


def _adapters(requested: Strategy) -> Iterator[Technique]:
    if requested.adapter == "none":
        yield Technique("LoRA", "adapter", {"adapter": "lora"}, "trains low-rank additions to frozen weights", True)
    if requested.adapter != "qlora":
        yield Technique("QLoRA", "adapter", {"adapter": "qlora"}, "LoRA on weights held in 4 bits", True)


def _shards(requested: Strategy) -> Iterator[Technique]:
    for devices in SHARDS:
        if devices > requested.mesh.devices:
            yield Technique(
                f"sharded over {devices} devices",
                "sharding",
                {"mesh": Mesh(dp_shard=devices)},
                "parameters, gradients and optimizer state are split",
            )


def shards_of_copies(requested: Strategy) -> tuple[Technique, ...]:
    """Shards over the devices that the requested mesh gives a copy each; none where it gives none, or where other techniques
    exclude shards."""
    mesh = requested.mesh
    if mesh.dp_replicate == 1 or requested.mode != "train":
        return ()
    sharded = replace(mesh, dp_replicate=1, dp_shard=mesh.dp_replicate * mesh.dp_shard)
    try:
        check_techniques(requested.but(mesh=sharded))
    except GpuwiseError:
        return ()
    note = "parameters, gradients and optimizer state are split over the devices, and gathered block by block"
    return (Technique(SHARDED, "sharding", {"mesh": sharded}, note),)


def _combinations(requested: Strategy) -> Iterator[Technique]:
    if requested.recompute == "full":
        return
    full: StrategyChanges = {"recompute": "full"}
    if (requested.optimizer or "adamw").startswith("adam") and requested.optimizer != "adamw-8bit":
        small: StrategyChanges = {"optimizer": "adamw-8bit", "optimizer_kernels": None}
        yield Technique("full recompute and 8-bit Adam", "combination", {**full, **small}, "both techniques together", True)
    if max(SHARDS) > requested.mesh.devices:
        yield Technique(
            f"sharded over {max(SHARDS)} devices and full recompute",
            "sharding",
            {**full, "mesh": Mesh(dp_shard=max(SHARDS))},
            "both techniques together",
        )
