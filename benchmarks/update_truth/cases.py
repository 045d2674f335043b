"""gpuwise's side of the comparison: the cases, its own runs, and how far they end from plain PyTorch."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from benchmarks.update_truth.plain import (
    CLIP_NORM,
    EMA_DECAY,
    LEARNING_RATE,
    LEARNING_RATES,
    SAMPLES,
    SEED,
    STEPS,
    WARMUP,
    Net,
    Recipe,
    Trained,
    batches,
    loss_of,
    train_plain,
)
from gpuwise.job import Job
from gpuwise.runtime import Training, TrainSettings
from gpuwise.strategy import OPTIMIZERS, HostSettings, Strategy, kernels_for

PRECISIONS = ("fp32", "amp-bf16", "amp-fp16", "bf16")
# Largest deviation that passes, as a share of what training changed (see deviation). Numbers that an update leaves out
# deviate by 1. In for-loop kernels the operations are the plain loop's own.
SAME_OPERATIONS = 1e-5
# In other kernels, by how numbers are held.
TOLERANCES = {"fp32": 1e-3, "amp-bf16": 0.02, "amp-fp16": 0.02, "bf16": 0.4}
REASONS = {
    "fp32": "kernels differ in the last bit of a sum, 6e-8 of it, which 20 steps carry on",
    "amp-bf16": "updates are fp32's, but a last bit can tip the rounding of a weight to bf16: by 2^-8 of it",
    "amp-fp16": "the same with fp16: by 2^-11 of a weight; and a loss near fp16's limits",
    "bf16": "a loop rounds after each operation, a kernel once: up to 2^-8 of a number that itself changes by little more",
}
COMPILED_STEPS = 0.1  # chains of operations become one kernel, which rounds to 16 bits once
MUON = 0.25  # its orthogonalisation runs in bf16 in every precision, and gpuwise leaves the rest to fused AdamW


@dataclass(frozen=True)
class Technique:
    """recipe: what it is for the plain loop; strategy: for gpuwise, beside that; only: the precisions that have it."""

    name: str
    recipe: dict[str, Any]
    strategy: dict[str, Any]
    only: tuple[str, ...] = PRECISIONS


TECHNIQUES = (
    Technique("plain", {}, {}),
    Technique("accumulation, clipping, schedule", {"accumulation": 3, "clips": True, "schedules": True}, {}),
    Technique("average, channels-last, kept gradients", {"averages": True, "channels_last": True}, {"keep_gradients": True}),
    Technique("recompute, clipping, average", {"clips": True, "averages": True}, {"recompute": "full"}),
    Technique(
        "update in backward, schedule", {"schedules": True}, {"optimizer_in_backward": True}, ("fp32", "amp-bf16", "bf16")
    ),
    Technique("adapter, schedule", {"adapter": True, "schedules": True}, {}),
    Technique("overflow in the first step", {"overflow": 0}, {}, ("amp-fp16",)),
    Technique("overflow in the tenth step, clipping", {"overflow": 9, "clips": True}, {}, ("amp-fp16",)),
)
COMPILED = Technique("compile", {"dropout": 0.0}, {"compile": True})


@dataclass(frozen=True)
class Case:
    optimizer: str
    kernels: str
    precision: str
    technique: Technique

    @property
    def name(self) -> str:
        return f"{self.optimizer}, {self.kernels}, {self.precision}: {self.technique.name}"

    @property
    def tolerance(self) -> float:
        if self.optimizer == "muon":
            return max(MUON, TOLERANCES[self.precision])
        if self.strategy.compile:
            return max(COMPILED_STEPS, TOLERANCES[self.precision])
        same = self.kernels == "for-loop" or "bit" in self.optimizer  # torchao's own, in both
        return SAME_OPERATIONS if same else TOLERANCES[self.precision]

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.optimizer, self.precision, **self.technique.recipe)

    @property
    def strategy(self) -> Strategy:
        recipe = self.recipe
        return Strategy(
            precision=self.precision,
            micro_batch=SAMPLES,
            accumulation=recipe.accumulation,
            optimizer=self.optimizer,
            optimizer_kernels=self.kernels,
            channels_last=recipe.channels_last,
            adapter="lora" if recipe.adapter else "none",
            **self.technique.strategy,
        )


def cases() -> list[Case]:
    """Every optimizer in every kernel and precision it has, with every technique."""
    results = []
    for optimizer in OPTIMIZERS:
        if "bit" in optimizer and find_spec("torchao") is None:
            continue
        for precision in PRECISIONS:
            for kernels in kernels_for(optimizer, on_cpu=True, in_16_bits=precision == "bf16", scaled=precision == "amp-fp16"):
                for technique in TECHNIQUES:
                    if precision in technique.only and not (technique.recipe.get("adapter") and find_spec("peft") is None):
                        results.append(Case(optimizer, kernels, precision, technique))
    return results


def covering() -> list[Case]:
    """A part of `cases` for every day: each optimizer in each kernel and precision plainly, with every overflow, and with two
    more techniques in turn, so that each optimizer, each precision and each kind of kernels meets each technique."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in cases():
        groups.setdefault((case.optimizer, case.kernels, case.precision), []).append(case)
    met: Counter[tuple[str, str]] = Counter()

    def seldom(case: Case) -> tuple[int, int]:
        return met[case.optimizer, case.technique.name], met[case.kernels, case.technique.name]

    kept = []
    for group in groups.values():
        always = [case for case in group if case.technique is TECHNIQUES[0] or case.recipe.overflow is not None]
        more = sorted((case for case in group if case not in always), key=seldom)[:2]
        kept += [*always, *more]
        met.update((name, case.technique.name) for case in more for name in (case.optimizer, case.kernels))
    return kept


def compiled_cases() -> list[Case]:
    """Compiled steps, which take minutes: each precision once, with another optimizer."""
    pairs = zip(PRECISIONS, ("adamw", "momentum", "adam", "sgd"), strict=True)
    return [
        Case(
            optimizer,
            kernels_for(optimizer, on_cpu=True, in_16_bits=precision == "bf16", scaled=precision == "amp-fp16")[0],
            precision,
            COMPILED,
        )
        for precision, optimizer in pairs
    ]


class _InOrder(IterableDataset[Any]):
    """The samples of all steps, one after the other."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for step in batches(self.recipe):
            for batch in step:
                for index in range(SAMPLES):
                    yield {name: column[index] for name, column in batch.items()}


def job_of(case: Case) -> Job:
    recipe = case.recipe
    return Job(
        model=lambda: Net(recipe.dropout),
        loss=loss_of,
        name="truth",
        batch=lambda n: {name: t[:n] for name, t in batches(recipe)[0][0].items()},
        data=lambda: _InOrder(recipe),
        optimizer=case.optimizer,
        learning_rate=LEARNING_RATES.get(case.optimizer, LEARNING_RATE),
        schedule="cosine" if recipe.schedules else "constant",
        warmup_steps=WARMUP if recipe.schedules else 0,
        clip_norm=CLIP_NORM if recipe.clips else None,
        ema_decay=EMA_DECAY if recipe.averages else None,
    )


def train_ours(case: Case, job: Job | None = None, strategy: Strategy | None = None) -> Trained:
    """The same training by gpuwise's own run. job, strategy: others than the case's, to plant a fault."""
    run = Training(
        job or job_of(case),
        strategy or case.strategy,
        TrainSettings(steps=STEPS, seed=SEED, progress="silent", preemption="none", host=HostSettings(threads=1)),
    )
    losses = []
    for step in run:
        losses.append(step.loss)
    assert run._run is not None
    program = run._run.program
    averages = {} if program.average is None else program.average.tensors
    return Trained({}, dict(program.model.state_dict()), dict(averages), losses, float(program.scaler.get_scale()))


@cache
def plain(recipe: Recipe) -> Trained:
    with _quiet():
        return train_plain(recipe)


def deviation(ours: Trained, theirs: Trained) -> float:
    """The largest, over parameters, buffers and averages, of |ours - theirs| / |theirs - initial| in the 2-norm of a tensor:
    0 where both trained alike, 1 where ours stayed as it was; losses relative to the plain loop's. A tensor that hardly moved
    is taken to have moved by its type's resolution.

    Infinite where one is not finite or the loss scales differ.
    """
    if ours.scale != theirs.scale or ours.final.keys() != theirs.final.keys() or len(ours.losses) != len(theirs.losses):
        return torch.inf
    worst = [abs(a - b) / max(abs(b), 0.1) for a, b in zip(ours.losses, theirs.losses, strict=True)]
    pairs = [(ours.final, theirs.final), (ours.averages, theirs.averages)]
    for mine, other in pairs:
        if mine.keys() != other.keys():
            return torch.inf
        for name, expected in other.items():
            before = theirs.initial[name].double()
            resolution = torch.finfo(expected.dtype).eps if expected.is_floating_point() else 0.0
            moved = max(float((expected.double() - before).norm()), resolution * float(before.norm()))
            off = float((mine[name].double() - expected.double()).norm())
            worst.append(off / moved if moved else float(off > 0))
    return max(worst) if all(value == value for value in worst) else torch.inf


def run(case: Case) -> float:
    """How far gpuwise's training ends from the plain loop's."""
    with _quiet(compiles=case.strategy.compile):
        ours = train_ours(case)
    return deviation(ours, plain(case.recipe))


@contextmanager
def _quiet(*, compiles: bool = False) -> Iterator[None]:
    """On one thread, without PyTorch's remarks. Low-bit updates run eagerly, as compiling each takes half a minute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), nullcontext() if compiles else torch.compiler.set_stance("force_eager"):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
