"""Cases of data parallelism, each compared with one process, by tests and by benchmarks/parallel_truth.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from tests.dist.cases import ROUNDED_TO_16_BITS, Case
from tests.dist.hub_jobs import hub_job
from tests.dist.tiny_decoder import SEQ_LEN, VOCABULARY, WIDTH, TinyBlock, adamw, decoder_job, tokens_of
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.strategy import Mesh, Parallelism, Strategy


class Branching(nn.Module):
    """A decoder whose loss calls its parts in ways of its own; some parameters may be unused, or used now and then."""

    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        self.settings = {"weight": 0.1}
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(TinyBlock(4, 0.0) for _ in range(3))
        self.normalise, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.unused = nn.Linear(3, 3) if unused else None

    def encode(self, tokens: Tensor, *, leave_out: int | None = None) -> Tensor:
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            x = x if number == leave_out else block(x)
        return self.normalise(x.transpose(1, 2)).transpose(1, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encode(tokens))


def loss_of_parts(model: Branching, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Calls submodules alone and the model besides, reads an attribute and a parameter."""
    targets = batch["targets"].flatten()
    alone = F.cross_entropy(model.head(model.encode(batch["tokens"])).flatten(0, 1), targets)
    whole = F.cross_entropy(model(batch["tokens"]).flatten(0, 1), targets)
    penalty = model.settings["weight"] * model.head.weight.pow(2).mean()
    return {"loss": alone + 0.1 * whole + penalty, "penalty": penalty}


def loss_with_branches(model: Branching, batch: dict[str, Tensor]) -> Tensor:
    """Leaves out a block by the values of a micro-batch, so that ranks differ."""
    even = int(batch["tokens"][0, 0]) % 2 == 0
    logits = model.head(model.encode(batch["tokens"], leave_out=1 if even else None))
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())


def branching_job(loss: Callable[..., object] = loss_of_parts, *, unused: bool = False) -> Job:
    return Job(
        model=partial(Branching, unused=unused),
        batch=tokens_of,
        loss=loss,  # type: ignore[arg-type]
        optimizer=adamw,
        name="branching decoder",
        seq_len=SEQ_LEN,
    )


def hooked_job() -> Job:
    """A model with a hook of its own on the gradient of each parameter."""

    def model() -> nn.Module:
        decoder = decoder_job().model()
        for parameter in decoder.parameters():
            parameter.register_hook(lambda gradient: 2 * gradient)
        return decoder

    job = decoder_job()
    return Job(model=model, batch=job.batch, loss=job.loss, optimizer=sgd, name="hooked decoder", seq_len=SEQ_LEN)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An update that depends on the size of gradients."""
    return torch.optim.SGD(parameters, lr=0.1)


def drawn_job() -> Job:
    """A model whose initial weights differ between ranks, as those of a model that draws from a clock."""

    def model() -> nn.Module:
        torch.manual_seed(torch.distributed.get_rank())
        return decoder_job().model()

    job = decoder_job()
    return Job(model=model, batch=job.batch, loss=job.loss, optimizer=adamw, name="drawn decoder", seq_len=SEQ_LEN)


def _replicas(ranks: int, **settings: object) -> Strategy:
    return Strategy(mesh=Mesh(dp_replicate=ranks), **settings)  # type: ignore[arg-type]


def _shards(ranks: int, shard: str = "parameters", *, copies: int = 1, **settings: object) -> Strategy:
    mesh, parallelism = Mesh(dp_replicate=copies, dp_shard=ranks), Parallelism(shard=shard)
    return Strategy(mesh=mesh, parallelism=parallelism, **settings)  # type: ignore[arg-type]


def _compressed(strategy: Strategy) -> Strategy:
    return strategy.but(parallelism=Parallelism(shard=strategy.parallelism.shard, compress_gradients=True))


_clipped = partial(decoder_job, clip_norm=0.1)
_llama = partial(hub_job, "Llama")
_everything = partial(decoder_job, clip_norm=0.1, ema_decay=0.9, tied=True)

CASES: tuple[Case, ...] = (
    Case("DDP", _replicas(2), default=True),
    Case("DDP", _replicas(4)),
    Case("DDP", _replicas(8)),
    Case("DDP, accumulated, clipped, average", _replicas(2, accumulation=2), _everything, default=True),
    Case("DDP, accumulated, clipped, average", _replicas(4, accumulation=4), _everything),
    Case("DDP, gradients kept", _replicas(2, accumulation=2, keep_gradients=True, optimizer="sgd")),
    Case("DDP, recompute", _replicas(2, recompute="full"), _clipped),
    Case("DDP, selective recompute", _replicas(4, recompute="selective"), _clipped),
    Case("DDP, compiled", _replicas(2, compile=True), _clipped),
    Case("DDP, compiled, recompute", _replicas(2, compile=True, recompute="full"), _clipped),
    Case("DDP, LoRA", _replicas(2, adapter="lora")),
    Case("DDP, tf32", _replicas(2, precision="tf32")),
    Case("DDP, amp-bf16", _replicas(2, precision="amp-bf16")),
    Case("DDP, amp-fp16", _replicas(2, precision="amp-fp16"), _clipped),
    Case("DDP, bf16", _replicas(2, precision="bf16"), **ROUNDED_TO_16_BITS),
    Case("DDP, fp8", _replicas(2, precision="fp8")),
    Case("DDP, gradients in bf16", _compressed(_replicas(2)), loss=1e-3, weights=5e-2),
    Case("DDP, muon", _replicas(2, optimizer="muon")),
    Case("DDP, adafactor", _replicas(2, optimizer="adafactor")),
    Case("DDP, loss calls submodules", _replicas(2), branching_job),
    Case("DDP, unused parameters", _replicas(2, accumulation=2), partial(branching_job, unused=True), default=True),
    Case("DDP, parameters used now and then", _replicas(2, accumulation=2), partial(branching_job, loss_with_branches)),
    Case("DDP, hooks on gradients", _replicas(2), hooked_job),
    Case("DDP, weights drawn apart", _replicas(2), drawn_job),
    Case("FSDP2, parameters", _shards(2), default=True),
    Case("FSDP2, parameters", _shards(4)),
    Case("FSDP2, parameters", _shards(8)),
    Case("FSDP2, parameters, accumulated, clipped, average", _shards(2, accumulation=4), _everything),
    Case("FSDP2, parameters, accumulated, clipped, average", _shards(4, accumulation=2), _everything),
    Case("FSDP2, gradients", _shards(2, "gradients", accumulation=2), _everything),
    Case("FSDP2, gradients", _shards(4, "gradients", accumulation=2), _everything),
    Case("FSDP2, optimizer (ZeRO 1)", _shards(2, "optimizer", accumulation=2), _everything, default=True),
    Case("FSDP2, optimizer (ZeRO 1)", _shards(4, "optimizer", accumulation=2), _everything),
    Case("FSDP2, gradients kept", _shards(2, accumulation=2, keep_gradients=True, optimizer="sgd")),
    Case("FSDP2, recompute", _shards(2, recompute="full"), _clipped),
    Case("FSDP2, selective recompute", _shards(4, recompute="selective"), _clipped),
    Case("FSDP2, compiled", _shards(2, compile=True), _clipped),
    Case("FSDP2, compiled, recompute", _shards(2, "gradients", compile=True, recompute="full"), _clipped),
    Case("FSDP2, LoRA", _shards(2, adapter="lora")),
    Case("FSDP2, tf32", _shards(2, precision="tf32")),
    Case("FSDP2, amp-bf16", _shards(2, precision="amp-bf16"), **ROUNDED_TO_16_BITS),
    Case("FSDP2, optimizer, amp-bf16", _shards(2, "optimizer", accumulation=2, precision="amp-bf16"), **ROUNDED_TO_16_BITS),
    Case("FSDP2, amp-bf16, Hugging Face's Llama", _shards(2, precision="amp-bf16"), _llama, **ROUNDED_TO_16_BITS),
    Case("FSDP2, amp-fp16", _shards(2, precision="amp-fp16"), _clipped, **ROUNDED_TO_16_BITS),
    Case("FSDP2, bf16", _shards(2, precision="bf16"), **ROUNDED_TO_16_BITS),
    Case("FSDP2, gradients in bf16", _compressed(_shards(2)), loss=1e-3, weights=5e-2),
    *(
        Case(f"FSDP2, {name} by {kernels}", _shards(2, optimizer=name, optimizer_kernels=kernels), _clipped)
        for name, kinds in {"adamw": ("for-loop", "foreach", "fused"), "momentum": ("for-loop", "foreach")}.items()
        for kernels in kinds
    ),
    Case("FSDP2, loss calls submodules", _shards(2, "gradients", accumulation=2), branching_job),
    Case("FSDP2, unused parameters", _shards(2), partial(branching_job, unused=True)),
    Case("FSDP2, weights drawn apart", _shards(2), drawn_job),
    Case("HSDP, parameters, accumulated, clipped", _shards(2, copies=2, accumulation=2), _everything, default=True),
    Case("HSDP, gradients", _shards(2, "gradients", copies=2, accumulation=2), _everything),
    Case("HSDP, optimizer", _shards(2, "optimizer", copies=2, accumulation=2), _everything),
    Case("HSDP, parameters", _shards(4, copies=2), _clipped),
)
