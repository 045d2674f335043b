"""RunPod's prices of pods: GraphQL `gpuTypes` at https://api.runpod.io/graphql, JSON. graphql-spec.runpod.io.

Prices are dollars an hour of one device, memoryInGb is of one device. null and 0 mean that a kind of cloud does not rent the
device: no price, rather than a price of nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwise.refresh.listed import ListedRow, ParsedList, json_of, number, objects, text, unreadable

SOURCE = "RunPod's list of GPU types"
REGION = "global"
_FIELDS = "id displayName memoryInGb secureCloud communityCloud securePrice communityPrice secureSpotPrice communitySpotPrice"
_LOWEST = "lowestPrice(input: {gpuCount: 1}) { minVcpu minMemory minimumBidPrice uninterruptablePrice }"
REQUEST = {"query": f"query GpuTypes {{ gpuTypes {{ {_FIELDS} {_LOWEST} }} }}"}


def parse(documents: Sequence[bytes], *, provider: str = "runpod") -> ParsedList:
    """A row a type and kind of cloud, of one device each. Raises PriceListError."""
    if len(documents) != 1:
        raise unreadable(SOURCE, f"it is one document, not {len(documents)}")
    answer = json_of(documents[0], SOURCE)
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict) or "gpuTypes" not in data:
        raise unreadable(SOURCE, "it has no list `data.gpuTypes`")
    rows: list[ListedRow] = []
    for kind in objects(data["gpuTypes"], SOURCE, "data.gpuTypes"):
        lowest = kind.get("lowestPrice")
        host: Mapping[str, object] = lowest if isinstance(lowest, dict) else {}
        name, id_ = text(kind.get("displayName")), text(kind.get("id"))
        for cloud in ("secure", "community"):
            prices = {"on-demand": number(kind.get(f"{cloud}Price")), "spot": number(kind.get(f"{cloud}SpotPrice"))}
            if kind.get(f"{cloud}Cloud") is False or not prices["on-demand"]:
                continue
            rows.append(
                ListedRow(
                    provider,
                    f"{name or id_} {cloud}",
                    REGION,
                    tuple(each for each in (id_, name) if each),
                    number(kind.get("memoryInGb")),
                    1.0,
                    {terms: usd for terms, usd in prices.items() if usd is not None},
                    vcpus=number(host.get("minVcpu")),
                    host_memory_gib=number(host.get("minMemory")),
                )
            )
    return ParsedList(tuple(rows))
