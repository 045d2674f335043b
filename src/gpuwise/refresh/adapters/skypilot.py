"""SkyPilot's catalog, schema v8: a CSV document a cloud. github.com/skypilot-org/skypilot-catalog, README.md.

Columns: InstanceType, AcceleratorName, AcceleratorCount, vCPUs, MemoryGiB, GpuInfo, Price, SpotPrice, Region, AvailabilityZone,
Arch. Their order and presence differ by cloud. Price is that of the whole instance, except in Google's file, which lists hosts
and accelerators apart. GpuInfo is a Python literal, sometimes with `null`; it is searched, never evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuwise.refresh.listed import ListedRow, ParsedList, number, text, unreadable
from gpuwise.refresh.tables import csv_rows

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
# Clouds whose GpuInfo has the memory of all devices together; others have that of one.
MEMORY_OF_ALL = {"vast"}
# No accelerator has so little memory, in MiB, nor so much in GB: below, the column of MiB holds GB, as in RunPod's file.
LEAST_MIB = 1024.0
APART = {"gcp": "SkyPilot lists Google's hosts and accelerators apart, and this price is of one of them alone"}
_SIZE = re.compile(r"'SizeInMiB': *([0-9.]+)")
_NAME = re.compile(r"'Name': *'([^']*)'")


def parse(documents: Sequence[bytes], *, provider: str) -> ParsedList:
    """The rows of one cloud's file. Raises PriceListError."""
    source = f"SkyPilot's catalog of {provider}"
    if len(documents) != 1:
        raise unreadable(source, f"it is one document, not {len(documents)}")
    rows: list[ListedRow] = []
    others = in_gb = 0
    for cells in csv_rows(documents[0], source, needed=NEEDED):
        name, instance = text(cells["AcceleratorName"]), text(cells["InstanceType"])
        if not name and provider not in APART:
            others += 1
            continue
        count = number(cells["AcceleratorCount"])
        size = _SIZE.search(cells.get("GpuInfo", ""))
        mib = number(size[1]) if size else None
        if mib is not None and mib < LEAST_MIB:
            mib, in_gb = mib * 1024, in_gb + 1
        elif mib is not None and provider in MEMORY_OF_ALL and count:
            mib /= count
        label = _NAME.search(cells.get("GpuInfo", ""))
        names = tuple(dict.fromkeys(each for each in (name, text(label[1]) if label else "") if each))
        prices = {"on-demand": number(cells["Price"]), "spot": number(cells.get("SpotPrice", ""))}
        rows.append(
            ListedRow(
                provider,
                instance or name,
                text(cells["Region"]) or "any",
                names,
                None if mib is None else mib / 1024,
                count,
                {terms: usd for terms, usd in prices.items() if usd is not None},
                vcpus=number(cells.get("vCPUs", "")),
                host_memory_gib=number(cells.get("MemoryGiB", "")),
                partial=APART.get(provider, ""),
            )
        )
    remark = f"the memory of {in_gb:,} rows, in a column of MiB, was read as GB"
    return ParsedList(tuple(rows), without_accelerator=others, remarks=(remark,) if in_gb else ())
