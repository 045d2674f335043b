"""Published runs of Megatron-Bridge (NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md and its archive).

What a table does not say is read from the recipes that it names (scripts/performance/configs of the same repository).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.support.bridge_precision import CURRENT_BLACKWELL, CURRENT_HOPPER, MXFP8, NVFP4, LowPrecision
from benchmarks.support.bridge_shape import SHAPES, RankShape
from benchmarks.support.bridge_step import CoreOptions
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import Mesh, Parallelism, Strategy

_SUBSET = "llm_train_megatron_hopper_blackwell"


@dataclass(frozen=True)
class System:
    """Machines of one kind. domain: devices that NVLink joins; network: GB/s of a device to other machines, one direction."""

    chip_id: str
    domain: int
    network: float


# NVIDIA's DGX user guides: a port of 400 Gbit/s for each H100, B200 and GB200, of 800 for each B300 and GB300.
# Of the 72 devices of a rack jobs take 64 (these run on 8, 64, 128 and 256).
SYSTEMS = {
    "H100-80GB": System("h100-80gb-sxm", 8, 50.0),
    "B200": System("b200-180gb-sxm", 8, 50.0),
    "B300": System("b300-288gb-sxm", 8, 100.0),
    "GB200": System("gb200-186gb", 64, 50.0),
    "GB300": System("gb300-288gb", 64, 100.0),
}


@dataclass(frozen=True)
class BridgeCase:
    """One published row.

    Attributes:
        model: its name in the table.
        precision: bf16, FP8 current scaling, MXFP8 or NVFP4.
        release: of the container.
        seconds: measured, a step.
    """

    model: str
    precision: str
    release: str
    system: System
    shape: RankShape
    strategy: Strategy
    options: CoreOptions
    seconds: float

    def cluster(self, catalog: Catalog) -> Cluster:
        chip, devices = catalog.chip(self.system.chip_id), self.strategy.mesh.devices
        inside = min(self.system.domain, devices)
        between = replace(catalog.link("ib-ndr"), per_direction_bytes_per_s=self.system.network * 1e9)
        return Cluster(
            chip,
            inside,
            devices // inside,
            inside=catalog.link(chip.link_id) if chip.link_id else None,
            between=between if devices > inside else None,
            between_serves="device",
        )


def bridge_cases(folder: Path) -> Iterator[BridgeCase | str]:
    """Every row of the group: a case, or why it is none."""
    table = pd.read_csv(folder / "published" / "end_to_end.csv", low_memory=False)
    for row in table[table.subsets.astype(str).str.contains(_SUBSET)].itertuples():
        yield _case(row)


def _case(row: Any) -> BridgeCase | str:
    model = str(row.model)
    shape = SHAPES.get(model.split(" (")[0])
    degrees = {name: int(n) for name, n in re.findall(r"(fsdp|tp|pp|cp|vp|ep)(\d+)", row.parallelism)}
    if shape is None:
        return f"{model}: its layers are not among the models here"
    system = SYSTEMS[str(row.gpu)]
    tp, pp, cp, ep, chunks = (degrees.get(name, 1) for name in ("tp", "pp", "cp", "ep", "vp"))
    devices, micro_batch = int(row.num_gpus), int(row.batch_per_gpu)
    dp = devices // (tp * pp * cp)
    chunks = chunks if pp > 1 else 1
    strategy = Strategy(
        precision="bf16",
        micro_batch=micro_batch,
        accumulation=round(row.global_batch / (dp * micro_batch)),
        # ep shares the devices of tp and of dp, which Mesh does not check here.
        mesh=Mesh(tp=tp, pp=pp, cp=cp, dp_shard=dp, ep=ep),
        parallelism=Parallelism(
            sequence_parallel=tp > 1,
            loss_parallel=True,
            context="ring",
            pipeline_schedule="interleaved-1f1b" if chunks > 1 else "1f1b",
            stages_per_rank=chunks,
        ),
    )
    name, low = _precision(row, system)
    release = str(row.date_or_commit).split("; ")[1].split(" ")[0]
    options = replace(_options(model, system, name, low), shards=degrees.get("fsdp", 0) > 0)
    rank = RankShape(
        shape,
        int(row.seq_len) // cp,
        tp,
        ep,
        permutations=1 if options.fused_dispatch or shape.experts is None else 2,
    )
    return BridgeCase(model, name, release, system, rank, strategy, options, row.step_time_s)


def _precision(row: Any, system: System) -> tuple[str, LowPrecision | None]:
    """The recipe of a row. A first value of two is with scales of tensors, one in parentheses with scales of blocks."""
    label, notes = str(row.compile_or_fused_notes), str(row.notes)
    hopper = system.chip_id.startswith("h100")
    if row.precision == "bf16":
        return "bf16", None
    if row.precision == "fp4":
        return "NVFP4", NVFP4
    blocks = "in parentheses" in notes or ("MX" in label and "FP8-CS (" not in label)
    if blocks and not hopper:
        return "MXFP8", MXFP8
    return "FP8", CURRENT_HOPPER if hopper else CURRENT_BLACKWELL


def _options(model: str, system: System, precision: str, low: LowPrecision | None) -> CoreOptions:
    """What the recipes turn on: llama31_llm_pretrain.py, qwen3_llm_pretrain.py, qwen3_workload_base_configs.py."""
    hopper, large = system.chip_id.startswith("h100"), "235B" in model
    return CoreOptions(
        low,
        tp_overlap=precision != "NVFP4" and not (large and hopper),
        expert_overlap=large and hopper,
        fused_dispatch=not large or system.domain > 8,
        domain=system.domain,
    )
