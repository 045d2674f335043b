"""Timed collectives of the reference measurements, by device and group of ranks.

Payloads are the whole tensor of a call, as in cost.network: what nccl-tests calls the size. The tables of pipeweave and vidur
time calls one by one from the host, so that calls below SMALLEST_BYTES last as long as their launch: 30 to 70 µs at
every size. A step launches its calls ahead, so those rows are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip, Link
from gpuwise.trace.header import RankGroup

SMALLEST_BYTES = 4 * 2**20
_BYTES = {"half": 2, "int8": 1}
_OPERATIONS = {"alltoall": "all_to_all", "send_recv": "send"}


@dataclass(frozen=True)
class TimedCalls:
    """Calls of one collective in one group of ranks.

    Attributes:
        device: what is kept out together as an unseen device.
        table: name of the table.
        operation: of COLLECTIVES.
        group: the ranks.
        cluster: the devices and their links.
        payload_bytes: of each call.
        seconds: of each call.
    """

    device: str
    table: str
    operation: str
    group: RankGroup
    cluster: Cluster
    payload_bytes: np.ndarray
    seconds: np.ndarray


def timed_calls(reference: Path) -> list[TimedCalls]:
    """All calls of the reference folder whose links are known."""
    machines, folder = _Machines(Catalog()), reference / "kernels"
    return [
        *_nccl(folder / "nccl.parquet", machines),
        *_single_node(folder / "nccl_allreduce_single_node.parquet", machines),
        *_pipeweave(folder / "collectives.parquet", machines),
        *_vidur(folder / "network_collectives.parquet", machines),
    ]


class _Machines:
    """The machines of the tables, by the tables' names."""

    def __init__(self, catalog: Catalog) -> None:
        link = catalog.link
        self._chip: Chip = catalog.chip("h100-80gb-sxm")
        nvlink3, nvlink4, bridge = link("nvlink3"), link("nvlink4"), link("nvlink3-bridge-a100")
        # Of four cards in bridged pairs, half of a ring's hops take the bridges: what they leave is not crowded.
        pcie4, pcie5 = (replace(link(f"pcie{n}x16"), fabric="switch") for n in (4, 5))
        through_host = replace(link("pcie4x16"), technology="pcie-through-host")
        self._machines: dict[str, tuple[str, Link, int]] = {
            "a100_sxm": ("A100", nvlink3, 8),
            "h100_sxm": ("H100", nvlink4, 8),
            "b200_sxm": ("B200", link("nvlink5"), 8),
            "gb200": ("B200", link("nvlink5-nvl72"), 4),
            "rtx_pro_6000_server": ("RTX PRO 6000", link("pcie5x16"), 8),
            "a100": ("A100", nvlink3, 8),
            "v100": ("V100", link("nvlink2"), 8),
            "H20": ("H20", nvlink4, 8),
            "H800": ("H800", replace(nvlink4, per_direction_bytes_per_s=200e9), 8),  # 8 of 18 links
            "H100": ("H100 four", replace(nvlink4, fabric="mesh", domain_devices=4, reduces_in_switch=False), 4),
            "A100": ("A100", nvlink3, 8),
            "RTX PRO 6000 S": ("RTX PRO 6000", link("pcie5x16"), 4),
            "RTX 6000 Ada": ("RTX 6000 Ada", through_host, 2),
            "a100_dgx": ("A100", nvlink3, 8),
            "h100_dgx": ("H100", nvlink4, 8),
            "a100_pairwise_nvlink 2": ("A100 pair", bridge, 2),
            "h100_pairwise_nvlink 2": ("H100 pair", bridge, 2),
            "a100_pairwise_nvlink 4": ("A100 PCIe", pcie4, 4),
            "h100_pairwise_nvlink 4": ("H100 PCIe", pcie5, 4),
        }

    def calls(self, name: str, table: str, operation: str, ranks: int, payload: np.ndarray, seconds: np.ndarray) -> TimedCalls:
        """Calls inside one machine."""
        device, link, most = self._machines[name]
        cluster = Cluster(self._chip, most, inside=link)
        return TimedCalls(device, table, operation, RankGroup("ranks", ranks, 1), cluster, payload, seconds)


def _nccl(path: Path, machines: _Machines) -> Iterator[TimedCalls]:
    """ai-dynamo/aiconfigurator: messages in elements, milliseconds. Its rows of half and int8 are the same calls."""
    table = pd.read_parquet(path)
    table["bytes"] = table.message_elements * table.nccl_dtype.map(_BYTES)
    of_half = table[table.nccl_dtype == "half"]
    for (name, operation, ranks), rows in of_half.groupby(["device", "op_name", "num_gpus"]):
        payload, seconds = rows.bytes.to_numpy(float), rows.latency.to_numpy(float) / 1e3
        yield machines.calls(name, "aiconfigurator", _OPERATIONS.get(operation, operation), ranks, payload, seconds)


def _single_node(path: Path, machines: _Machines) -> Iterator[TimedCalls]:
    """VIA-Research/vTrain: nccl-tests from 1 MiB to 1 GiB."""
    for (name, ranks), rows in pd.read_parquet(path).groupby(["gpu", "num_gpus"]):
        payload, seconds = rows.size_bytes.to_numpy(float), rows.oop_time_ns.to_numpy(float) / 1e9
        yield machines.calls(name, "vTrain", "all_reduce", ranks, payload, seconds)


def _pipeweave(path: Path, machines: _Machines) -> Iterator[TimedCalls]:
    """zksainx/pipeweave: medians in milliseconds."""
    table = pd.read_parquet(path)
    for (name, operation, ranks), rows in table[table["size"] >= SMALLEST_BYTES].groupby(["gpu", "op", "num_workers"]):
        payload, seconds = rows["size"].to_numpy(float), rows["median"].to_numpy(float) / 1e3
        yield machines.calls(name, "pipeweave", _OPERATIONS.get(operation, operation), ranks, payload, seconds)


def _vidur(path: Path, machines: _Machines) -> Iterator[TimedCalls]:
    """microsoft/vidur: medians in milliseconds.

    Left out: calls across machines, whose network is not named; A40 pairs, whose 4 GB/s are no NVLink; the sends of H100 pairs,
    which are the rows of A100 pairs once more.
    """
    table = pd.read_parquet(path)
    inside = table[(table["size"] >= SMALLEST_BYTES) & (table.num_workers == table.devices_per_node)]
    for (name, operation, ranks), rows in inside.groupby(["topology", "op", "num_workers"]):
        if name == "a40_pairwise_nvlink" or (name == "h100_pairwise_nvlink" and operation == "send_recv"):
            continue
        payload = rows["size"].to_numpy(float)
        seconds = rows[f"time_stats.{operation}.median"].to_numpy(float) / 1e3
        machine = f"{name} {ranks}" if "pairwise" in name else name
        yield machines.calls(machine, "vidur", _OPERATIONS.get(operation, operation), ranks, payload, seconds)
