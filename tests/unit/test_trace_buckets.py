"""The buckets of replicas, against PyTorch's own assignment and against recorded ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from test_timeline_streams import llama_job
from test_trace_sharded import gpt_job

from gpuwise.job import Job
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.parallel.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, buckets_of
from gpuwise.trace.parallel.ranks import rank_steps
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.tracing import record


@given(st.lists(st.integers(1, 40 * 2**20), min_size=1, max_size=60))
def test_buckets_are_those_of_pytorch(elements: list[int]) -> None:
    tensors = [torch.empty(count, device="meta", dtype=torch.bfloat16) for count in elements]
    assigned, _ = dist._compute_bucket_assignment_by_size(tensors, [FIRST_BUCKET_BYTES, BUCKET_BYTES])
    assert buckets_of(tensor.nbytes for tensor in tensors) == len(assigned)


def test_the_first_bucket_is_as_small_as_pytorchs() -> None:
    assert FIRST_BUCKET_BYTES == dist._DEFAULT_FIRST_BUCKET_BYTES


@pytest.mark.parametrize("job", [llama_job(), gpt_job()], ids=["llama", "tied gpt"])
@pytest.mark.parametrize("mesh", [Mesh(dp_replicate=8), Mesh(pp=3, dp_replicate=2)])
def test_composed_replicas_reduce_as_often_as_recorded_ones(job: Job, mesh: Mesh) -> None:
    strategy = Strategy(mesh=mesh, precision="amp-bf16", accumulation=mesh.pp)
    whole = record(job, strategy.but(mesh=Mesh()))
    composed = rank_steps(lambda _: whole, strategy)[0]
    assert reductions(composed.communication) == reductions(split_communication(record(job, strategy))[1])


def reductions(communication) -> tuple[int, int]:
    own = [each for each in communication.collectives if each.group.axis == "dp_replicate"]
    return sum(each.calls for each in own), sum(each.payload_bytes for each in own)
