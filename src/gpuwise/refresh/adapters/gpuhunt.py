"""gpuhunt's catalog: a ZIP archive with a CSV document of a provider. github.com/dstackai/gpuhunt.

Columns: instance_name, location, price, cpu, memory, gpu_count, gpu_name, gpu_memory, spot, disk_size, gpu_vendor, flags,
cpu_arch, provider_data. On demand and spot are a row each. price is that of the whole instance, gpu_memory GB of one device.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Sequence

from gpuwise.refresh.listed import ListedRow, ParsedList, number, text, unreadable
from gpuwise.refresh.tables import csv_rows

NEEDED = ("instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot")
FILES = {"lambda": "lambdalabs", "verda": "datacrunch"}  # by provider where gpuhunt has another name
LARGEST_BYTES = 64 * 2**20  # of the document, unpacked
# Rows with these words among their flags are sold on other terms than by the hour: clusters, reservations, capacity blocks.
OTHER_TERMS = ("cluster", "dws", "calendar", "reserv", "block")
_ZONE = re.compile(r"-[a-f]$")  # of Google's locations: "us-central1-a"


def parse(documents: Sequence[bytes], *, provider: str) -> ParsedList:
    """The rows of one provider, from the archive or from its CSV document alone. Raises PriceListError."""
    source = f"gpuhunt's catalog of {provider}"
    if len(documents) != 1:
        raise unreadable(source, f"it is one document, not {len(documents)}")
    data = documents[0]
    if data[:2] == b"PK":
        data = _member(data, FILES.get(provider, provider), source)
    rows: list[ListedRow] = []
    others = 0
    for cells in csv_rows(data, source, needed=NEEDED):
        count, name = number(cells["gpu_count"]), text(cells["gpu_name"])
        if not count and not name:
            others += 1
            continue
        usd, spot = number(cells["price"]), cells["spot"].strip().lower()
        flags = text(cells.get("flags", ""))
        partial = ""
        if spot not in ("true", "false"):
            partial = f"spot is {spot[:20]!r}, neither True nor False"
        elif any(word in flags.lower() for word in OTHER_TERMS):
            partial = f"sold on other terms than by the hour ({flags[:60]})"
        location = text(cells["location"]) or "any"
        rows.append(
            ListedRow(
                provider,
                text(cells["instance_name"]),
                _ZONE.sub("", location) if provider == "gcp" else location,
                (name,) if name else (),
                number(cells["gpu_memory"]),
                count,
                {} if usd is None else {"spot" if spot == "true" else "on-demand": usd},
                vcpus=number(cells.get("cpu", "")),
                host_memory_gib=number(cells.get("memory", "")),
                partial=partial,
            )
        )
    return ParsedList(tuple(rows), without_accelerator=others)


def _member(archive: bytes, provider: str, source: str) -> bytes:
    """A provider's file of an archive, or its only one, unpacked up to a limit, which its header cannot change."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            files = [name for name in opened.namelist() if name.endswith(".csv")]
            name = f"{provider}.csv" if len(files) != 1 else files[0]
            with opened.open(name) as file:
                data = file.read(LARGEST_BYTES + 1)
    except KeyError:
        raise unreadable(source, f"the archive has no file {provider}.csv") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise unreadable(source, f"the archive is damaged ({error})") from None
    if len(data) > LARGEST_BYTES:
        raise unreadable(source, f"{name} unpacks to more than {LARGEST_BYTES:,} bytes")
    return data
