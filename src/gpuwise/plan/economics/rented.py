"""The terms of a rented machine, and the assumptions that fill the gaps of its offer."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.hardware.providers import Provider, provider
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.notes import run as notes
from gpuwise.plan.economics import spot
from gpuwise.plan.economics.spot_rate import spot_rate
from gpuwise.plan.economics.terms import HOUR_S, SETUP_S, WEEK_S, Terms

STORED_CHECKPOINTS = 2  # checkpoints at a time: the last one, and the one that is being written
_WEIGHT_BYTES = 4  # a parameter in fp32, as it leaves the provider at the end
_MONTH_HOURS = 730.0


def rental(offer: Offer, *, parameters: int, interruptions_per_day: float | None = None) -> tuple[Terms, list[Note]]:
    """The terms of an offer, with the assumptions behind them.

    Arguments:
        parameters: number of trained parameters; checkpoints hold these.
        interruptions_per_day: rate of a spot machine; None (default) takes the provider's usual rate.
    """
    assumed = [notes.assumed_setup(setup_s=SETUP_S)]
    saved = spot.checkpoint_bytes(parameters)
    rate = spot.write_rate_bytes_per_s(offer.network_bytes_per_s)
    where = provider(offer.provider)
    terms = Terms(
        offer.terms,
        offer.usd_per_hour,
        minimum_s=where.minimum_billing_s,
        billing_step_s=where.billing_step_s,
        interruptions_per_day=spot.FAILURES_PER_DEVICE_DAY * max(1.0, offer.devices),
        save_s=saved / rate,
        restart_s=spot.RESTART_S + saved / rate,
        storage_usd_per_hour=storage_usd_per_hour(STORED_CHECKPOINTS * saved, where),
        transfer_usd=parameters * _WEIGHT_BYTES / 1e9 * (where.transfer_usd_per_gb or 0.0),
    )
    if where.storage_usd_per_gb_month is not None and where.transfer_usd_per_gb is not None:
        assumed.append(
            notes.assumed_storage(
                checkpoints=STORED_CHECKPOINTS,
                storage_usd_per_gb_month=where.storage_usd_per_gb_month,
                transfer_usd_per_gb=where.transfer_usd_per_gb,
            )
        )
    if offer.terms == "spot":
        per_day, usual = interruptions_per_day, spot_rate(offer)
        if per_day is None and usual.day_limited:
            terms = replace(terms, day_machines=1.0)
            assumed.append(notes.assumed_day_limit(interruptions_per_day=usual.per_day))
        elif per_day is None and usual.published is not None:
            per_day = usual.per_day
            assumed.append(
                notes.published_interruptions(
                    interruptions_per_day=per_day,
                    guess_per_day=usual.guess_per_day,
                    label=usual.published.label,
                    source=str(usual.published.source),
                )
            )
        elif per_day is None:
            per_day = usual.per_day
            assumed.append(notes.assumed_interruptions(interruptions_per_day=per_day))
        assumed.append(notes.assumed_checkpoints(saved_bytes=saved, bytes_per_s=rate, restart_s=spot.RESTART_S))
        terms = replace(terms, interruptions_per_day=terms.interruptions_per_day + (per_day or 0.0))
    elif offer.terms != "free":
        assumed.append(notes.assumed_failures(failures_per_device_year=365 * spot.FAILURES_PER_DEVICE_DAY))
    if offer.terms == "free":
        session_s = (offer.max_session_hours or 12.0) * HOUR_S
        if offer.max_session_hours is None:
            assumed.append(notes.assumed_free_sessions())
        week_s = 7 * session_s if offer.hours_per_week is None else offer.hours_per_week * HOUR_S
        if offer.hours_per_week is None:
            assumed.append(notes.assumed_free_quota())
        terms = replace(terms, session_s=session_s, week_s=min(week_s, WEEK_S))
    return terms, assumed


def storage_usd_per_hour(nbytes: float, where: Provider) -> float:
    """The price of bytes that outlive a machine at a provider; 0 where it is unknown."""
    return nbytes / 1e9 * (where.storage_usd_per_gb_month or 0.0) / _MONTH_HOURS


def of_several(terms: Terms, machines: int) -> Terms:
    """The terms of several machines at once: all are paid, the job waits for each that is interrupted, and each saves its part
    of a checkpoint."""
    return replace(
        several_times(terms, machines),
        usd_per_hour=machines * terms.usd_per_hour,
        save_s=terms.save_s / machines,
        restart_s=terms.restart_s - terms.save_s + terms.save_s / machines,
    )


def several_times(terms: Terms, factor: float) -> Terms:
    """The same terms with this many times the interruptions."""
    return replace(terms, interruptions_per_day=factor * terms.interruptions_per_day, day_machines=factor * terms.day_machines)
