"""A made-up machine for the tests of `gpuwise.measure`: networks recorded on the virtual device, whose operations take known
times there, and a calibration file as it would be written of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import Catalog, Chip
from gpuwise.measure.networks import NETWORKS
from gpuwise.measure.observe import Observation
from gpuwise.measure.samples import StepSamples, samples_of
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing.record import record_many

CHIPS = Catalog().chips
CPU, GPU = CHIPS["epyc-9654"], CHIPS["h200-141gb-sxm"]
PRECISIONS = {"cpu": "fp32", "accelerator": "amp-bf16"}
# Light ones, two of a kind and more: what is kept out of a fit is like something that is in it.
NAMES = (
    "GPT-2, width 512",
    "Llama, width 320",
    "ViT",
    "BERT, width 384",
    "GPT-2, width 256",
    "MLP, wide",
    "MLP, one wide layer",
)
# How much longer the kinds of operation take than the shipped figures say.
FACTORS = {"gemm": 1.7, "elementwise": 0.6, "attention": 1.3, "norm": 0.8, "optimizer": 1.2}


@cache
def recorded(name: str, target: str = "cpu") -> Trace:
    """One micro-batch of a network, of up to four samples."""
    _, job, micro_batch = next(network for network in NETWORKS if network[0] == name)
    strategy = Strategy(micro_batch=min(micro_batch, 4), precision=PRECISIONS[target])
    (trace,) = record_many(job, strategy, [strategy.micro_batch], target=target, once=[strategy.micro_batch])
    return trace


def observed(
    trace: Trace, chip: Chip, *, factors: Mapping[str, float] = FACTORS, noise: float = 0.03, seed: int = 0
) -> Observation:
    """Three steps as they would run on a chip that is off by those factors. noise: of each operation, deviation of its log."""
    random, times = np.random.default_rng(seed), kernel_times(trace, chip, parameters())
    factor = np.array([factors.get(name.partition(".")[0].split("_")[0], 1.0) for name in times.names])[times.kernel_class]
    once_s = (times.device_s * factor)[trace.sequence.operation]
    seconds = once_s * np.exp(random.normal(0.0, noise, (3, len(once_s))))
    return Observation(trace, seconds, seconds.sum(axis=1))


@cache
def samples(target: str = "cpu", names: Sequence[str] = NAMES) -> tuple[StepSamples, ...]:
    """Of those networks on CPU, or on GPU for the target "accelerator"."""
    chip = CPU if target == "cpu" else GPU
    traces = {name: recorded(name, target) for name in names}
    return tuple(samples_of(name, observed(trace, chip, seed=seed)) for seed, (name, trace) in enumerate(traces.items()))
