"""Trainers of the same model on several ranks, each as its documentation shows it. All run in a rank's process over gloo.

Each takes a Work, tells its Clock of each optimizer step that has ended, and returns this rank's last loss. All have PyTorch's
fused AdamW of the same settings, the same micro-batch a rank, the same data set, and one thread a rank. None but gpuwise saves
or keeps a log. The loops by hand read the loss every LOG_EVERY steps, as torchtitan does by default; gpuwise reads each.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gpuwise.job import Job, repeated_blocks
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.runtime import Training, TrainSettings
from gpuwise.strategy import HostSettings, Mesh, Strategy

LEARNING_RATE, WEIGHT_DECAY, SAMPLES = 3e-4, 0.01, 2048
LOG_EVERY = 10  # torchtitan's metrics.log_freq
LONG_RUN = 10_000_000  # steps: it never ends by itself
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Work:
    """What is trained. micro_batch: samples of a rank in a step; warm, timed: steps."""

    width: int
    layers: int
    vocabulary: int
    seq_len: int
    micro_batch: int
    warm: int
    timed: int

    def model(self) -> nn.Module:
        return Llama(LlamaConfig(self.vocabulary, self.width, self.layers, 4, 4, 3 * self.width))

    def batch(self, count: int) -> Batch:
        return next_token_batch(count, vocabulary=self.vocabulary, seq_len=self.seq_len)

    def data(self) -> Dataset[Batch]:
        return Rows(self.batch(SAMPLES))


class Rows(Dataset[Batch]):
    """A map-style data set of rows."""

    def __init__(self, columns: Batch):
        self.columns = columns

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Batch:
        return {name: column[index] for name, column in self.columns.items()}


class Clock:
    """Seconds of the timed steps."""

    def __init__(self, work: Work):
        self._first, self._last = work.warm, work.warm + work.timed
        self._began_s = self.seconds = 0.0

    def stepped(self, step: int) -> bool:
        """Whether it was the last one."""
        if step == self._first:
            self._began_s = time.perf_counter()
        elif step == self._last:
            self.seconds = time.perf_counter() - self._began_s
        return step == self._last


def training(work: Work, mesh: Mesh) -> Generator[Any, None, None]:
    """A run of gpuwise with log, checkpoints and the watch over ranks on, step by step."""
    from gpuwise.hardware.detect.ranks import rank_environment
    from gpuwise.runtime.ranks.joining import join

    environment = rank_environment()
    assert environment is not None
    ranks = join(environment, torch.device("cpu"))
    job = Job(work.model, work.batch, token_loss, learning_rate=LEARNING_RATE, data=work.data, name="llama")
    settings = TrainSettings(
        steps=LONG_RUN,
        folder=Path(os.environ["GPUWISE_BENCHMARK_FOLDER"]),
        progress="plain",
        preemption="none",
        host=HostSettings(threads=1),
    )
    run = Training(job, Strategy(micro_batch=work.micro_batch, mesh=mesh), settings, ranks=ranks)
    return iter(run)  # type: ignore[return-value]


def gpuwise(work: Work, clock: Clock, mesh: Mesh) -> float:
    run = training(work, mesh)
    loss = 0.0
    for step in run:
        loss = step.loss
        if clock.stepped(step.step):
            break
    run.close()
    return loss


def in_turns(
    work: Work, mesh: Mesh, wrap: Callable[[nn.Module], nn.Module], *, exchanges: bool = True
) -> dict[str, list[float]]:
    """Seconds of gpuwise's steps and of those of a loop by hand, which take turns in the same processes.

    Whatever else the machine does meets both alike. Ranks begin each step together.

    Arguments:
        exchanges: whether gpuwise's ranks exchange their losses and words in each step, as they do. Default True.
    """
    if not exchanges:
        _exchange_nothing()
    run = training(work, mesh)
    next(run)  # sets what both use: ranks, seeds, memory
    steps = loop(work, wrap(work.model()))
    takes: dict[str, Iterator[object]] = {"gpuwise": run, "by hand": steps}
    seconds: dict[str, list[float]] = {name: [] for name in takes}
    for turn in range(work.warm + 2 * work.timed):
        for name in sorted(takes, reverse=turn % 2 == 0):
            dist.barrier()
            began_s = time.perf_counter()
            next(takes[name])
            seconds[name].append(time.perf_counter() - began_s)
    run.close()
    return {name: each[work.warm :] for name, each in seconds.items()}


def _exchange_nothing() -> None:
    """Leaves out the collective of each step in this process: the difference is what it costs."""
    from gpuwise.runtime.ranks import word

    def all_reduce(numbers: Tensor, *, async_op: bool) -> Done:
        return Done()

    word.dist = SimpleNamespace(all_reduce=all_reduce)  # type: ignore[assignment]


class Done:
    """A collective that has ended."""

    def wait(self) -> None: ...


def sharded(model: nn.Module) -> nn.Module:
    """FSDP2 as torchtitan applies it: each block, then the rest."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in repeated_blocks(model):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def loop(work: Work, model: nn.Module) -> Iterator[Tensor]:
    """The steps of a loop by hand. Yields this rank's loss."""
    optimizer = _adamw(model)
    for step, batch in enumerate(_endless(_loader(work)), 1):
        loss = token_loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % LOG_EVERY == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            mean.item()
        yield loss


def plain(work: Work, clock: Clock, wrap: Callable[[nn.Module], nn.Module]) -> float:
    """A loop by hand."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    for step, loss in enumerate(loop(work, wrap(work.model())), 1):
        if clock.stepped(step):
            dist.barrier()  # processes then exit; gloo's destroy_process_group hung now and then, on one rank
            return loss.item()
    raise AssertionError


def accelerated(work: Work, clock: Clock) -> float:
    """accelerate on CPUs: DDP. It has FSDP for accelerators alone (accelerate.state, the types beside DistributedType.FSDP)."""
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == int(os.environ["WORLD_SIZE"])
    model = work.model()
    loader = DataLoader(work.data(), batch_size=work.micro_batch, shuffle=True, drop_last=True)
    model, optimizer, batches = accelerator.prepare(model, _adamw(model), loader)
    for step, batch in enumerate(_endless(batches), 1):
        loss = token_loss(model, batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % LOG_EVERY == 0:
            accelerator.reduce(loss.detach(), "mean").item()
        if clock.stepped(step):
            return loss.item()
    raise AssertionError


def lightning(work: Work, clock: Clock, shards: bool) -> float:
    """Lightning's Trainer: DDP, or FSDP2 by its ModelParallelStrategy (its FSDPStrategy refuses CPUs)."""
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import ModelParallelStrategy

    ranks, last = int(os.environ["WORLD_SIZE"]), []

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = work.model()

        def configure_model(self) -> None:
            if not shards:
                return
            mesh = self.device_mesh["data_parallel"]
            for block in repeated_blocks(self.model):
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)

        def training_step(self, batch: Batch, number: int) -> Tensor:
            return token_loss(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return _adamw(self)

    class Told(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            if clock.stepped(trainer.global_step):
                last.append(float(outputs["loss"]))

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            devices=ranks,
            strategy=ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1) if shards else "ddp",
            max_steps=work.warm + work.timed,
            max_epochs=-1,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[Told()],
            default_root_dir=folder,
        )
        trainer.fit(Module(), DataLoader(work.data(), batch_size=work.micro_batch, shuffle=True, drop_last=True))
    return last[0]


def contestants(ranks: int) -> dict[str, dict[str, Callable[[Work, Clock], float]]]:
    """By row and name."""
    return {
        "sharded": {
            "gpuwise": partial(gpuwise, mesh=Mesh(dp_shard=ranks)),
            "plain FSDP2": partial(plain, wrap=sharded),
            "Lightning FSDP2": partial(lightning, shards=True),
        },
        "replicated": {
            "gpuwise": partial(gpuwise, mesh=Mesh(dp_replicate=ranks)),
            "plain DDP": partial(plain, wrap=DistributedDataParallel),
            "accelerate DDP": accelerated,
            "Lightning DDP": partial(lightning, shards=False),
        },
    }


def turns(ranks: int, *, exchanges: bool) -> dict[str, Callable[[Work], dict[str, list[float]]]]:
    """gpuwise and the loop by hand in turns, by row."""
    return {
        "sharded": partial(in_turns, mesh=Mesh(dp_shard=ranks), wrap=sharded, exchanges=exchanges),
        "replicated": partial(in_turns, mesh=Mesh(dp_replicate=ranks), wrap=DistributedDataParallel, exchanges=exchanges),
    }


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)


def _loader(work: Work) -> DataLoader[Batch]:
    data = work.data()
    return DataLoader(data, batch_size=work.micro_batch, sampler=DistributedSampler(data, drop_last=True), drop_last=True)


def _endless(batches: Any) -> Iterator[Batch]:
    while True:
        yield from batches
