"""AWS's Spot Instance Advisor: the share of machines that were interrupted in the last month, as a class. JSON.

aws.amazon.com/ec2/spot/instance-advisor reads https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json, which is not
documented: `ranges` has the classes (index, label, max: the upper end in percent), `spot_advisor` has region → system →
instance type → {r: class, s: savings}.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.refresh.listed import ListedRate, ParsedList, json_of, number, objects, text, unreadable

SOURCE = "AWS's Spot Instance Advisor"
SYSTEM = "Linux"
# The last class has no upper end ("over 20 %", written as 100): twice its lower end is taken, an assumption.
OPEN_CLASS_FROM = 50.0
OPEN_CLASS_SHARE = 0.40
# The file's upper ends are those of the next class's first percent (11 for "5-10%"): labels are what users see.
LABELLED_SHARE = {"<5%": 0.05, "5-10%": 0.10, "10-15%": 0.15, "15-20%": 0.20}


def parse(documents: Sequence[bytes], *, provider: str = "spot-advisor") -> ParsedList:
    """Rates by region and instance. Raises PriceListError."""
    if len(documents) != 1:
        raise unreadable(SOURCE, f"it is one document, not {len(documents)}")
    answer = json_of(documents[0], SOURCE)
    if not isinstance(answer, dict) or not isinstance(answer.get("spot_advisor"), dict):
        raise unreadable(SOURCE, "it has no table `spot_advisor`")
    classes: dict[int, tuple[float, str]] = {}
    for each in objects(answer.get("ranges"), SOURCE, "ranges"):
        index, label, most = number(each.get("index")), text(each.get("label")), number(each.get("max"))
        if index is None or most is None or not 0 < most <= 100 or index != int(index):
            raise unreadable(SOURCE, "a class of `ranges` has no index or no upper end")
        classes[int(index)] = (_share(label, most), label)
    rates = []
    for region, systems in answer["spot_advisor"].items():
        table = systems.get(SYSTEM) if isinstance(systems, dict) else None
        if table is None:
            continue
        if not isinstance(table, dict):
            raise unreadable(SOURCE, f"{region} has no table of instance types")
        for instance, figures in table.items():
            index = number(figures.get("r")) if isinstance(figures, dict) else None
            if index is None or index not in classes:
                raise unreadable(SOURCE, f"{instance} in {region} is in no class of `ranges`")
            share, label = classes[int(index)]
            rates.append(ListedRate(text(instance), text(region), share, label))
    return ParsedList(rates=tuple(rates))


def _share(label: str, most_percent: float) -> float:
    if label in LABELLED_SHARE:
        return LABELLED_SHARE[label]
    return OPEN_CLASS_SHARE if most_percent >= OPEN_CLASS_FROM else most_percent / 100
