"""The figures of the cost model beside its kernels (gpuwise.cost.calibration has those), read from data/efficiency.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpuwise.cost.network.figures import LinkFigures, network_figures


@dataclass(frozen=True, eq=False)
class Parameters:
    """Figures of the cost model. data/efficiency.toml explains the meaning and origin of each; network is by technology, from
    data/network.toml."""

    host_operation_s: Mapping[str, float]
    host_kernel_s: float
    host_compiled: Mapping[str, float]
    host_factor: Mapping[str, float]
    host_spread: Sequence[float]
    power_watts_per_tflops: Mapping[str, float]
    power_exponent: float
    power_watts_per_tensor_tflops: Mapping[str, float]
    voltage_floor: float
    half_rate_gain: float
    matrix_fp32_per_vector: Mapping[str, float]
    default_units: int
    fp32_passes_on_bf16: int
    link_efficiency: float
    overlap_share: float
    overlap_slowdown: float
    power: Mapping[str, float]
    reserved_per_moving_byte: float
    context_bytes: Mapping[str, int]
    communicator_bytes: int
    blas_workspace_bytes: int
    blas_workspace_sm90_bytes: int
    network: Mapping[str, LinkFigures]


@cache
def parameters() -> Parameters:
    """The shipped figures."""
    text = files("gpuwise.cost").joinpath("data/efficiency.toml").read_text(encoding="utf-8")
    return Parameters(**tomllib.loads(text), network=network_figures())
