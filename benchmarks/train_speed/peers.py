"""Loops written by hand, and other trainers, each as its documentation shows it and no slower than that has to be.

Each takes a Work and a precision ("fp32" | "amp-bf16" | "bf16") and returns the seconds of its timed steps and the last loss.
All have PyTorch's fused AdamW of the same settings and leave out incomplete batches. None saves, and none logs beyond its
defaults. On a GPU batches come from pinned memory, and no loss is read before the last.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.train_speed.works import LEARNING_RATE, WEIGHT_DECAY, Batch, Work

Timed = tuple[float, float]  # seconds, last loss


class Clock:
    """Told of each step that has ended."""

    def __init__(self, work: Work):
        self._device = work.device
        self._first, self._last = work.warm, work.warm + work.timed
        self._began_s = self.seconds = 0.0

    def stepped(self, step: int) -> bool:
        """Whether it was the last one."""
        if step in (self._first, self._last) and self._device != "cpu":
            torch.cuda.synchronize()
        if step == self._first:
            self._began_s = time.perf_counter()
        elif step == self._last:
            self.seconds = time.perf_counter() - self._began_s
        return step == self._last


def indexed(work: Work, precision: str) -> Timed:
    """By hand, without a DataLoader: a batch is a list of rows, taken out of each tensor at once."""
    return _by_hand(work, precision, ordered(work))


def loader(work: Work, precision: str) -> Timed:
    """By hand, with a DataLoader."""
    return _by_hand(work, precision, _endless(_loader(work)))


def kept(work: Work, precision: str) -> Timed:
    """`loader` in a process that was told to keep the memory it frees, as gpuwise tells its own."""
    from gpuwise.runtime.build.host_memory import keep_freed_memory

    keep_freed_memory()
    return loader(work, precision)


def trainer(work: Work, precision: str) -> Timed:
    """Hugging Face's Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    clock = Clock(work)

    class Told(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.stepped(state.global_step)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=work.warm + work.timed,
            per_device_train_batch_size=work.batch,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            optim="adamw_torch_fused",
            bf16=precision == "amp-bf16",
            use_cpu=work.device == "cpu",
            dataloader_drop_last=True,
            dataloader_pin_memory=work.device != "cpu",
            dataloader_num_workers=0,
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
        )
        run = Trainer(work.with_loss(model_of(work, precision)), arguments, train_dataset=work.rows(), callbacks=[Told()])
        return _checked(clock, run.train().training_loss)


def accelerated(work: Work, precision: str) -> Timed:
    """Hugging Face's accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=work.device == "cpu", mixed_precision="bf16" if precision == "amp-bf16" else "no")
    model, optimizer, batches = accelerator.prepare(*made(work, precision), _loader(work))
    clock = Clock(work)
    for step, batch in enumerate(_endless(batches), 1):
        loss = work.loss(model, batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if clock.stepped(step):
            return clock.seconds, loss.item()
    raise AssertionError


def lightning(work: Work, precision: str) -> Timed:
    """Lightning's Trainer."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    clock, last = Clock(work), []

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of(work, precision)

        def training_step(self, batch: Batch, number: int) -> torch.Tensor:
            return work.loss(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return _adamw(self)

    class Told(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            if clock.stepped(trainer.global_step):
                last.append(float(outputs["loss"]))

    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(
            accelerator="cpu" if work.device == "cpu" else "gpu",
            devices=1,
            precision={"amp-bf16": "bf16-mixed", "bf16": "bf16-true"}.get(precision, "32-true"),
            max_steps=work.warm + work.timed,
            max_epochs=-1,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[Told()],
            default_root_dir=folder,
        )
        run.fit(Module(), _loader(work))
    return _checked(clock, last[0])


def _by_hand(work: Work, precision: str, batches: Iterator[Batch]) -> Timed:
    model, optimizer = made(work, precision)
    clock = Clock(work)
    for step, batch in enumerate(batches, 1):
        loss = take(work, model, optimizer, batch, precision)
        if clock.stepped(step):
            return clock.seconds, float(loss)
    raise AssertionError


def take(work: Work, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, precision: str) -> float | torch.Tensor:
    """One step, as one writes it by hand; its loss is read at once on a CPU, as gpuwise reads it."""
    if work.device != "cpu":
        batch = {name: tensor.to(work.device, non_blocking=True) for name, tensor in batch.items()}
    if precision == "bf16":
        batch = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
    with _autocast(precision, work.device):
        loss = work.loss(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item() if work.device == "cpu" else loss.detach()


def ordered(work: Work) -> Iterator[Batch]:
    """Batches by index, in gpuwise's order: each epoch a permutation, seeded with its number."""
    columns = work.columns()
    count = len(next(iter(columns.values())))
    for epoch in itertools.count():
        order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
        for rows in order[: count // work.batch * work.batch].split(work.batch):
            yield {name: column[rows] for name, column in columns.items()}


def made(work: Work, precision: str = "fp32") -> tuple[nn.Module, torch.optim.Optimizer]:
    model = model_of(work, precision)
    return model, _adamw(model)


def model_of(work: Work, precision: str) -> nn.Module:
    """The model on its device, the same for every contestant."""
    torch.manual_seed(0)
    with torch.device(work.device):
        model = work.model()
    return (model.to(torch.bfloat16) if precision == "bf16" else model).train()


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)


def _loader(work: Work) -> DataLoader[Batch]:
    return DataLoader(work.rows(), batch_size=work.batch, shuffle=True, drop_last=True, pin_memory=work.device != "cpu")


def _endless(batches: Any) -> Iterator[Batch]:
    while True:
        yield from batches


def _autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, dtype=torch.bfloat16) if precision == "amp-bf16" else nullcontext()


def _checked(clock: Clock, loss: float) -> Timed:
    assert clock.seconds > 0
    return clock.seconds, loss
