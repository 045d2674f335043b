"""Out of memory, explained."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gpuwise.cost.forecast import MemoryForecast
from gpuwise.errors import DoesNotFitError, JobError
from gpuwise.job import Job
from gpuwise.runtime.build.failure import job_failure
from gpuwise.runtime.health import out_of_memory
from gpuwise.runtime.health.out_of_memory import MemoryView, explain, is_out_of_memory
from gpuwise.strategy import Strategy

GIB = 2**30
CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB")
STRATEGY = Strategy(micro_batch=8)


def forecast(**by_category):
    total = sum(by_category.values())
    return MemoryForecast(total, total, total, 8 * GIB, by_category)


ACTIVATIONS = forecast(activation=5 * GIB, optimizer_state=3 * GIB, parameter=GIB)


def from_the_allocator():
    try:
        torch.empty(2**60, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError


def from_numpy():
    try:
        np.empty(2**60, dtype=np.uint8)
    except MemoryError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "requested"),
    [
        (CUDA, "2 GiB"),
        (MemoryError(), None),
        (OSError(12, "Cannot allocate memory"), None),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate "
                "4000000000 bytes. Error code 12 (Cannot allocate memory)"
            ),
            "3.73 GiB",
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), None),
    ],
)
def test_is_told_from_other_errors(error, requested):
    assert is_out_of_memory(error)
    what = explain(error).what
    assert what == f"the job ran out of memory{f' asking for {requested} more' if requested else ''}."


def test_the_real_ones():
    assert "asking for 1,020 PiB more" in explain(from_the_allocator()).what
    assert "asking for 1,020 PiB more" in explain(from_numpy()).what


def test_what_it_came_from_counts():
    outer = JobError("the step failed.")
    outer.__cause__ = CUDA
    assert is_out_of_memory(outer)
    assert "asking for 2 GiB" in explain(outer).what
    while_handling = ValueError("in the user's except")
    while_handling.__context__ = CUDA
    assert is_out_of_memory(while_handling)
    while_handling.__suppress_context__ = True
    assert not is_out_of_memory(while_handling)


def test_others_do_not():
    loop = ValueError("out of memory is what this is not")
    loop.__context__ = loop
    for error in (None, loop, RuntimeError("shapes differ"), KeyError("memory")):
        assert not is_out_of_memory(error)


def test_the_sentence():
    view = MemoryView(forecast=ACTIVATIONS, measured_peak_bytes=7 * GIB, strategy=STRATEGY, device=torch.device("meta"))
    error = explain(CUDA, view, where="gpt2 in step 3 (train.py:12)")
    assert isinstance(error, DoesNotFitError)
    assert error.what == (
        "gpt2 in step 3 (train.py:12) ran out of memory asking for 2 GiB more; meta has 8 GiB. The forecast's peak is 9 GiB, "
        "most of it activation 5 GiB and optimizer state 3 GiB. It had reached 7 GiB."
    )
    assert error.ways_out == (
        "a smaller --micro-batch with more --accumulate: same global batch, less memory",
        "--recompute full",
    )


@pytest.mark.parametrize(
    ("largest", "strategy", "ways"),
    [
        ("optimizer_state", STRATEGY, ["--optimizer adamw-8bit", "--offload optimizer"]),
        ("optimizer_state", STRATEGY.but(optimizer="adamw-8bit"), ["--offload optimizer", "--adapter lora"]),
        ("gradient", STRATEGY, ["--optimizer-in-backward", "--offload optimizer"]),
        ("gradient", STRATEGY.but(accumulation=2), ["--offload optimizer", "--adapter lora"]),
        ("parameter", STRATEGY, ["--offload parameters", "--adapter lora"]),
        ("parameter", STRATEGY.but(offload="parameters", adapter="lora"), [out_of_memory.SMALLER, "--recompute full"]),
        ("activation", STRATEGY.but(micro_batch=1), ["--recompute full", "--adapter lora"]),
        ("temporary", STRATEGY.but(recompute="full"), [out_of_memory.SMALLER, "--adapter lora"]),
    ],
)
def test_ways_out_are_those_not_taken_yet(largest, strategy, ways):
    view = MemoryView(forecast=forecast(**{"parameter": 1, largest: GIB}), strategy=strategy)
    assert list(explain(CUDA, view).ways_out) == ways


def test_a_batch_larger_than_the_example_is_named_first():
    example, small, large = ({"x": torch.zeros(8, length), "y": torch.zeros(8)} for length in (16, 17, 64))
    view = MemoryView(example=example, batch=[small, large, small], forecast=ACTIVATIONS, strategy=STRATEGY)
    error = explain(CUDA, view)
    assert "Batch['x'] is (8, 64), 4 times the example's (8, 16)." in error.what
    assert "y" not in error.what.split("Batch")[1]
    assert error.ways_out[0].startswith("batches no larger than the job's example")


@pytest.mark.parametrize(
    ("example", "batch"),
    [
        (torch.zeros(4), [{"x": torch.zeros(8)}]),
        (torch.zeros(8), [torch.zeros(4)]),
        (None, [torch.zeros(4)]),
        (torch.zeros(8), []),
    ],
)
def test_a_batch_that_cannot_be_compared_is_left_out(example, batch):
    assert explain(CUDA, MemoryView(example=example, batch=batch)).what == "the job ran out of memory asking for 2 GiB more."


def gpu(monkeypatch, *, free_bytes, reserved_bytes, allocated_bytes):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_bytes, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved_bytes)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated_bytes)
    of_80_gib = replace(ACTIVATIONS, capacity_bytes=80 * GIB)
    return MemoryView(device=torch.device("cuda:0"), strategy=STRATEGY, forecast=of_80_gib)


def test_other_processes(monkeypatch):
    view = gpu(monkeypatch, free_bytes=GIB, reserved_bytes=40 * GIB, allocated_bytes=39 * GIB)
    assert "cuda:0 has 80 GiB." in explain(CUDA, view).what
    assert explain(CUDA, view).what.endswith("Other processes hold 39 GiB of the device.")


def test_fragments(monkeypatch):
    view = gpu(monkeypatch, free_bytes=GIB, reserved_bytes=78 * GIB, allocated_bytes=60 * GIB)
    error = explain(CUDA, view)
    assert error.what.endswith("18 GiB are reserved and in no tensor: fragments.")
    assert error.ways_out[0].startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")


def test_a_gpu_that_does_not_answer(monkeypatch):
    view = gpu(monkeypatch, free_bytes=GIB, reserved_bytes=40 * GIB, allocated_bytes=39 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: from_a_broken_context())
    assert "Other processes" not in explain(CUDA, view).what


def from_a_broken_context():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_failing_job_is_explained():
    job = Job(model=lambda: nn.Linear(1, 1), batch=lambda n: torch.zeros(n, 1), loss=lambda m, x: m(x).sum(), name="toy")
    failed = job_failure(
        from_the_allocator(), job, doing="step 2", part=job.loss, memory=lambda: MemoryView(forecast=ACTIVATIONS)
    )
    assert isinstance(failed, DoesNotFitError)
    assert failed.what.startswith("toy in step 2 (")
    assert "The forecast's peak is 9 GiB" in failed.what
    other = job_failure(ValueError("shapes"), job, doing="step 2", part=job.loss, memory=pytest.fail)  # asked in vain
    assert type(other) is JobError
    assert other.what.endswith("ValueError: shapes.")
