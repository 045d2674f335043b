"""The terms of a rented machine, and the assumptions that fill the gaps of its offer."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.notes import run as notes
from gpuwise.plan.economics import spot
from gpuwise.plan.economics.terms import HOUR_S, SETUP_S, WEEK_S, Terms

HOURLY_BILLING = ("paperspace",)  # billed by the started hour


def rental(offer: Offer, *, parameters: int, interruptions_per_day: float | None = None) -> tuple[Terms, list[Note]]:
    """The terms of an offer, with the assumptions behind them.

    Arguments:
        parameters: number of trained parameters; checkpoints hold these.
        interruptions_per_day: rate of a spot machine; None (default) takes the provider's usual rate.
    """
    assumed = [notes.assumed_setup(setup_s=SETUP_S)]
    saved = spot.checkpoint_bytes(parameters)
    rate = spot.write_rate_bytes_per_s(offer.network_bytes_per_s)
    terms = Terms(offer.terms, offer.usd_per_hour, save_s=saved / rate, restart_s=spot.RESTART_S + saved / rate)
    if offer.provider in HOURLY_BILLING:
        terms = replace(terms, minimum_s=HOUR_S, billing_step_s=HOUR_S)
    if offer.terms == "spot":
        per_day = interruptions_per_day
        if per_day is None:
            per_day = spot.INTERRUPTIONS_PER_DAY.get(offer.provider, spot.DEFAULT_INTERRUPTIONS_PER_DAY)
            assumed.append(notes.assumed_interruptions(interruptions_per_day=per_day))
        assumed.append(notes.assumed_checkpoints(saved_bytes=saved, bytes_per_s=rate, restart_s=spot.RESTART_S))
        terms = replace(terms, interruptions_per_day=per_day)
    if offer.terms == "free":
        session_s = (offer.max_session_hours or 12.0) * HOUR_S
        if offer.max_session_hours is None:
            assumed.append(notes.assumed_free_sessions())
        week_s = 7 * session_s if offer.hours_per_week is None else offer.hours_per_week * HOUR_S
        if offer.hours_per_week is None:
            assumed.append(notes.assumed_free_quota())
        terms = replace(terms, session_s=session_s, week_s=min(week_s, WEEK_S))
    return terms, assumed
