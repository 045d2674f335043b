"""Published runs of Megatron-LM and Megatron-DeepSpeed: a model, a cluster and a strategy of ours, and the measured seconds.

Groups: "one machine" (composed of traced layers, see composed_steps) and "several machines" (VIA-Research/vTrain, its
validation data), "Megatron paper" (Korthikanti et al. 2022, arXiv:2205.05198, table 5) and "bigscience"
(bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.support.megatron_shape import GptShape
from benchmarks.support.megatron_trainer import BIGSCIENCE_BF16, BIGSCIENCE_FP16, MEGATRON_2022, MEGATRON_DEEPSPEED, Trainer
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import Mesh, Parallelism, Strategy

_VTRAIN = {"vTrain single-node": "one machine", "vTrain multi-node": "several machines"}
_PADDING = 128  # of the vocabulary of each tensor-parallel rank: Megatron-LM's --make-vocab-size-divisible-by
# hidden, layers, heads; pp, chunks a rank, batch, micro-batch; seconds with full recompute, and with sequence parallelism and
# selective recompute (arXiv:2205.05198, tables 3 and 5). Sequences of 2,048, 51,200 words, tp 8.
_PAPER = (
    ("22B", (6144, 48, 64), (1, 1, 4, 4), (1.42, 1.10)),
    ("175B", (12288, 96, 96), (8, 3, 64, 1), (18.13, 13.75)),
    ("530B", (20480, 105, 128), (35, 3, 280, 1), (49.05, 37.83)),
    ("1T", (25600, 128, 160), (64, 1, 512, 1), (94.42, 71.49)),
)
# GB/s between machines of Jean Zay. An all-reduce of 4 GB on 4 x 8 A100 takes one of four Omni-Path ports of 100 Gbit/s and
# reaches a bus bandwidth of 40.5 Gbit/s (bigscience-workshop/bigscience, experiments/bandwidth/all_reduce_bench-a100-n4.txt);
# several rings and sends are taken to use all four. That is 0.92 of a line rate (cost/data/network.toml, infiniband).
_JEAN_ZAY = 4 * 40.5 / 8 / 0.92
# Hidden, layers of bigscience's models before and after "Rebalancing layers", as named above its tables (see
# megatron_trainer), and of those with 182B parameters by the first line of the table.
_BIGSCIENCE_FP16 = {"GPT 177B": (12288, 96), "GPT 181B": (14336, 72), "GPT 187B": (13824, 80), "GPT 196B": (13824, 84)}
_BIGSCIENCE_BF16 = {
    "GPT 176B": (14336, 70),
    "GPT 178B": (13312, 82),
    "GPT 184B": (12288, 100),
    "GPT 203B": (13312, 94),
}
_TABLES_OF_182B = {
    **dict.fromkeys((693, 748, 854), (13312, 84)),
    **dict.fromkeys((702, 736, 828, 865, 879), (13824, 78)),
}


@dataclass(frozen=True)
class MegatronCase:
    """One published row.

    Attributes:
        group: of the table.
        shape: the model.
        strategy: recompute "selective" is attention's core.
        chip_id: in the catalog.
        network: GB/s of one machine to others, one direction.
        seconds: measured, a step.
        peak_bytes: measured memory of a device; None where it is not published.
        trainer: what ran it.
        peer_seconds: what Calculon forecasts; None where it was not run.
    """

    group: str
    shape: GptShape
    strategy: Strategy
    chip_id: str
    network: float
    seconds: float
    peak_bytes: float | None = None
    trainer: Trainer = MEGATRON_DEEPSPEED
    peer_seconds: float | None = None

    @property
    def devices(self) -> int:
        return self.strategy.mesh.devices

    def cluster(self, catalog: Catalog) -> Cluster:
        """Machines of eight GPUs, or one of fewer, whose network serves the machine."""
        chip, inside = catalog.chip(self.chip_id), min(8, self.devices)
        machines = self.devices // inside
        hdr = catalog.link("ib-hdr")
        between = replace(hdr, per_direction_bytes_per_s=self.network * 1e9)
        return Cluster(
            chip,
            inside,
            machines,
            inside=catalog.link(chip.link_id) if chip.link_id and inside > 1 else None,
            between=between if machines > 1 else None,
        )


def padded(vocabulary: int, tp: int) -> int:
    """The vocabulary as Megatron-LM pads it."""
    return -(-vocabulary // (_PADDING * tp)) * _PADDING * tp


def megatron_cases(folder: Path) -> Iterator[MegatronCase]:
    """All rows that can be expressed."""
    table = pd.read_csv(folder / "published" / "distributed.csv", low_memory=False)
    yield from _vtrain(table)
    yield from _paper()
    yield from _bigscience(pd.read_csv(folder / "published" / "end_to_end.csv", low_memory=False))


def _vtrain(table: pd.DataFrame) -> Iterator[MegatronCase]:
    """Megatron-DeepSpeed on A100s of 80 GB; four HDR ports a machine (inter_node_bandwidth of vTrain's src/config.py)."""
    for row in table[table.system_source.isin(list(_VTRAIN))].itertuples():
        tp, pp, dp, micro_batch = int(row.tp), int(row.pp), int(row.dp), int(row.micro_batch)
        accumulation = round(row.global_batch / (dp * micro_batch))
        if accumulation * dp * micro_batch != row.global_batch:
            continue
        shape = GptShape(int(row.hidden), int(row.layers), int(row.heads), int(row.seq), padded(int(row.vocab), tp))
        yield MegatronCase(
            _VTRAIN[row.system_source],
            shape,
            Strategy(
                precision="bf16",
                micro_batch=micro_batch,
                accumulation=accumulation,
                recompute=row.activation_recompute,
                mesh=Mesh(tp=tp, pp=pp, dp_replicate=dp),
                parallelism=Parallelism(loss_parallel=True),
            ),
            "a100-80gb-sxm",
            100.0,
            row.measured_step_time_s,
            peer_seconds=row.predicted_by_peer,
        )


def _paper() -> Iterator[MegatronCase]:
    """Eight HDR ports a machine (Selene; section 6 of the paper)."""
    for _, (hidden, layers, heads), (pp, chunks, batch, micro_batch), times in _PAPER:
        for seconds, recompute in zip(times, ("full", "selective"), strict=True):
            yield MegatronCase(
                "Megatron paper",
                GptShape(hidden, layers, heads, 2048, 51_200),
                Strategy(
                    precision="bf16",
                    micro_batch=micro_batch,
                    accumulation=batch // micro_batch,
                    recompute=recompute,
                    mesh=Mesh(tp=8, pp=pp),
                    parallelism=Parallelism(
                        sequence_parallel=recompute == "selective",
                        loss_parallel=True,
                        pipeline_schedule="interleaved-1f1b" if chunks > 1 else "1f1b",
                        stages_per_rank=chunks,
                    ),
                ),
                "a100-80gb-sxm",
                200.0,
                seconds,
                trainer=MEGATRON_2022,
            )


def _bigscience(table: pd.DataFrame) -> Iterator[MegatronCase]:
    """Models on 384 GPUs of Jean Zay whose width the page names: 64 heads where the row names no others, 250k
    words."""
    table = table[table.subsets.astype(str).str.contains("bigscience") & (table.num_gpus == 384)]
    for row in table.itertuples():
        found, degrees = _bigscience_model(row), dict(re.findall(r"(dp|tp|pp|zs)(\d+)", row.parallelism))
        tp, pp, dp = (int(degrees[name]) for name in ("tp", "pp", "dp"))
        micro_batch = int(row.batch_per_gpu)
        accumulation = round(row.global_batch / (dp * micro_batch))
        if found is None or accumulation * dp * micro_batch != row.global_batch or degrees.get("zs", "1") == "0":
            continue
        (hidden, layers), trainer = found
        heads = re.search(r"NHEADS=(\d+)", row.notes)
        yield MegatronCase(
            "bigscience",
            GptShape(hidden, layers, int(heads.group(1)) if heads else 64, 2048, padded(250_000, 8)),
            Strategy(
                precision="bf16",
                micro_batch=micro_batch,
                accumulation=accumulation,
                recompute="full",
                mesh=Mesh(tp=tp, pp=pp, dp_replicate=dp),
                parallelism=Parallelism(loss_parallel=True),
            ),
            "a100-80gb-sxm",
            _JEAN_ZAY,
            row.step_time_s,
            peak_bytes=row.peak_mem_gb * 2**30 if row.peak_mem_gb > 0 else None,
            trainer=trainer,
        )


def _bigscience_model(row: Any) -> tuple[tuple[int, int], Trainer] | None:
    """Width and depth, and the trainer; None where the page does not name them. Two models have 182B parameters: their tables
    are told apart by the lines of the page."""
    line = int(row.source_path.rpartition("#L")[2])
    if row.model == "GPT 182B":
        return (_TABLES_OF_182B[line], BIGSCIENCE_FP16) if line in _TABLES_OF_182B else None
    if row.model in _BIGSCIENCE_BF16:
        return _BIGSCIENCE_BF16[row.model], BIGSCIENCE_BF16
    return (_BIGSCIENCE_FP16[row.model], BIGSCIENCE_FP16) if row.model in _BIGSCIENCE_FP16 else None
