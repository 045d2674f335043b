"""Published steps of several devices as cases: FSDP, replicas and tensor parallelism over one machine and many.

Left out, because gpuwise forecasts no such steps yet: fp8 steps of shards, which are most of torchtitan's rows, compiled steps
of split layers, and asynchronous tensor parallelism; other frameworks than PyTorch (OneFlow, MXNet, TensorFlow, PaddlePaddle,
JAX).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from benchmarks.support.published_case import CHIPS, Case
from benchmarks.support.published_updates import of_nvidia_examples
from gpuwise.strategy import Mesh, Parallelism, Strategy

GIB = 2**30
# Links between machines as the publications name them: a 200 or 400 Gbit/s port a GPU, or one of 100 Gbit/s a machine.
MPT_NETWORK = {"A100-40GB": "ib-hdr", "A100-80GB": "ib-hdr", "H100-80GB": "ib-ndr"}
# Kernels of llm-foundry in 2023 over PyTorch's of today, fitted by `python -m benchmarks.fit_several`. Presumably they are
# FlashAttention in Triton (an early default of attn_impl; which kernel ran is published with no row) and a fused cross entropy
# (the default loss_fn of MPT). Forecasts of users do not have these factors.
FOUNDRY_KERNELS = (("attention", 1.6), ("attention_backward", 1.6), ("loss", 0.4), ("loss_backward", 0.4))
DLE_JOBS = {"SSD": "ssd300", "NCF": "ncf"}
EFFICIENTNETS = {"efficientnet-b0": "timm:efficientnet_b0", "efficientnet-b4": "timm:efficientnet_b4"}


def several_cases(table: pd.DataFrame) -> Iterator[Case]:
    """The rows of end_to_end.csv that ran on several devices, but for Lambda's, which are read with those of one."""
    yield from mpt(table)
    yield from _torchtitan(table)
    yield from _examples(table)
    yield from _dlperf(table)


def mpt(table: pd.DataFrame) -> Iterator[Case]:
    """MPT decoders under FSDP on 8 to 512 GPUs (llm-foundry). With mixed precision "PURE" gradients are reduced in bf16."""
    table = table[table.subsets.str.contains("llm_train_fsdp_mpt") & table.precision.isin(["amp-bf16", "bf16"])]
    for row in table.itertuples():
        devices, micro_batch = int(row.num_gpus), int(row.batch_per_gpu)
        accumulation = round(row.global_batch / (micro_batch * devices))
        if accumulation < 1 or accumulation * micro_batch * devices != row.global_batch:
            continue
        strategy = Strategy(
            precision="amp-bf16",
            micro_batch=micro_batch,
            accumulation=accumulation,
            recompute="full" if row.recompute == "full" else "none",
            mesh=Mesh(dp_shard=devices),
            parallelism=Parallelism(
                shard="gradients" if "zero2" in row.parallelism else "parameters",
                compress_gradients="mp=PURE" in row.parallelism,
            ),
        )
        size = (("seq_len", int(row.seq_len)),)
        case = _case(row, "MPT FSDP", f"mpt-{row.model.split('-')[1]}", strategy, size=size, network=MPT_NETWORK[row.gpu])
        yield replace(case, kernels=FOUNDRY_KERNELS)


def _torchtitan(table: pd.DataFrame) -> Iterator[Case]:
    """Llama 3.1 under FSDP2 in bf16, eager and with each block compiled, on 8 and 128 H100s with a 400 Gbit/s port each
    (pytorch/torchtitan)."""
    table = table[table.subsets.str.contains("memory_and_time_llm_fsdp") & (table.precision == "bf16")]
    for row in table[table.compile_or_fused_notes.isin(["eager", "torch.compile"])].itertuples():
        strategy = Strategy(
            precision="amp-bf16",
            micro_batch=int(row.batch_per_gpu),
            recompute=row.recompute,
            compile=row.compile_or_fused_notes == "torch.compile",
            mesh=Mesh(dp_shard=int(row.num_gpus)),
        )
        job = f"llama3-{row.model.split()[-1].lower()}"
        peak = int(row.peak_mem_gb * GIB) if row.peak_mem_gb > 0 else None
        yield _case(row, "torchtitan FSDP", job, strategy, size=(("seq_len", int(row.seq_len)),), network="ib-ndr", peak=peak)


def _examples(table: pd.DataFrame) -> Iterator[Case]:
    """EfficientNet, SSD300 and neural collaborative filtering on 4 to 64 GPUs (NVIDIA's DeepLearningExamples in PyTorch).

    As for one GPU, rows of EfficientNet on 32 GB V100s are left out. Machines are DGX: a 200 Gbit/s port an A100, four of 100
    Gbit/s for eight V100s. Collaborative filtering divides one batch among all GPUs; the table's batch is that of one.
    """
    table = table[table.subsets.str.contains("dle_train") & (table.num_gpus > 1) & (table.framework == "PyTorch")]
    for row in table.itertuples():
        job = DLE_JOBS.get(row.model) or EFFICIENTNETS.get(row.model_detail)
        if not job or not row.step_time_s > 0 or (row.gpu == "V100-32GB" and job.startswith("timm:")):
            continue
        images = row.model != "NCF"
        strategy = Strategy(
            precision=row.precision,
            micro_batch=int(row.batch_per_gpu),
            channels_last=images and row.precision == "amp-fp16",
            mesh=Mesh(dp_replicate=int(row.num_gpus)),
        )
        size = (("image_size", int(row.image_size)),) if images else ()
        network = "ib-hdr" if row.gpu.startswith("A100") else "ib-edr"
        yield _case(row, f"DLE {row.model.split('/')[-1]} on several GPUs", job, strategy, size=size, network=network)


def _dlperf(table: pd.DataFrame) -> Iterator[Case]:
    """ResNet-50 in PyTorch on 8 to 32 V100s, machines with one port of 100 Gbit/s (Oneflow-Inc/DLPerf)."""
    table = table[table.subsets.str.contains("dlperf") & (table.num_gpus > 1) & (table.model == "ResNet-50 v1.5")]
    for row in table[table.framework.isin(["PyTorch", "NGC PyTorch"])].itertuples():
        mesh = Mesh(dp_replicate=int(row.num_gpus))
        strategy = Strategy(precision=row.precision, micro_batch=int(row.batch_per_gpu), mesh=mesh)
        size = (("image_size", 224),)
        yield _case(row, "DLPerf resnet50 on several GPUs", "resnet50", strategy, size=size, network="ib-edr", serves="machine")


def _case(
    row: Any,
    subset: str,
    job: str,
    strategy: Strategy,
    *,
    size: tuple[tuple[str, int], ...],
    network: str,
    serves: str = "device",
    peak: int | None = None,
) -> Case:
    """A case on machines of at most eight GPUs."""
    devices = strategy.mesh.devices
    inside = min(8, devices)
    return Case(
        subset,
        job,
        strategy,
        size,
        CHIPS[row.gpu],
        inside,
        devices // inside,
        row.step_time_s,
        update_bytes=of_nvidia_examples(job),
        network=network,
        serves=serves,
        peak_bytes=peak,
    )
