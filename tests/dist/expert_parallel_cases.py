"""Cases of expert parallelism, of a Mixtral with four experts, or with eight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.dist.cases import Case
from tests.dist.language_jobs import language_job

from gpuwise.job import Job
from gpuwise.strategy import Mesh, Strategy

_mixtral = partial(language_job, "mixtral")
_clipped = partial(_mixtral, clip_norm=0.05)

_of_eight_experts = partial(language_job, "mixtral of eight experts")


def _case(
    name: str, make_job: Callable[[], Job] = _mixtral, *, default: bool = False, accumulation: int = 1, **axes: int
) -> Case:
    return Case(name, Strategy(mesh=Mesh(**axes), accumulation=accumulation), make_job, default=default)


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
)
