"""Why a device serves nobody, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuwise.errors import UnsupportedError
from gpuwise.serving.forward_instance import ForwardInstance
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.saturation import Limits
from gpuwise.serving.served import Served
from gpuwise.units import format_duration

NAMED = 8  # devices of an error, each with its reason


def beyond_cache(instance: Instance | ForwardInstance, load: LoadShape, limits: Limits) -> str:
    """Why the cache keeps too many requests out; "" where it does not."""
    if isinstance(instance, ForwardInstance):
        return ""
    drawn = load.at(1.0)
    too_long = float(np.mean(drawn.input_tokens + drawn.output_tokens > instance.cache_tokens))
    if too_long <= 1 - limits.share:
        return ""
    return (
        f"its cache holds {instance.cache_tokens:,} tokens, and {100 * too_long:.0f} % of the requests are longer; "
        "--spread and --cache change that"
    )


def nobody_serves(
    job: str, reasons: Mapping[str, str], ways_out: Iterable[str], limits: Limits, others: Sequence[str]
) -> UnsupportedError:
    """The error where no device serves a job.

    Arguments:
        reasons: by device.
        ways_out: of each device, "" where none is known.
        limits: what users accept.
        others: ways that remain beside other limits.
    """
    named = [f"{device}: {reason}" for device, reason in reasons.items()]
    more = [f"and {len(named) - NAMED} more"] if len(named) > NAMED else []
    ways = list(ways_out)
    own = list(dict.fromkeys(filter(None, ways)))
    limited = min(limits.ttft_s, limits.tpot_s, limits.latency_s) < np.inf
    return UnsupportedError(
        f"none of these devices serves {job}: {'; '.join([*named[:NAMED], *more])}",
        (own if all(ways) else [*own, *(["longer limits (--slo)"] if limited else []), *others])[:2],
    )


def floor(alone: Served, limits: Limits) -> str:
    """Which limit one request alone exceeds."""
    for name, values, limit_s in (
        ("ttft", alone.ttft_s, limits.ttft_s),
        ("tpot", alone.tpot_s, limits.tpot_s),
        ("latency", alone.latency_s, limits.latency_s),
    ):
        if values[0] > limit_s:
            return (
                f"{name} of one request alone is {format_duration(float(values[0]))}; the limit is {format_duration(limit_s)}"
            )
    return "too few requests stay within the limits at any rate, since some are longer than the mean"
