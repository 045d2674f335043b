"""Cases of tensor parallelism by the plans in Hugging Face's configs (base_model_tp_plan)."""

from __future__ import annotations

from functools import partial

from tests.dist.cases import Case
from tests.dist.hub_jobs import FAMILIES, hub_job

from gpuwise.strategy import Mesh, Parallelism, Strategy

_DEFAULT = ("Llama",)
_SEQUENCE = Parallelism(sequence_parallel=True)
_BOTH = Parallelism(sequence_parallel=True, loss_parallel=True)


def _case(name: str, family: str, parallelism: Parallelism = _BOTH, *, clip_norm: float | None = 0.5, **axes: int) -> Case:
    return Case(name, Strategy(mesh=Mesh(**axes), parallelism=parallelism), partial(hub_job, family, clip_norm=clip_norm))


HUB_PLAN_CASES: tuple[Case, ...] = (
    *(Case(f, Strategy(mesh=Mesh(tp=2)), partial(hub_job, f), default=f in _DEFAULT) for f in FAMILIES),
    _case("Phi, clipped", "Phi", Parallelism(), tp=4),
    _case("Llama + sequence + loss, clipped", "Llama", tp=2),
    _case("Qwen3 + sequence, clipped", "Qwen3", _SEQUENCE, tp=2),
    _case("FSDP2 × Qwen2, clipped", "Qwen2", Parallelism(), dp_shard=2, tp=2),
    _case("FSDP2 × Mistral + sequence + loss, clipped", "Mistral", dp_shard=2, tp=2),
    _case("FSDP2 × Mixtral, clipped", "Mixtral", Parallelism(), dp_shard=2, tp=2),
)
