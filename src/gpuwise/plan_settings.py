"""The settings of `plan`: its keywords in gpuwise.api, and the command line's flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from gpuwise.step_settings import NetworkSettings, Setting, StepSettings, TrialSettings, WorkSettings

# What the first plan is the best in. The first is the default.
OBJECTIVES = ("cheapest", "fastest", "samples-per-dollar", "least-memory", "least-energy")
CONFIDENCE = 0.9  # chance to keep both limits that a plan needs by default


class LimitSettings(TypedDict, total=False):
    """What a whole run may take, and what is best inside that."""

    budget: Annotated[float | str | None, Setting("Spend at most this, e.g. 20000 or $20k.", metavar="USD")]
    deadline: Annotated[
        float | str | None, Setting("Be done within this, e.g. 3d or 12h, or by a day, 2027-01-31.", metavar="TIME")
    ]
    objective: Annotated[str | None, Setting("What the first plan is the best in (cheapest).", OBJECTIVES)]
    confidence: Annotated[
        float | None, Setting("Chance to keep both limits that a plan needs; others follow (0.9).", metavar="SHARE")
    ]


class OfferSettings(TypedDict, total=False):
    """Which offers are ranked, and how."""

    max_devices: Annotated[
        int | None, Setting("Devices of a plan at most. By default one machine, and 1,024 where that is too small or slow.")
    ]
    spot: Annotated[bool | None, Setting("Only spot prices, or none; both by default.", off_switch=True)]
    stale: Annotated[bool | None, Setting("Rank offers whose price is over a year old, too.")]
    xla: Annotated[
        bool | None,
        Setting("Rank what `gpuwise train` cannot run (PyTorch/XLA, plug-ins) by price, or leave it out.", off_switch=True),
    ]
    where: Annotated[str | None, Setting('Only offers like "vendor=nvidia memory>=24GB".', metavar="FILTER")]
    region: Annotated[str | None, Setting("Only offers of this region, e.g. us-east-1.", metavar="NAME")]
    discounts: Annotated[str | None, Setting("Your discounts, a share by provider: aws = 0.25 (TOML).", metavar="FILE")]
    global_batch: Annotated[int | None, Setting("Samples an optimizer step, over all devices.")]
    interruptions: Annotated[float | None, Setting("Interruptions of a spot machine, a day.")]
    electricity: Annotated[float | None, Setting("Dollars a kWh, for your own machines.", metavar="USD")]
    purchase: Annotated[float | str | None, Setting("Count what your own machine costs to buy, each.", metavar="USD")]
    costs: Annotated[str | None, Setting("Purchase, power, lifetime, resale of your machines (TOML).", metavar="FILE")]


class SearchSettings(TypedDict, total=False):
    """What the search may try beyond what leaves the training as it is."""

    allow: Annotated[
        str | Sequence[str] | None,
        Setting(
            "Techniques that change what is trained, separated by commas: 8bit-optimizer, 4bit-optimizer, adafactor, bf16, "
            "fp8, lora, qlora, batch.",
            metavar="LIST",
        ),
    ]


class PlanSettings(
    StepSettings, WorkSettings, LimitSettings, OfferSettings, NetworkSettings, TrialSettings, SearchSettings, total=False
):
    """What `plan` takes beside the devices."""
