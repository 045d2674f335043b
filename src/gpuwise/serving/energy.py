"""EnergyUse: what the devices of an instance draw at its load, by the law of power of gpuwise.cost.power.

Of a load's iterations the shares of peak and bandwidth follow from the model: each reads the weights once, each token that is
written reads the keys and values before it, and products take as many operations as were recorded. While the model runs, the
device draws what the law gives for these shares; while it waits for requests, what it draws while its kernels wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, hypot, inf, log

import numpy as np
from numpy.typing import NDArray

from gpuwise.cost.forecast import Interval
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.power import ENERGY_SPREAD, share_of_tdp
from gpuwise.cost.rates import QUANTIZED, multiplies
from gpuwise.hardware.types import Chip
from gpuwise.serving.attention_layers import AttentionLayers
from gpuwise.serving.formats import StoredWeights
from gpuwise.serving.generation import Generation
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served

TOKENS = 64  # new tokens of the recorded pass whose operations a token are taken
PROVENANCE = "law of power (A100, H100 and B200 that serve), TDP, simulated load"


@dataclass(frozen=True)
class EnergyUse:
    """Energy of the devices; hosts, power supplies and cooling are not counted.

    Attributes:
        watts: mean power of one device.
        joules_per_token: of all devices, for a token written; prompts and idle time included.
        joules_per_request: the same for a request.
        utilisation: share of the time in which the model runs.
        arithmetic, bandwidth: shares of the device's peak and of its bandwidth while it does.
        provenance: where the figures come from.
    """

    watts: Interval
    joules_per_token: Interval
    joules_per_request: Interval
    utilisation: float
    arithmetic: float
    bandwidth: float
    provenance: str = PROVENANCE


@dataclass(frozen=True)
class LoadWork:
    """What one device does for a load: floating-point operations, and bytes of weights, keys and values that it reads."""

    flops: float
    bytes_read: float

    def part(self, devices: int) -> LoadWork:
        """That of each of several devices that work in turn."""
        return LoadWork(self.flops / devices, self.bytes_read / devices)


def work_of(served: Served, generation: Generation, weights: StoredWeights) -> LoadWork:
    """The work of a load. generation: of one of the devices that share the layers; weights: as they are kept there."""
    load = served.requests.of(~np.isnan(served.end_s))
    read = load.input_tokens - load.cached_tokens
    tokens = float(np.sum(read + load.output_tokens - 1))
    products = tokens * _flops(generation, TOKENS) / TOKENS + float(np.sum(load.output_tokens)) * _head_flops(generation)
    seen = sum(4.0 * each.layers * each.heads * each.head_size * _seen(each, load) for each in generation.attention)
    keys = sum(float(each.layers * each.key_bytes) * _fetched(each, load) for each in generation.attention)
    return LoadWork(products + seen, served.iterations * weights.bytes + keys)


def computed_in(chip: Chip, weights: StoredWeights, precision: str) -> str:
    """The catalog's name of the type that products compute in: that of the weights' format where the chip has units for it,
    else the precision of the activations."""
    narrow = weights.arithmetic
    return QUANTIZED[narrow] if narrow and multiplies(chip, narrow) else precision


def energy_use(
    chip: Chip,
    served: Served,
    work: LoadWork,
    *,
    precision: str,
    devices: int,
    rate_per_s: float,
    iterations: tuple[float, float],
    parameters: Parameters,
) -> EnergyUse | None:
    """The energy of one instance at a load; None where the chip's TDP, peak or bandwidth is unknown, and of CPUs, which the
    law does not know.

    Arguments:
        served: the simulated outcome of the load.
        precision: that products compute in, as computed_in names it.
        devices: of the instance, which share its layers.
        rate_per_s: requests that arrive at the instance.
        iterations: low and high of measured over forecast times of iterations.
    """
    peak = chip.peak_flops_per_s.get(precision) or chip.peak_flops_per_s.get("fp32")
    if chip.kind == "cpu" or not chip.tdp_w or not peak or not chip.memory_bandwidth_bytes_per_s or not served.busy_s:
        return None
    arithmetic = min(1.0, work.flops / served.busy_s / peak)
    bandwidth = min(1.0, work.bytes_read / served.busy_s / chip.memory_bandwidth_bytes_per_s)
    busy, figures = served.utilisation, parameters.power
    share = busy * share_of_tdp(arithmetic, bandwidth, figures) + (1 - busy) * figures["waiting"]
    watts = chip.tdp_w * share
    joules = watts * devices / rate_per_s
    written = float(np.mean(served.requests.output_tokens))
    spread = energy_spread(iterations)
    return EnergyUse(
        _interval(watts, ENERGY_SPREAD, most=chip.tdp_w),
        _interval(joules / written, spread),
        _interval(joules, spread),
        busy,
        arithmetic,
        bandwidth,
    )


def energy_spread(iterations: tuple[float, float]) -> tuple[float, float]:
    """Low and high of measured over forecast joules, from those of the law of power and of iterations, which are taken as
    independent: their logarithms add as squares."""
    low, high = (hypot(log(power), log(time)) for power, time in zip(ENERGY_SPREAD, iterations, strict=True))
    return exp(-low), exp(high)


def _interval(value: float, spread: tuple[float, float], *, most: float = inf) -> Interval:
    low, high = spread
    return Interval(value, low * value, max(value, min(high * value, most)))


def _flops(generation: Generation, tokens: int) -> float:
    trace = generation.fused_tokens(tokens)
    return float(trace.counts() @ trace.operations.column("flops"))


def _head_flops(generation: Generation) -> float:
    trace = generation.fused_head(1)
    return float(trace.counts() @ trace.operations.column("flops"))


def _fetched(layers: AttentionLayers, load: Requests) -> float:
    """Tokens of the cache that the tokens written read: each all before it, or a window of them."""
    return _sum_to(load.input_tokens.astype(float), (load.output_tokens - 1).astype(float), layers.window)


def _seen(layers: AttentionLayers, load: Requests) -> float:
    """Tokens that each token of prompts and answers sees, itself included."""
    cached = load.cached_tokens.astype(float)
    return _sum_to(cached, load.input_tokens + load.output_tokens - 1 - cached, layers.window)


def _sum_to(first: NDArray[np.float64], count: NDArray[np.float64], window: int | None) -> float:
    """The sum of min(first + i, window) over i of 1 to count, over all requests."""
    if window is None:
        return float(np.sum(count * first + count * (count + 1) / 2))
    growing = np.clip(window - first, 0.0, count)
    return float(np.sum(growing * first + growing * (growing + 1) / 2 + (count - growing) * window))
