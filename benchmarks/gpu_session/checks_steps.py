"""Steps of gpuwise beside the same steps written in plain PyTorch: for-loop optimizers, no gpuwise in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_session.checks_copies import close, needs_cuda
from benchmarks.gpu_session.models import classifier, deterministic, language
from gpuwise.errors import InputError
from gpuwise.job import Job
from gpuwise.runtime.build.program import Program, build
from gpuwise.strategy import Strategy

STEPS, MICRO_BATCH, LEARNING_RATE = 20, 8, 1e-2
OVERFLOWS = (1, 10)  # steps whose gradients are infinite in fp16
# Largest difference of a loss, as its share: what rounding grows to in STEPS steps.
TOLERANCE = {"fp32": 1e-3, "tf32": 2e-2, "amp-bf16": 5e-2, "amp-fp16": 2e-2, "bf16": 1e-1}
# And of what a parameter moved by: 1 is a step that was not taken.
APART = {"fp32": 0.02, "tf32": 0.2, "amp-bf16": 0.3, "amp-fp16": 0.2, "bf16": 0.6}
_CASTS = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
PLAIN: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, foreach=False, fused=False),
    "momentum": partial(torch.optim.SGD, momentum=0.9, foreach=False, fused=False),
    "adam": partial(torch.optim.Adam, foreach=False, fused=False),
    "adamw": partial(torch.optim.AdamW, foreach=False, fused=False),
    "adafactor": partial(torch.optim.Adafactor, foreach=False),
}


def batches_of(job: Job, count: int = STEPS) -> list[Any]:
    torch.manual_seed(1)
    return [job.batch(MICRO_BATCH) for _ in range(count)]


def plain_losses(
    job: Job, precision: str, optimizer: str, device: torch.device, *, accumulation: int = 1
) -> tuple[list[float], nn.Module]:
    """The loop as one writes it: a micro-batch, its loss, backward, and the optimizer after so many of them."""
    torch.manual_seed(0)
    with device:
        model = job.model()
    model = model.to(torch.bfloat16 if precision == "bf16" else None).train()
    made = PLAIN[optimizer](model.parameters(), lr=job.learning_rate)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "amp-fp16")
    losses: list[float] = []
    shares: list[Tensor] = []
    for batch in batches_of(job, STEPS * accumulation):
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        if precision == "bf16":
            batch = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
        with torch.autocast(device.type, _CASTS[precision]) if precision in _CASTS else nullcontext():
            loss = job.loss(model, batch)
        scaler.scale(loss / accumulation).backward()
        shares.append(loss.detach())
        if len(shares) == accumulation:
            if job.clip_norm is not None:
                scaler.unscale_(made)
                nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm, foreach=False)
            scaler.step(made)
            scaler.update()
            made.zero_grad()
            losses.append(torch.stack(shares).mean().item())
            shares.clear()
    return losses, model


def our_losses(job: Job, strategy: Strategy, device: torch.device) -> tuple[list[float], Program]:
    torch.manual_seed(0)
    program = build(job, strategy, device)
    count = strategy.accumulation
    batches = batches_of(job, STEPS * count)
    return [program.step(batches[start : start + count]).item() for start in range(0, len(batches), count)], program


def compared(
    device: torch.device,
    *,
    job: Callable[..., Job],
    optimizer: str,
    precision: str,
    job_has: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Losses of STEPS steps, ours and the plain loop's, within TOLERANCE; and that training went on."""
    made = job(learning_rate=LEARNING_RATE if optimizer in ("sgd", "momentum") else LEARNING_RATE / 10, **(job_has or {}))
    deterministic()
    strategy = Strategy(precision=precision, micro_batch=MICRO_BATCH, optimizer=optimizer, **settings)
    ours, program = our_losses(made, strategy, device)
    theirs, model = plain_losses(made, precision, optimizer, device, accumulation=strategy.accumulation)
    torch.manual_seed(0)
    with device:
        start = made.model()
    apart = moved_apart(program.model, model, start)
    assert apart <= APART[precision], f"{optimizer}, {precision}, {settings}: parameters moved {apart:.0%} apart"
    assert all(math.isfinite(loss) for loss in ours), ours
    close(ours, theirs, f"{optimizer}, {precision}, {settings}", tolerance=TOLERANCE[precision])
    assert program.parameters_are_finite()
    return {"ours": ours[-3:], "plain": theirs[-3:], "apart": apart}


def moved_apart(ours: nn.Module, theirs: nn.Module, start: nn.Module) -> float:
    """Norm of the difference of two models as a share of how far the second has come from its start."""
    first, second, before = (
        torch.cat([p.detach().double().flatten() for p in model.parameters()]) for model in (ours, theirs, start)
    )
    return float((first - second).norm() / (second - before.to(second.device)).norm())


def every_optimizer(device: torch.device, *, precision: str) -> dict[str, Any]:
    """Each optimizer in each kind of kernels it has."""
    from gpuwise.strategy import KERNELS_OF

    results: dict[str, Any] = {}
    for optimizer in PLAIN:
        for kernels in KERNELS_OF[optimizer]:
            try:
                results[f"{optimizer} {kernels}"] = compared(
                    device, job=classifier, optimizer=optimizer, precision=precision, optimizer_kernels=kernels
                )
            except InputError as refusal:
                results[f"{optimizer} {kernels}"] = {"refused": refusal.what}
    return results


def every_technique(device: torch.device) -> dict[str, Any]:
    """What changes how a step is done and not what it computes."""
    techniques: dict[str, dict[str, Any]] = {
        "recompute full": {"recompute": "full"},
        "recompute selective": {"recompute": "selective"},
        "accumulated": {"accumulation": 4},
        "gradients kept": {"keep_gradients": True},
        "optimizer in backward": {"optimizer_in_backward": True},
        "clipped": {"job_has": {"clip_norm": 0.1}},
        "averaged": {"job_has": {"ema_decay": 0.9}},
    }
    results = {
        name: compared(device, job=language, optimizer="adamw", precision="fp32", **settings)
        for name, settings in techniques.items()
    }
    results["channels last"] = compared(device, job=classifier, optimizer="momentum", precision="amp-bf16", channels_last=True)
    return results


def overflow(device: torch.device, *, optimizer: str, kernels: str) -> dict[str, Any]:
    """fp16 gradients that are infinite in the first and the tenth step: those steps are skipped, the scale falls, and nothing
    that is not a number gets into parameters or optimizer state."""
    plain = classifier(learning_rate=LEARNING_RATE if optimizer == "momentum" else LEARNING_RATE / 10)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return plain.loss(model, batch) * batch["factor"][0]

    def batch(n: int) -> dict[str, Tensor]:
        return {**plain.batch(n), "factor": torch.ones(n)}

    job = replace(plain, loss=loss, batch=batch)
    torch.manual_seed(0)
    strategy = Strategy(precision="amp-fp16", micro_batch=MICRO_BATCH, optimizer=optimizer, optimizer_kernels=kernels)
    try:
        program = build(job, strategy, device)
    except InputError as refusal:
        return {"refused": refusal.what}
    scales, moved = [], []
    for step, made in enumerate(batches_of(job), 1):
        if step in OVERFLOWS:
            made["factor"] = torch.full_like(made["factor"], 1e30)
        before = [p.detach().clone() for p in program.model.parameters()]
        program.step([made])
        scales.append(program.scaler.get_scale())
        moved.append(any(not torch.equal(a, b) for a, b in zip(before, program.model.parameters(), strict=True)))
    assert [step for step, did in enumerate(moved, 1) if not did] == list(OVERFLOWS), moved
    assert program.parameters_are_finite()
    assert program.optimizer is not None
    state = [value for held in program.optimizer.state.values() for value in held.values() if isinstance(value, Tensor)]
    assert all(bool(torch.isfinite(value).all()) for value in state), "optimizer state is not finite"
    assert scales[OVERFLOWS[0] - 1] == 2**15, scales
    return {"scales": scales, "state": len(state)}


def compiled(device: torch.device) -> dict[str, Any]:
    """The compiled step computes what the step does."""
    needs_cuda(device)
    return compared(device, job=language, optimizer="adamw", precision="amp-bf16", compile=True)


def needs_package(device: torch.device, *, settings: dict[str, Any], job: Callable[..., Job] = language) -> dict[str, Any]:
    """Trains with what a package does; the loss falls on one batch that is seen again and again."""
    needs_cuda(device)
    torch.manual_seed(0)
    made = job(learning_rate=1e-2 if "adapter" in settings else 1e-3)
    program = build(made, Strategy(micro_batch=MICRO_BATCH, **settings), device)
    [batch] = batches_of(made, 1)
    losses = [program.step([batch]).item() for _ in range(STEPS)]
    assert all(map(math.isfinite, losses)), losses
    assert losses[-1] < 0.98 * losses[0], losses
    return {"losses": losses, "peak_bytes": torch.cuda.max_memory_allocated()}


def _named(precisions: Sequence[str]) -> dict[str, Callable[[torch.device], dict[str, Any]]]:
    return {f"optimizers, {precision}": partial(every_optimizer, precision=precision) for precision in precisions}


CHECKS: dict[str, Callable[[torch.device], dict[str, Any]]] = {
    **_named(("fp32", "tf32", "amp-bf16", "amp-fp16", "bf16")),
    "techniques": every_technique,
    **{
        f"fp16 overflow, {optimizer} {kernels}": partial(overflow, optimizer=optimizer, kernels=kernels)
        for optimizer in ("momentum", "adamw")
        for kernels in ("fused", "foreach", "for-loop")
    },
    "compiled": compiled,
    "lora": partial(needs_package, settings={"precision": "amp-bf16", "adapter": "lora"}),
    "qlora": partial(needs_package, settings={"precision": "amp-bf16", "adapter": "qlora"}),
    "fp8": partial(needs_package, settings={"precision": "fp8"}),
    "8-bit optimizer": partial(needs_package, settings={"precision": "bf16", "optimizer": "adamw-8bit"}),
    "4-bit optimizer": partial(needs_package, settings={"precision": "bf16", "optimizer": "adamw-4bit"}),
    "muon": partial(needs_package, settings={"precision": "amp-bf16", "optimizer": "muon"}),
}
