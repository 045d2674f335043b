"""Azure's retail prices: https://prices.azure.com/api/retail/prices, JSON, pages of up to 1,000 items.

learn.microsoft.com/rest/api/cost-management/retail-prices. An item is one meter of one size in one region. It names no
accelerator: only sizes that the catalog knows are taken. Sizes with an accelerator begin with N.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.refresh.listed import ListedRow, ParsedList, json_of, number, objects, text, unreadable

SOURCE = "Azure's retail prices"
FILTER = "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and contains(armSkuName, 'Standard_N')"
ACCELERATED = "Standard_N"


def next_page(document: bytes) -> str:
    """The address of the page after this one; "" after the last."""
    answer = json_of(document, SOURCE)
    return text(answer.get("NextPageLink")) if isinstance(answer, dict) else ""


def parse(documents: Sequence[bytes], *, provider: str = "azure") -> ParsedList:
    """A row a meter of Linux machines. Raises PriceListError."""
    rows: list[ListedRow] = []
    others = 0
    for document in documents:
        answer = json_of(document, SOURCE)
        if not isinstance(answer, dict) or "Items" not in answer:
            raise unreadable(SOURCE, "it has no list `Items`")
        for item in objects(answer["Items"], SOURCE, "Items"):
            size, meter, product = (text(item.get(key)) for key in ("armSkuName", "meterName", "productName"))
            windows = "Windows" in product or "Dedicated" in product or "Low Priority" in meter
            if not size.startswith(ACCELERATED) or windows or item.get("type") != "Consumption":
                others += 1
                continue
            usd, unit = number(item.get("retailPrice")), text(item.get("unitOfMeasure"))
            rows.append(
                ListedRow(
                    provider,
                    size,
                    text(item.get("armRegionName")) or "any",
                    (),
                    None,
                    None,
                    {} if usd is None else {"spot" if "Spot" in meter else "on-demand": usd},
                    currency=text(item.get("currencyCode")),
                    partial="" if unit == "1 Hour" else f"the price is for {unit or 'an unknown unit'}, not for an hour",
                )
            )
    return ParsedList(tuple(rows), without_accelerator=others)
