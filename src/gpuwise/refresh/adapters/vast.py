"""Vast.ai's open asks: `POST https://console.vast.ai/api/v0/bundles/`, JSON. docs.vast.ai/api.

Each offer is a bundle of num_gpus devices of one host. dph_total is dollars an hour of the whole bundle with the requested
disk, min_bid the lowest bid at which an interruptible instance runs now, gpu_ram MiB of one device. A marketplace's list is
reduced to the lowest ask of each number of devices of each chip, the key under which the catalog keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.refresh.listed import ListedRow, ParsedList, json_of, number, objects, text, unreadable

SOURCE = "Vast.ai's open asks"
REGION = "marketplace"
# The body of the request: what can be rented now, on demand. 64 GB of disk hold a container and a data set of some size.
REQUEST = {
    "rentable": {"eq": True},
    "rented": {"eq": False},
    "type": "on-demand",
    "order": [["dph_total", "asc"]],
    "allocated_storage": 64.0,
    "limit": 5000,
}


def parse(documents: Sequence[bytes], *, provider: str = "vast") -> ParsedList:
    """A row an ask. Raises PriceListError."""
    rows: list[ListedRow] = []
    for document in documents:
        answer = json_of(document, SOURCE)
        if not isinstance(answer, dict) or "offers" not in answer:
            raise unreadable(SOURCE, "it has no list `offers`")
        for offer in objects(answer["offers"], SOURCE, "offers"):
            name, count, mib = text(offer.get("gpu_name")), number(offer.get("num_gpus")), number(offer.get("gpu_ram"))
            total, bid = number(offer.get("dph_total")), number(offer.get("min_bid"))
            prices = {"on-demand": total if total is not None else number(offer.get("dph_base")), "spot": bid}
            ram_mb, cores = number(offer.get("cpu_ram")), number(offer.get("cpu_cores_effective"))
            rented = offer.get("rented") is True or offer.get("rentable") is False
            rows.append(
                ListedRow(
                    provider,
                    f"{count:g}x {name}" if count else name,
                    REGION,
                    (name,),
                    None if mib is None else mib / 1024,
                    count,
                    {terms: usd for terms, usd in prices.items() if usd is not None},
                    vcpus=cores,
                    host_memory_gib=None if ram_mb is None else ram_mb / 1024,
                    partial="it is rented already" if rented else "",
                    by_chip=True,
                )
            )
    return ParsedList(tuple(rows))
