"""The memory techniques a user can turn on, each as a change of what is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuwise.cost.rates import family, precisions_of
from gpuwise.hardware.types import Chip
from gpuwise.plan.space import legal
from gpuwise.strategy import OPTIMIZERS, Mesh, Strategy, StrategyChanges, kernels_for

SHARDS = (2, 4, 8)
# What is trained, or how, differs: a user has to want it.
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
    """One change. changes: fields of Strategy by name. changes_training: what is trained, or how it converges, differs.

    kind: precision | recompute | accumulation | update | optimizer | offload | adapter | compile | sharding | allocator |
    combination. Techniques of one kind exclude each other.
    """

    name: str
    kind: str
    changes: StrategyChanges = field(hash=False)
    note: str = ""
    changes_training: bool = False

    def of(self, strategy: Strategy) -> Strategy:
        """The strategy with it."""
        return strategy.but(**self.changes)


def techniques(asked: Strategy, chip: Chip) -> list[Technique]:
    """Those that differ from what is asked, and that exist on the chip.

    Arguments:
        asked: at the micro-batch at which techniques are compared, its optimizer named where it is known.
    """
    found = [*_precisions(asked, chip)]
    if asked.mode == "train":
        found += [*_recomputes(asked), *_accumulations(asked), *_updates(asked, chip), *_optimizers(asked)]
        found += [*_placements(asked, chip), *_adapters(asked), *_shards(asked), *_combinations(asked)]
    if not asked.compile:
        found.append(Technique("compile", "compile", {"compile": True}, "chains of small operations become one kernel"))
    if family(chip) == "gpu" and chip.vendor == "NVIDIA":
        found.append(
            Technique(
                "expandable segments",
                "allocator",
                {},
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: what is reserved fits closer",
            )
        )
    return found


def _precisions(asked: Strategy, chip: Chip) -> Iterator[Technique]:
    names = legal.precisions_for(chip)
    if chip.kind != "cpu":
        names += [name for name in CHANGES if name in precisions_of(chip)]
    for name in names:
        if name != asked.precision:
            changed = name in CHANGES
            yield Technique(f"precision {name}", "precision", {"precision": name}, CHANGES.get(name, ""), changed)


def _recomputes(asked: Strategy) -> Iterator[Technique]:
    if asked.recompute == "none":
        kept = "activations are computed again in backward, except attention and every second matrix product"
        yield Technique("selective recompute", "recompute", {"recompute": "selective"}, kept)
    if asked.recompute != "full":
        yield Technique("full recompute", "recompute", {"recompute": "full"}, "activations are computed again in backward")


def _accumulations(asked: Strategy) -> Iterator[Technique]:
    """The same samples an optimizer step, in a few more micro-batches and in many."""
    if asked.optimizer_in_backward:
        return
    samples = asked.micro_batch
    parts = [n for n in range(2, samples + 1) if samples % n == 0]
    many = [n for n in parts if n <= _MANY]
    for count in dict.fromkeys([*parts[:1], *many[-1:]]):
        changes: StrategyChanges = {"micro_batch": samples // count, "accumulation": asked.accumulation * count}
        yield Technique(
            f"accumulation of {count:,} x {samples // count:,}",
            "accumulation",
            changes,
            "the same samples an optimizer step, in more and smaller micro-batches",
        )


def _updates(asked: Strategy, chip: Chip) -> Iterator[Technique]:
    optimizer = asked.optimizer or "adamw"
    able = (
        kernels_for(
            optimizer,
            on_cpu=chip.kind == "cpu" or asked.offload != "none",
            in_16_bits=asked.precision == "bf16",
            scaled=asked.precision == "amp-fp16",
        )
        if optimizer in OPTIMIZERS
        else ()
    )
    for name in able:
        if name != (asked.optimizer_kernels or able[0]):
            yield Technique(f"{name} optimizer kernels", "update", {"optimizer_kernels": name}, _KERNELS[name])
    alone = not asked.optimizer_in_backward and asked.accumulation == 1
    if alone and asked.precision != "amp-fp16" and asked.offload == "none":
        yield Technique(
            "optimizer in backward",
            "update",
            {"optimizer_in_backward": True, "optimizer_kernels": None},
            "each gradient is used and freed at once: no accumulation, no clipping by their norm",
        )


def _optimizers(asked: Strategy) -> Iterator[Technique]:
    for name, (words, note) in _OPTIMIZERS.items():
        if name != asked.optimizer:
            yield Technique(words, "optimizer", {"optimizer": name, "optimizer_kernels": None}, note, True)


def _placements(asked: Strategy, chip: Chip) -> Iterator[Technique]:
    if chip.kind == "cpu" or asked.optimizer_in_backward:
        return
    if asked.offload == "none":
        yield Technique("offload of the optimizer", "offload", {"offload": "optimizer"}, "state and update in host memory")
    if asked.offload != "parameters":
        yield Technique(
            "offload of parameters",
            "offload",
            {"offload": "parameters"},
            "blocks visit the device; state and update in host memory",
        )


def _adapters(asked: Strategy) -> Iterator[Technique]:
    if asked.adapter == "none":
        yield Technique("LoRA", "adapter", {"adapter": "lora"}, "trains low-rank additions to frozen weights", True)
    if asked.adapter != "qlora":
        yield Technique("QLoRA", "adapter", {"adapter": "qlora"}, "LoRA on weights held in 4 bits", True)


def _shards(asked: Strategy) -> Iterator[Technique]:
    for devices in SHARDS:
        if devices > asked.mesh.devices:
            yield Technique(
                f"sharded over {devices} devices",
                "sharding",
                {"mesh": Mesh(dp_shard=devices)},
                "parameters, gradients and optimizer state are split",
            )


def _combinations(asked: Strategy) -> Iterator[Technique]:
    if asked.recompute == "full":
        return
    full: StrategyChanges = {"recompute": "full"}
    if (asked.optimizer or "adamw").startswith("adam") and asked.optimizer != "adamw-8bit":
        small: StrategyChanges = {"optimizer": "adamw-8bit", "optimizer_kernels": None}
        yield Technique("full recompute and 8-bit Adam", "combination", {**full, **small}, "both techniques together", True)
    if max(SHARDS) > asked.mesh.devices:
        yield Technique(
            f"sharded over {max(SHARDS)} devices and full recompute",
            "sharding",
            {**full, "mesh": Mesh(dp_shard=max(SHARDS))},
            "both techniques together",
        )
