"""Cases of context parallelism, of a Llama whose rotary positions are those of whole sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.dist.cases import Case
from tests.dist.language_jobs import language_job

from gpuwise.job import Job
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.strategy.parallelism import CONTEXTS

_llama = partial(language_job, "llama")


def _case(
    context: str,
    name: str = "CP",
    make_job: Callable[[], Job] = _llama,
    *,
    axes: dict[str, int],
    default: bool = False,
    sequence: bool = False,
    recompute: str = "none",
) -> Case:
    parallelism = Parallelism(context=context, sequence_parallel=sequence)
    strategy = Strategy(mesh=Mesh(**axes), parallelism=parallelism, recompute=recompute)
    return Case(f"{name}, {context}", strategy, make_job, default=default)


CONTEXT_PARALLEL_CASES: tuple[Case, ...] = (
    *(_case(context, axes={"cp": 2}, default=context != "all-to-all") for context in CONTEXTS),
    *(_case(context, axes={"cp": 4}) for context in CONTEXTS),
    # all-to-all splits heads, of which this model has four
    *(_case(context, axes={"cp": 8}) for context in CONTEXTS if context != "all-to-all"),
    *(_case(context, "CP, recompute", axes={"cp": 2}, recompute="full") for context in CONTEXTS),
    _case("gather", "CP, selective recompute", axes={"cp": 2}, recompute="selective"),
    *(
        _case(context, f"CP of {model}", partial(language_job, model), axes={"cp": 2})
        for model in ("gpt2", "bert")
        for context in CONTEXTS
    ),
)

CONTEXT_AND_OTHER_CASES: tuple[Case, ...] = (
    *(_case(context, "CP × FSDP2", axes={"cp": 2, "dp_shard": 2}) for context in CONTEXTS),
    *(_case(context, "CP × TP", axes={"cp": 2, "tp": 2}) for context in CONTEXTS),
    _case("gather", "CP × FSDP2", axes={"cp": 2, "dp_shard": 4}),
    _case("gather", "CP × HSDP", axes={"cp": 2, "dp_replicate": 2, "dp_shard": 2}),
    _case("gather", "CP × replicas", axes={"cp": 2, "dp_replicate": 2}),
    _case("ring", "CP × TP", axes={"cp": 4, "tp": 2}),
    _case("gather", "CP × FSDP2, recompute", axes={"cp": 2, "dp_shard": 2}, recompute="full"),
    _case("ring", "CP × TP, recompute", axes={"cp": 2, "tp": 2}, recompute="full"),
    _case("all-to-all", "CP × TP + sequence × FSDP2", axes={"cp": 2, "dp_shard": 2, "tp": 2}, sequence=True),
)
