"""Cases of expert parallelism, of a Mixtral with four experts or eight, and of Hugging Face's mixtures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.dist.cases import Case
from tests.dist.hub_jobs import hub_job
from tests.dist.language_jobs import language_job

from gpuwise.job import Job
from gpuwise.strategy import Mesh, Parallelism, Strategy

_mixtral = partial(language_job, "mixtral")
_clipped = partial(_mixtral, clip_norm=0.05)

_of_eight_experts = partial(language_job, "mixtral of eight experts")


def _case(
    name: str,
    make_job: Callable[[], Job] = _mixtral,
    *,
    default: bool = False,
    accumulation: int = 1,
    shard: str = "parameters",
    recompute: str = "none",
    **axes: int,
) -> Case:
    parallelism = Parallelism(shard=shard)
    strategy = Strategy(mesh=Mesh(**axes), accumulation=accumulation, recompute=recompute, parallelism=parallelism)
    return Case(name, strategy, make_job, default=default)


def _hub(family: str) -> Callable[[], Job]:
    return partial(hub_job, family, clip_norm=0.5)


EXPERT_PARALLEL_CASES: tuple[Case, ...] = (
    _case("EP, clipped", _clipped, dp_shard=2, ep=2, default=True),
    _case("EP, accumulated", dp_shard=2, ep=2, accumulation=2),
    _case("EP", dp_shard=4, ep=4),
    _case("EP, shards beside", dp_shard=4, ep=2),
    _case("EP, accumulated, clipped", _clipped, dp_shard=4, ep=2, accumulation=2),
    _case("EP, replicas beside", dp_replicate=2, dp_shard=2, ep=2),
    _case("EP, shards beside, clipped", _clipped, dp_shard=8, ep=4),
    _case("EP", _of_eight_experts, dp_shard=8, ep=8),
    _case("EP, replicas and shards beside", dp_replicate=2, dp_shard=4, ep=2),
    _case("PP of a mixture, clipped", _clipped, pp=2, accumulation=4),
    _case("PP × EP, clipped", _clipped, pp=2, dp_shard=2, ep=2, accumulation=4),
    _case("PP × EP, shards beside, clipped", _clipped, pp=2, dp_shard=4, ep=2, accumulation=4),
    _case("PP × EP, replicas beside", pp=2, dp_replicate=2, dp_shard=2, ep=2, accumulation=4),
)

# Experts in one tensor, which compute as many tokens as have chosen them.
HUB_EXPERT_CASES: tuple[Case, ...] = (
    _case("Mixtral, clipped", _hub("Mixtral"), dp_shard=2, ep=2, default=True),
    _case("Qwen2Moe, clipped", _hub("Qwen2Moe"), dp_shard=2, ep=2),
    _case("Qwen3Moe, clipped", _hub("Qwen3Moe"), dp_shard=2, ep=2),
    _case("Olmoe, clipped", _hub("Olmoe"), dp_shard=2, ep=2),
    _case("GptOss, clipped", _hub("GptOss"), dp_shard=2, ep=2),
    _case("Mixtral, clipped", _hub("Mixtral"), dp_shard=4, ep=4),
    _case("Mixtral, shards beside, clipped", _hub("Mixtral"), dp_shard=4, ep=2),
    _case("Mixtral, gradients, accumulated, clipped", _hub("Mixtral"), dp_shard=2, ep=2, shard="gradients", accumulation=2),
    _case("Mixtral, optimizer, accumulated, clipped", _hub("Mixtral"), dp_shard=4, ep=2, shard="optimizer", accumulation=2),
    _case("Mixtral, recompute, clipped", _hub("Mixtral"), dp_shard=2, ep=2, recompute="full"),
    _case("Mixtral, replicas beside, clipped", _hub("Mixtral"), dp_replicate=2, dp_shard=2, ep=2),
    _case("Mixtral, more shards than experts of a rank, clipped", _hub("Mixtral"), dp_shard=8, ep=2),
    _case("Olmoe, clipped", _hub("Olmoe"), dp_shard=8, ep=8),
    _case("Qwen3Moe, replicas and shards beside, clipped", _hub("Qwen3Moe"), dp_replicate=2, dp_shard=4, ep=2),
    _case("PP × Mixtral, clipped", _hub("Mixtral"), pp=2, dp_shard=2, ep=2, accumulation=4),
)
