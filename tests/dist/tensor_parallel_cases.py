"""Cases of tensor parallelism, with data parallelism beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.dist.cases import FP32, ROUNDED_TO_16_BITS, Case
from tests.dist.tiny_decoder import decoder_job

from gpuwise.job import Job
from gpuwise.strategy import Mesh, Parallelism, Strategy

PLAIN = Parallelism()
SEQUENCE = Parallelism(sequence_parallel=True)
LOSS = Parallelism(loss_parallel=True)
BOTH = Parallelism(sequence_parallel=True, loss_parallel=True)

_clipped = partial(decoder_job, clip_norm=0.1)
_of_eight_heads = partial(decoder_job, heads=8)


def _case(
    name: str,
    parallelism: Parallelism = PLAIN,
    make_job: Callable[[], Job] = decoder_job,
    *,
    axes: dict[str, int],
    default: bool = False,
    loss: float = FP32,
    weights: float = FP32,
    **settings: object,
) -> Case:
    strategy = Strategy(mesh=Mesh(**axes), parallelism=parallelism, **settings)  # type: ignore[arg-type]
    return Case(name, strategy, make_job, default=default, loss=loss, weights=weights)


TENSOR_PARALLEL_CASES: tuple[Case, ...] = (
    _case("TP", axes={"tp": 2}),
    _case("TP", axes={"tp": 4}),
    _case("TP", make_job=_of_eight_heads, axes={"tp": 8}),
    _case("TP + sequence", SEQUENCE, axes={"tp": 2}),
    _case("TP + sequence", SEQUENCE, _clipped, axes={"tp": 4}),
    _case("TP + sequence", SEQUENCE, _of_eight_heads, axes={"tp": 8}),
    _case("TP + loss", LOSS, axes={"tp": 2}),
    _case("TP + loss", LOSS, _clipped, axes={"tp": 4}),
    _case("TP + sequence + loss, clipped", BOTH, _clipped, axes={"tp": 2}, default=True),
    _case("TP + sequence + loss", BOTH, axes={"tp": 4}),
    _case("TP + sequence + loss", BOTH, _of_eight_heads, axes={"tp": 8}),
    _case("TP, accumulated, clipped, average", make_job=partial(_clipped, ema_decay=0.9), axes={"tp": 2}, accumulation=2),
    _case("TP + sequence, recompute", SEQUENCE, axes={"tp": 2}, recompute="full"),
    _case("TP + sequence, compiled", SEQUENCE, _clipped, axes={"tp": 2}, compile=True),
    _case("TP + sequence + loss, compiled", BOTH, axes={"tp": 4}, compile=True),
    _case("TP, tied embedding", make_job=partial(decoder_job, tied=True), axes={"tp": 2}),
    _case("TP, amp-fp16", make_job=_clipped, axes={"tp": 2}, precision="amp-fp16", **ROUNDED_TO_16_BITS),
    _case("TP, amp-bf16", make_job=_clipped, axes={"tp": 2}, precision="amp-bf16", **ROUNDED_TO_16_BITS),
    _case("TP, dropout outside of what is split", make_job=partial(decoder_job, dropout=0.1), axes={"tp": 2}),
    _case("TP, shared keys and values", make_job=partial(decoder_job, key_value_heads=2), axes={"tp": 2}),
)

TENSOR_AND_DATA_CASES: tuple[Case, ...] = (
    _case("FSDP2 × TP", make_job=_clipped, axes={"dp_shard": 2, "tp": 2}),
    _case("FSDP2 × TP + sequence + loss", BOTH, _clipped, axes={"dp_shard": 2, "tp": 2}),
    _case("FSDP2 × TP", make_job=_clipped, axes={"dp_shard": 2, "tp": 4}),
    _case("FSDP2 × TP + sequence", SEQUENCE, _clipped, axes={"dp_shard": 4, "tp": 2}),
    _case("FSDP2, gradients × TP, accumulated", Parallelism(shard="gradients"), axes={"dp_shard": 2, "tp": 2}, accumulation=2),
    _case("FSDP2, optimizer × TP, accumulated", Parallelism(shard="optimizer"), axes={"dp_shard": 2, "tp": 2}, accumulation=2),
    _case("FSDP2 × TP + sequence, compiled", SEQUENCE, _clipped, axes={"dp_shard": 2, "tp": 2}, compile=True),
    _case("replicas × TP", make_job=_clipped, axes={"dp_replicate": 2, "tp": 2}),
    _case("HSDP × TP", make_job=_clipped, axes={"dp_replicate": 2, "dp_shard": 2, "tp": 2}),
    _case("HSDP × TP + sequence + loss", BOTH, _clipped, axes={"dp_replicate": 2, "dp_shard": 2, "tp": 2}),
)
