"""Why a device serves nobody, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.serving.formats import Format
from gpuwise.serving.forward_instance import ForwardInstance
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.saturation import Limits
from gpuwise.serving.served import Served
from gpuwise.units import format_duration

NAMED = 8  # devices of an error, each with its reason
_BEYOND = 0.01  # of requests


def beyond_cache(instance: Instance | ForwardInstance, load: LoadShape, limits: Limits) -> str:
    """Why the cache keeps too many requests out; "" where it does not."""
    if isinstance(instance, ForwardInstance):
        return ""
    too_long = _share_beyond(instance.cache_tokens, load)
    if too_long <= 1 - limits.share:
        return ""
    return (
        f"its cache holds {instance.cache_tokens:,} tokens, and {100 * too_long:.0f} % of the requests are longer; "
        "--spread and --cache change that"
    )


def _share_beyond(cache_tokens: int, load: LoadShape) -> float:
    """The share of the requests that are longer than a cache."""
    drawn = load.at(1.0)
    return float(np.mean(drawn.input_tokens + drawn.output_tokens > cache_tokens))


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


def narrower_weights(
    formats: Mapping[Format, int], weight_bytes: int, load: LoadShape, policy: Callable[[int], BatchingPolicy]
) -> list[str]:
    """The flag of the widest format in which the weights fit a device beside a cache for nearly all requests; else none.

    Arguments:
        formats: bytes of the weights in each; of several with as many bits the first is preferred.
        weight_bytes: in the format that does not fit.
        load: requests, of which a hundredth may be longer than the cache.
        policy: how weights of so many bytes are served; raises InputError where they do not fit.
    """
    widest_first = sorted(formats, key=lambda each: (-each.bits, -formats[each] if each.mix else 0))
    for each in widest_first:
        with suppress(InputError):
            if formats[each] < weight_bytes and _share_beyond(policy(formats[each]).cache_tokens, load) <= _BEYOND:
                return [f"--weights {each.name}"]
    return []


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
