"""Which arithmetic units of a chip an operation runs on, and how fast they are by the datasheet."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.cost.parameters import Parameters
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.types import Chip

CONTRACTIONS = ("gemm", "conv", "attention", "rnn")
HALF = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Units:
    """A class of arithmetic units (a key of Parameters.rates) and its dense datasheet peak; note says what was assumed."""

    rate: str
    peak_flops_per_s: float
    note: str = ""


def check_can_run(chip: Chip, *, mode: str, parameters: Parameters) -> None:
    """Raises UnsupportedError where a figure the model needs is unknown, or the chip cannot train."""
    peaks = chip.peak_flops_per_s
    if not any(peaks.get(name) for name in ("fp32", "tf32", "fp16", "bf16")):
        raise UnsupportedError(
            f"{chip.id} has no known floating-point peak rate (fp32, tf32, fp16, bf16): it cannot be priced.",
            ["choose a GPU, TPU or CPU: `gpuwise chips`", "add the figure to ~/.config/gpuwise/chips.toml"],
        )
    if not chip.memory_bandwidth_bytes_per_s:
        raise UnsupportedError(
            f"{chip.id} has no known memory bandwidth: it cannot be priced.",
            ["choose another chip: `gpuwise chips`", "add the figure to ~/.config/gpuwise/chips.toml"],
        )
    if mode == "train" and chip.id in parameters.inference_only:
        raise UnsupportedError(
            f"{chip.id} runs trained models only; it cannot train.",
            ["ask for inference: --mode infer", "choose a chip that trains: `gpuwise chips`"],
        )


def units_for(chip: Chip, *, dtype: str, kind: str, precision: str, parameters: Parameters) -> Units:
    """The units that contract numbers of `dtype` on this chip. Raises UnsupportedError where there are none.

    Arguments:
        dtype: what the operation computes in, as the trace has it. kind: of operation; on NVIDIA GPUs since Ampere
        PyTorch lets convolutions of float32 run in TF32 by default, matrix products not. precision: the strategy's.
    """
    if dtype in HALF:
        return _half(chip, HALF[dtype], parameters)
    if dtype == "float64":
        return _double(chip)
    return _single(chip, kind, precision, parameters)


def _half(chip: Chip, name: str, parameters: Parameters) -> Units:
    peaks = chip.peak_flops_per_s
    peak, single = peaks.get(name), peaks.get("fp32")
    if chip.kind == "cpu":
        if not peak:
            raise _missing(chip, name)
        return Units("cpu", peak)
    if not _is_gpu(chip):
        if not peak:
            raise _missing(chip, name)
        return Units("systolic", peak)
    if name == "fp16" and single and (not peak or peak < single):
        return Units("vector", single, f"{chip.id} has no fast fp16 arithmetic: fp16 is priced at its fp32 rate")
    if not peak:
        raise _missing(chip, name)
    return Units("tensor", peak)


def _single(chip: Chip, kind: str, precision: str, parameters: Parameters) -> Units:
    peaks = chip.peak_flops_per_s
    single, tf32 = peaks.get("fp32"), peaks.get("tf32")
    if chip.kind == "cpu":
        if not single:
            raise _missing(chip, "fp32")
        return Units("cpu", single)
    if _is_gpu(chip):
        if chip.vendor == "NVIDIA" and tf32 and (precision == "tf32" or kind == "conv"):
            return Units("tf32", tf32)
        if not single:
            raise _missing(chip, "fp32")
        # CDNA 1 and 2 have fp32 matrix units beside the vector ones the catalog's fp32 rate counts.
        return Units("vector", single * parameters.matrix_fp32_per_vector.get(chip.architecture or "", 1.0))
    passes = parameters.fp32_passes_on_bf16
    candidates = [single or 0.0, tf32 or 0.0, (peaks.get("bf16") or peaks.get("fp16") or 0.0) / passes]
    note = "" if max(candidates) > candidates[2] else f"fp32 on {chip.id} is priced as {passes} bf16 passes"
    return Units("systolic", max(candidates), note)


def _double(chip: Chip) -> Units:
    peak = chip.peak_flops_per_s.get("fp64")
    if not peak and chip.kind == "cpu" and chip.peak_flops_per_s.get("fp32"):
        peak = chip.peak_flops_per_s["fp32"] / 2  # half as many lanes of a vector register
    if not peak:
        raise _missing(chip, "fp64")
    return Units("cpu" if chip.kind == "cpu" else "vector", peak)


def _is_gpu(chip: Chip) -> bool:
    return chip.kind.startswith("gpu") or chip.compute_capability is not None


def _missing(chip: Chip, name: str) -> UnsupportedError:
    has = [p for p in ("bf16", "fp16", "fp32") if chip.peak_flops_per_s.get(p)]
    options = {"bf16": "amp-bf16", "fp16": "amp-fp16", "fp32": "fp32"}
    if name == "fp32" and has:
        options["bf16"] = "bf16"
    if not _is_gpu(chip) and chip.kind != "cpu" and "bf16" in has and "fp32" not in has:
        has.append("fp32")  # emulated in passes of bf16
    order = sorted(has, key=lambda p: (("fp16" in (name, p)) != ("bf16" in (name, p)), p == "fp32"))
    ways = [f"--precision {options[order[0]]}"] if order else []
    return UnsupportedError(f"{chip.id} has no {name} peak rate in the catalog, which {name} arithmetic needs.", ways)


def sustained_share(chip: Chip, parameters: Parameters) -> float:
    """Share of the boost clock a power-limited card keeps up: its watts per fp32 TFLOP/s against its generation's need.

    A Tesla T4 (70 W) sustains about half of its peak, a 2080 Ti of the same generation nearly all of it.
    """
    need = parameters.power_watts_per_tflops.get(capability(chip))
    return _powered(chip, chip.peak_flops_per_s.get("fp32"), need) ** parameters.power_exponent


def sustained_tensor_share(chip: Chip, parameters: Parameters) -> float:
    """Share of the boost clock kept up by tensor cores that work for minutes, as in training: watts per fp16 TFLOP/s.

    Short benchmarks do not show it, so it is no part of the efficiencies fitted on them.
    """
    need = parameters.power_watts_per_tensor_tflops.get(capability(chip))
    return _powered(chip, chip.peak_flops_per_s.get("fp16"), need) ** parameters.tensor_power_exponent


def _powered(chip: Chip, peak_flops_per_s: float | None, need_watts_per_tflops: float | None) -> float:
    if not chip.tdp_w or not peak_flops_per_s or need_watts_per_tflops is None:
        return 1.0
    return min(1.0, chip.tdp_w / (peak_flops_per_s / 1e12) / need_watts_per_tflops)


def capability(chip: Chip) -> str:
    """The compute capability as the data file writes it, "9.0"; "" for other vendors' chips."""
    return "{}.{}".format(*chip.compute_capability) if chip.compute_capability else ""
