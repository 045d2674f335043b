"""The fitted figures of the cost model, read from data/efficiency.toml (which names what each was fitted on)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Rate:
    """How one class of arithmetic units (tensor, tf32, vector, cpu, systolic) is used.

    efficiency: share of the datasheet peak large operations reach, by kind of operation; a backward operation takes
    `<kind>_backward` where there is one. fill: outputs an SM or core needs before it is busy: an operation of
    `area` outputs costs as if it had `area + fill × units` of them.
    """

    efficiency: Mapping[str, float]
    fill: float


@dataclass(frozen=True)
class Parameters:
    """See data/efficiency.toml for meaning and origin of each figure."""

    rates: Mapping[str, Rate]
    bandwidth: Mapping[str, Mapping[str, float]]
    kernel_floor_s: Mapping[str, float]
    cache_share: float
    cache_speedup: float
    host_operation_s: Mapping[str, float]
    host_kernel_s: float
    roof_sharpness: float
    power_watts_per_tflops: Mapping[str, float]
    power_exponent: float
    power_watts_per_tensor_tflops: Mapping[str, float]
    tensor_power_exponent: float
    matrix_fp32_per_vector: Mapping[str, float]
    architecture_efficiency: Mapping[str, float]
    attention_efficiency: Mapping[str, float]
    default_units: int
    fp32_passes_on_bf16: int
    fused_bytes_share: float
    link_efficiency: float
    network_efficiency: float
    call_latency_s: float
    network_call_latency_s: float
    overlap_share: float
    overlap_slowdown: float
    power_share: Mapping[str, float]
    reserved_per_moving_byte: float
    context_bytes: Mapping[str, int]
    communicator_bytes: int
    blas_workspace_bytes: int
    blas_workspace_sm90_bytes: int
    spread: Mapping[str, tuple[float, float]]

    def efficiency(self, rate: str, kind: str, *, backward: bool) -> float:
        known = self.rates[rate].efficiency
        return known.get(f"{kind}_backward", known[kind]) if backward else known[kind]


def from_dict(data: Mapping[str, object]) -> Parameters:
    """Parameters from the tables of the data file (benchmarks/fit_efficiency.py changes some and tries again)."""
    table = {k: v for k, v in data.items() if k not in {"evidence", "rates"}}
    rates = {name: Rate({k: v for k, v in rate.items() if k != "fill"}, rate["fill"]) for name, rate in data["rates"].items()}  # type: ignore[attr-defined]
    table["spread"] = {name: (low, high) for name, (low, high) in table["spread"].items()}  # type: ignore[attr-defined]
    return Parameters(rates=rates, **table)  # type: ignore[arg-type]


@cache
def parameters() -> Parameters:
    """The shipped figures."""
    text = files("gpuwise.cost").joinpath("data/efficiency.toml").read_text(encoding="utf-8")
    return from_dict(tomllib.loads(text))
