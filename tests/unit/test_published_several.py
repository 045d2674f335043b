"""Published rows of several devices become cases: what each column means, on made-up rows."""

from __future__ import annotations

import pytest

pd = pytest.importorskip("pandas")

from benchmarks.support.published_several import several_cases  # noqa: E402

from gpuwise.strategy import Mesh  # noqa: E402

ROW = {
    "subsets": "llm_train_fsdp_mpt:gold",
    "framework": "PyTorch",
    "model": "MPT-3b",
    "model_detail": "",
    "precision": "amp-bf16",
    "gpu": "H100-80GB",
    "num_gpus": 16.0,
    "batch_per_gpu": 4.0,
    "global_batch": 128.0,
    "seq_len": "2048",
    "image_size": float("nan"),
    "recompute": "full",
    "parallelism": "fsdp full_shard (zero3); fsdp mp=DEFAULT",
    "compile_or_fused_notes": "eager",
    "step_time_s": 2.5,
    "peak_mem_gb": float("nan"),
}


def cases_of(**changes):
    return list(several_cases(pd.DataFrame([{**ROW, **changes}])))


def test_fsdp_over_two_machines():
    (case,) = cases_of()
    assert (case.job, case.chip_id, case.count, case.machines, case.seconds) == ("mpt-3b", "h100-80gb-sxm", 8, 2, 2.5)
    assert case.size == (("seq_len", 2048),)
    assert case.strategy.mesh == Mesh(dp_shard=16)
    assert (case.strategy.micro_batch, case.strategy.accumulation, case.strategy.recompute) == (4, 2, "full")
    assert case.strategy.parallelism.shard == "parameters"
    assert not case.strategy.parallelism.compress_gradients
    assert (case.network, case.serves) == ("ib-ndr", "device")


def test_sharding_and_precision_of_the_reduction():
    (case,) = cases_of(parallelism="fsdp shard_grad_op (zero2); fsdp mp=PURE")
    assert case.strategy.parallelism.shard == "gradients"
    assert case.strategy.parallelism.compress_gradients


def test_batches_that_do_not_divide_are_left_out():
    assert not cases_of(global_batch=100.0)


def test_rows_of_torchtitan_with_their_memory():
    row = {"subsets": "memory_and_time_llm_fsdp:gold", "model": "Llama 3.1 8B", "precision": "bf16", "recompute": "selective"}
    (case,) = cases_of(**row, gpu="H100-96GB-HBM2e-500W", num_gpus=8.0, peak_mem_gb=82.4)
    assert (case.job, case.chip_id, case.strategy.recompute) == ("llama3-8b", "h100-96gb-hbm2e", "selective")
    assert case.peak_bytes == pytest.approx(82.4 * 2**30)
    assert not case.strategy.compile
    (case,) = cases_of(**row, gpu="H100-96GB-HBM2e-500W", compile_or_fused_notes="torch.compile")
    assert case.strategy.compile
    assert not cases_of(**row, gpu="H100-96GB-HBM2e-500W", compile_or_fused_notes="torch.compile; vanilla TP")


def test_replicas_whose_machine_has_one_port():
    row = {"subsets": "dlperf_v100_multinode:gold", "model": "ResNet-50 v1.5", "gpu": "V100-16GB", "precision": "amp-fp16"}
    (case,) = cases_of(**row, num_gpus=32.0)
    assert case.strategy.mesh == Mesh(dp_replicate=32)
    assert (case.count, case.machines, case.network, case.serves) == (8, 4, "ib-edr", "machine")
    assert not cases_of(**row, framework="MXNet")
