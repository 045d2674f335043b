"""Claims of money: buying against renting, spot."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from benchmarks.claims.claim import Call, Claim, Published, Row, share, unit, usd

V100_PLAN = Call("plan", "resnet50", (("epochs", 90), ("on", "v100-sxm2-16gb"), ("own", "v100-sxm2-16gb"), ("limit", None)))
hours = unit("hours", figures=4)
per_hour = unit("dollars an hour")


def offered(filter: str) -> Call:
    return Call("api.offers", filter)


def cheapest(terms: str, *, single: bool = False) -> Any:
    """Dollars an hour and device of the cheapest offer under these terms."""

    def read(offers: Any) -> float:
        return min(o.usd_per_device_hour for o in offers if o.terms == terms and (o.count == 1 or not single))

    return read


def savings(offers: Any) -> dict[tuple[str, str], float]:
    """Provider and chip -> median saving of spot over on-demand, of a machine in a region; stale prices are left out."""
    by_machine: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for o in offers:
        if not o.stale:
            by_machine[o.provider, o.chip_id, o.instance, o.region][o.terms] = o.usd_per_hour
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (provider, chip, *_), prices in by_machine.items():
        if "spot" in prices and "on-demand" in prices:
            found[provider, chip].append(1 - prices["spot"] / prices["on-demand"])
    return {key: statistics.median(values) for key, values in found.items()}


def _among(test: Callable[[str, str], bool], end: str) -> Any:
    """The least or most that pairs which pass a test save."""
    pick = min if end == "least" else max
    return lambda offers: pick(saving for key, saving in savings(offers).items() if test(*key))


def _plan_of(terms: str, provider: str) -> Any:
    def read(result: Any) -> Any:
        return next(p for p in result.plans if p.offer.terms == terms and p.offer.provider == provider and p.count == 1)

    return read


def _cost(terms: str, provider: str) -> Any:
    return lambda result: float(_plan_of(terms, provider)(result).usd.value)


def _hourly(terms: str, provider: str) -> Any:
    def read(result: Any) -> float:
        plan = _plan_of(terms, provider)(result)
        return float(plan.usd.value / plan.hours)

    return read


def _break_even(price: float) -> Any:
    return lambda rent, power: price / (rent - power)


V100_BUY = Claim(
    name="v100-654-hours",
    said="Buying a V100 breaks even against renting it at $3.06 an hour after 654 hours.",
    verdict="right under conditions",
    numbers="2,000 dollars at 3.06 are {claimed}, with electricity {power_too}; against spot {spot_rent}, against a "
    "marketplace {cheap_rent}",
    conditions="The division is right for a card of 2,000 dollars, a host that is there already, and AWS on demand. Today "
    "neither price is what one has to pay: the same V100 is offered from {cheapest} on demand and from {spot} on spot, and "
    "used 16 GB modules were to be had from 56 dollars in 2025 (they need a board made for them).",
    rows=(
        Row("claimed", "2,000 dollars over 3.06 dollars an hour", "2000 / 3.06", lambda: 2000 / 3.06, hours, (650, 660)),
        Row(
            "aws",
            "AWS p3.2xlarge, on demand",
            offered("v100-sxm2-16gb provider=aws"),
            cheapest("on-demand", single=True),
            per_hour,
            (3.05, 3.07),
        ),
        Row("spot", "AWS, a V100 on spot", offered("v100-sxm2-16gb provider=aws"), cheapest("spot"), per_hour, (0.1, 1.5)),
        Row(
            "cheapest",
            "the cheapest V100 16 GB on demand",
            offered("v100-sxm2-16gb"),
            cheapest("on-demand"),
            per_hour,
            (0.05, 1.0),
        ),
        Row("power", "electricity of one's own V100 and its host", V100_PLAN, _hourly("owned", "own"), per_hour, (0.03, 0.1)),
        Row(
            "power_too", "2,000 dollars, electricity counted, against AWS on demand", ("aws", "power"), _break_even(2000), hours
        ),
        Row(
            "cheap_rent",
            "the same against the cheapest on demand",
            ("cheapest", "power"),
            _break_even(2000),
            hours,
            (1500, 1e6),
        ),
        Row("spot_rent", "the same against AWS spot", ("spot", "power"), _break_even(2000), hours),
        Row(
            "used", "56 dollars instead of 2,000, against the cheapest on demand", ("cheapest", "power"), _break_even(56), hours
        ),
        *(
            Row(key, f"ResNet-50, 90 epochs, one V100, {what}", V100_PLAN, _cost(terms, provider), usd)
            for key, what, terms, provider in (
                ("plan_own", "owned (electricity)", "owned", "own"),
                ("plan_spot", "AWS spot, interruptions counted", "spot", "aws"),
                ("plan_aws", "AWS on demand", "on-demand", "aws"),
            )
        ),
    ),
    published=(
        Published(
            "used V100 SXM2 16 GB",
            "from about 56 dollars (400 RMB)",
            "a buyer's research on r/LocalLLaMA (post 1nokzcf)",
            "2025",
        ),
        Published("the V100 when it was new", "about 11,000 dollars", "reports of shops", "", checked=False),
    ),
)

_ALL = offered("")

SPOT = Claim(
    name="spot-saves",
    said="Spot instances save 60 to 90 %.",
    verdict="right under conditions",
    numbers="median saving {median}, from {least} to {most}; {inside} of {pairs} provider and chip pairs inside 60 to 90 %",
    conditions="Right on AWS ({aws_least} to {aws_most}), for TPUs and at Nebius; GPUs on Google Cloud save {gcp_gpu_least} "
    "to {gcp_gpu_most}, and at Hyperstack, RunPod and CoreWeave {others_least} to {others_most}. Nor is what the price saves "
    "what a run saves: interruptions and checkpoints cost time, and without checkpoints a long run may never end.",
    rows=(
        Row(
            "pairs",
            "pairs of provider and chip that have both prices, not stale",
            _ALL,
            lambda o: float(len(savings(o))),
            lambda x: f"{x:.0f}",
            (15, 1000),
        ),
        Row("median", "median saving of a pair", _ALL, lambda o: statistics.median(savings(o).values()), share, (0.45, 0.75)),
        Row("least", "least", _ALL, lambda o: min(savings(o).values()), share, (0.1, 0.4)),
        Row("most", "most", _ALL, lambda o: max(savings(o).values()), share, (0.8, 0.95)),
        Row(
            "inside",
            "pairs inside 60 to 90 %",
            _ALL,
            lambda o: float(sum(0.595 <= s <= 0.905 for s in savings(o).values())),
            lambda x: f"{x:.0f}",
        ),
        *(
            Row(f"{key}_{end}", f"{what}: {end}", _ALL, _among(test, end), share)
            for key, what, test in (
                ("aws", "AWS", lambda p, c: p == "aws"),
                ("tpu", "TPUs", lambda p, c: c.startswith("tpu")),
                ("gcp_gpu", "GPUs on Google Cloud", lambda p, c: p == "gcp" and not c.startswith("tpu")),
                ("nebius", "Nebius", lambda p, c: p == "nebius"),
                ("others", "Hyperstack, RunPod, CoreWeave", lambda p, c: p in ("hyperstack", "runpod", "coreweave")),
            )
            for end in ("least", "most")
        ),
        Row("run_demand", "ResNet-50, 90 epochs, AWS V100 on demand", V100_PLAN, _cost("on-demand", "aws"), usd),
        Row("run_spot", "the same on spot, one interruption a day", V100_PLAN, _cost("spot", "aws"), usd),
        Row("run_saves", "saved by the run", ("run_demand", "run_spot"), lambda d, s: 1 - s / d, share, (0.7, 0.95)),
    ),
    published=(
        Published(
            "AWS",
            "up to 90 % off on-demand prices",
            "AWS webinar, Using Spot Instances to Save up to 90% off Your EC2 Bill",
            "2015",
        ),
        Published("Google Cloud", "60 to 91 % off, machine types and GPUs", "Google Cloud documentation of Spot VMs", ""),
    ),
    figure=("claims/spot.svg", "What spot saves, by provider and chip"),
)

CLAIMS = (V100_BUY, SPOT)


def spot_savings() -> dict[tuple[str, str], float]:
    """What the figure draws."""
    return savings(_ALL.run())
