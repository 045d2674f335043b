"""Techniques that change what is trained: a search tries them only where the user allows them (`--allow`).

All others (recompute, accumulation, meshes and schedules, kernels of the optimizer, mixed precision over fp32 parameters) give
the same training up to rounding and need no permission.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, nearest
from gpuwise.notes import Note
from gpuwise.notes import plan as notes
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import Constraints
from gpuwise.strategy import Strategy

BATCH = "batch"
# Global batches that are tried where the user allows others. Further ones would need another learning rate, and a test of it.
BATCH_FACTORS = (0.25, 0.5, 2.0, 4.0)
# A technique that changes the training is taken where it makes a sample this much faster; forecasts tell no less apart.
WORTH = 1.02
# Optimizers with less state by their permission, in the place of Adam and AdamW.
_SMALLER = {"8bit-optimizer": "adamw-8bit", "4bit-optimizer": "adamw-4bit", "adafactor": "adafactor"}
_ADAMS = ("adam", "adamw")


@dataclass(frozen=True)
class Permission:
    """A technique that changes what is trained.

    Attributes:
        name: in `--allow`.
        words: what it changes.
        setting: keyword of `plan` that names the technique for every plan; "" where none does.
    """

    name: str
    words: str
    setting: str = ""


PERMISSIONS: Mapping[str, Permission] = {
    permission.name: permission
    for permission in (
        Permission("8bit-optimizer", "the optimizer's state is rounded to 8 bits a number", "optimizer"),
        Permission("4bit-optimizer", "the optimizer's state is rounded to 4 bits a number", "optimizer"),
        Permission("adafactor", "Adafactor in place of Adam: sums of rows and columns of squares, no momentum", "optimizer"),
        Permission("bf16", "parameters are rounded to bf16 every step", "precision"),
        Permission("fp8", "linear layers compute in 8 bits", "precision"),
        Permission("lora", "low-rank additions are trained, the weights are frozen", "adapter"),
        Permission("qlora", "low-rank additions are trained, the weights are frozen and rounded to 4 bits", "adapter"),
        Permission(BATCH, "an optimizer step takes another number of samples"),
    )
}


def parse_allowed(names: str | Sequence[str] | None, *, named: Collection[str] = ()) -> frozenset[str]:
    """The permissions that a user gives, as a list or as text: "8bit-optimizer,lora".

    Arguments:
        named: settings that the user set: what is named is not searched.

    Raises InputError for unknown names, and for techniques that another setting excludes.
    """
    if names is None:
        return frozenset()
    parts = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    for part in parts:
        if part not in PERMISSIONS:
            ways = [f"nearest: {', '.join(near)}"] if (near := nearest(part, list(PERMISSIONS))) else []
            raise InputError(f"--allow knows no {part!r}.", [*ways, f"one or more of: {', '.join(PERMISSIONS)}"][:2])
        setting = PERMISSIONS[part].setting
        if setting in named:
            flag = f"--{setting}"
            raise InputError(
                f"{flag} names what every plan uses, so --allow {part} has nothing to search.",
                [f"leave out {flag}", f"leave out {part} of --allow"],
            )
    return frozenset(parts)


def permitted(constraints: Constraints, *, optimizer: str | None) -> Iterator[Constraints]:
    """The constraints under each combination of allowed techniques, without those that the user asks for anyway.

    Arguments:
        optimizer: the job's; None if it makes its own.
    """
    allow, base = constraints.allow, constraints.techniques
    techniques = [base]
    if optimizer in _ADAMS and base.optimizer is None:
        smaller = [other for name, other in _SMALLER.items() if name in allow]
        techniques += [base.but(optimizer=other, optimizer_kernels=None) for other in smaller]
    # Adapters leave so little state that its rounding saves nothing.
    techniques += [base.but(adapter=name) for name in ("lora", "qlora") if name in allow and base.adapter == "none"]
    precisions = [constraints.precision, *(name for name in ("bf16", "fp8") if name in allow)]
    for chosen in techniques:
        for precision in precisions:
            other = replace(constraints, techniques=chosen, precision=precision)
            if other != constraints:
                yield other


def permitted_batches(constraints: Constraints, *, devices: int) -> Iterator[Constraints]:
    """The constraints with each other global batch that is allowed and divides over the devices."""
    usual, tried = constraints.global_batch, {constraints.global_batch}
    for factor in BATCH_FACTORS if BATCH in constraints.allow else ():
        batch = legal.batch_for(
            max(1, round(usual * factor)),
            devices=devices,
            micro_batch=constraints.micro_batch,
            accumulation=constraints.accumulation,
            exact=False,
        )
        if batch is not None and batch not in tried and min(BATCH_FACTORS) <= batch / usual <= max(BATCH_FACTORS):
            tried.add(batch)
            yield replace(constraints, global_batch=batch)


def not_tried(constraints: Constraints, problem: str) -> Note:
    """The note on allowed techniques that cannot be forecast."""
    chosen = constraints.techniques
    words = [chosen.adapter if chosen.adapter != "none" else "", chosen.optimizer or ""]
    parts = [", ".join(word for word in words if word), constraints.precision or ""]
    return notes.allowed_but_not_tried(
        techniques=" in ".join(part for part in parts if part), problem=problem.removesuffix(".")
    )


def used(strategy: Strategy, *, requested: Strategy, precision: str | None, global_batch: int | None) -> dict[str, str]:
    """What a strategy changes of the training under permissions, in words by permission.

    Arguments:
        requested: techniques as the user set them.
        precision: as the user set it; None where it is searched.
        global_batch: the one that would be trained without permission for another; None where there is no permission.
    """
    names = []
    if strategy.optimizer != requested.optimizer:
        names += [name for name, other in _SMALLER.items() if other == strategy.optimizer]
    if strategy.adapter != requested.adapter:
        names.append(strategy.adapter)
    if strategy.precision in ("bf16", "fp8") and precision is None:
        names.append(strategy.precision)
    words = {name: PERMISSIONS[name].words for name in names}
    if global_batch not in (None, strategy.global_batch):
        words[BATCH] = f"an optimizer step takes {strategy.global_batch:,} samples, not {global_batch:,}"
    return words
