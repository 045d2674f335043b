"""The money of a ServingForecast: the user's budget, an API to compare with, and the cheapest instance by rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuwise.api.serving_catalog import TIMES
from gpuwise.errors import NoPlanError
from gpuwise.hardware.types import Offer
from gpuwise.notes.price import no_offer
from gpuwise.serving.api_price import ApiPrice, api_usd_per_month, break_even
from gpuwise.serving.fleets import Fleet, rate_ranges
from gpuwise.serving.forecast import ServingForecast
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.rows import ServingRow, cheapest_first
from gpuwise.units import format_usd


def price_source(offer: Offer | None) -> str:
    """Whose price a device has, and when it was read; "" without an offer."""
    return "" if offer is None else f"{offer.provider} {offer.instance} ({offer.region}), {offer.as_of}"


def with_money(
    forecast: ServingForecast, load: LoadShape, fleets: Sequence[Fleet], *, budget_usd: float | None, api: ApiPrice | None
) -> ServingForecast:
    """The forecast with the budget, the API and the cheapest instance by rate.

    fleets: among which the cheapest by rate are.

    Raises NoPlanError where nothing that serves the rate is inside the budget.
    """
    unpriced = [row.device for row in forecast.rows if row.replicas and row.usd_per_month is None and not row.is_free]
    if unpriced:
        notes = (*forecast.assumption_notes, no_offer(devices=", ".join(unpriced)))
        forecast = replace(forecast, assumption_notes=notes)
    if budget_usd is not None:
        rows = [replace(row, over_budget=_over(row, budget_usd)) for row in forecast.rows]
        forecast = replace(forecast, rows=cheapest_first(rows), budget_usd_per_month=budget_usd)
        _check_budget(forecast)
    if api is not None:
        requests = load.at(forecast.rate_per_s)
        usd = api.usd_per_request(read=float(np.mean(requests.input_tokens)), written=float(np.mean(requests.output_tokens)))
        rows = [
            row if row.fleet is None else replace(row, break_even=break_even(row.fleet, usd, idle=row.running.idle))
            for row in forecast.rows
        ]
        forecast = replace(forecast, rows=tuple(rows), api=api, api_usd_per_month=api_usd_per_month(usd, forecast.rate_per_s))
    return replace(forecast, by_rate=rate_ranges(fleets, up_to=TIMES * forecast.rate_per_s), fleets=tuple(fleets))


def _over(row: ServingRow, budget_usd: float) -> bool:
    usd = row.least_usd_per_month
    return row.replicas > 0 and not row.is_free and (usd is None or usd > budget_usd)


def _check_budget(forecast: ServingForecast) -> None:
    serving = [row for row in forecast.rows if row.replicas]
    if not all(row.over_budget for row in serving):
        return
    priced = [(usd, row) for row in serving if (usd := row.least_usd_per_month) is not None]
    budget = format_usd(forecast.budget_usd_per_month or 0.0)
    if not priced:
        raise NoPlanError(
            "no device that serves the rate has a price to compare with the budget.",
            ["other devices, or other counts of them: --on", "leave out --budget"],
        )
    usd, nearest = min(priced, key=lambda each: each[0])
    bits = "--precision" if nearest.forward is not None else "--weights"
    raise NoPlanError(
        f"nothing serves {forecast.job} at this rate for {budget} a month: the nearest is {nearest.replicas:,} x "
        f"{nearest.device} for {format_usd(usd)} a month.",
        [f"--budget {-(-usd // 1):.0f}", f"a lower rate, looser limits (--slo), or fewer bits ({bits})"],
    )
