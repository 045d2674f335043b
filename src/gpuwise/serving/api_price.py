"""What an API would cost for the same requests, and the rate from which an instance of one's own is cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from gpuwise.errors import InputError
from gpuwise.serving.fleets import HOURS_A_MONTH, Fleet
from gpuwise.serving.idle import ScaledToZero, cheaper_from_per_s
from gpuwise.serving.schedule import CONSTANT
from gpuwise.units import parse_usd

MOST_TAKES = 200.0  # rates over what one instance takes, up to which steps of a schedule are looked at


@dataclass(frozen=True)
class ApiPrice:
    """The price of an API.

    Attributes:
        input_usd, output_usd: dollars for a million tokens read and written.
    """

    input_usd: float
    output_usd: float

    def usd_per_request(self, *, read: float, written: float) -> float:
        """Dollars for a request of so many tokens; those in a cache count like others."""
        return (read * self.input_usd + written * self.output_usd) / 1e6


@dataclass(frozen=True)
class ApiBreakEven:
    """The rates at which a fleet is cheaper than an API, in requests a second.

    Attributes:
        from_per_s: lowest such rate.
        always_from_per_s: from here on no rate is an exception. Right after one more instance is needed, the API may be
            cheaper again for a while.
    """

    from_per_s: float
    always_from_per_s: float


def parse_api_price(text: str) -> ApiPrice:
    """The price of "0.5,1.5"; InputError for anything else."""
    parts = text.split(",")
    ways = ["write dollars for a million tokens read and written: --api-price 0.5,1.5"]
    if len(parts) != 2:
        raise InputError(f"{text!r} is not the price of an API.", ways)
    price = ApiPrice(*(parse_usd(part.strip()) for part in parts))
    if price.input_usd + price.output_usd == 0:
        raise InputError("An API without a price is always cheaper.", ways)
    return price


def api_usd_per_month(usd_per_request: float, rate_per_s: float) -> float:
    """Dollars a month of an API."""
    return usd_per_request * rate_per_s * 3600 * HOURS_A_MONTH


def break_even(fleet: Fleet, usd_per_request: float, *, idle: ScaledToZero | None = None) -> ApiBreakEven | None:
    """The rates at which a fleet is cheaper than an API; None where it is at no rate.

    n instances cost less at rates above n times `one`, and are needed from n - 1 times `fleet.takes` on. The rates between are
    exceptions, which exist for n below takes / (takes - one). Of a fleet whose instances change over the day, or with spare
    ones, each step up to MOST_TAKES times what one instance takes is looked at.

    idle: how a single instance stops when it is idle, which makes it cheaper at low rates; None (default) where it is always
    on, and of a fleet whose instances change over the day.
    """
    if fleet.schedule is not CONSTANT:
        return _break_even_by_steps(fleet, usd_per_request)
    one = fleet.usd_per_hour / 3600 / usd_per_request  # requests a second whose price at the API is that of an instance
    if one >= fleet.takes:
        return None
    needed = ceil(one / (fleet.takes - one))
    first = one
    if idle is not None:
        first = cheaper_from_per_s(
            usd_per_request,
            usd_per_hour=fleet.usd_per_hour,
            highest_per_s=one,
            busy_s=idle.busy_s,
            idle_s=idle.idle_s,
            start_s=idle.start_s,
        )
    return ApiBreakEven(first, first if needed == 1 else one * needed)


def _break_even_by_steps(fleet: Fleet, usd_per_request: float) -> ApiBreakEven | None:
    """The same, from the price between each two steps, which is constant there."""
    ends = fleet.steps(MOST_TAKES * fleet.takes / fleet.schedule.peak)
    above = np.append(0.0, ends[:-1])
    even = fleet.usd_at_each(ends) / 3600 / usd_per_request  # the rate at which the API costs as much
    cheaper = even < ends
    if not cheaper.any():
        return None
    first = int(cheaper.argmax())
    exceptions = np.flatnonzero(even > above)  # the API is cheaper at the beginning of these
    last = int(exceptions[-1])
    always = float(even[last]) if cheaper[last] else float(ends[last])
    return ApiBreakEven(float(max(above[first], even[first])), always)
