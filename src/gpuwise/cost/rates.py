"""The precisions of a chip, the arithmetic units of each operation, and their rates in the datasheet."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.cost.parameters import Parameters
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes.rejections import chip_cannot_train, no_speed_known, too_old_for_pytorch
from gpuwise.notes.step import emulated_fp32, fp16_at_fp32_rate, int8_at_fp32_rate
from gpuwise.strategy import PRECISIONS

CONTRACTIONS = ("gemm", "conv", "attention", "rnn")
HALF = {"bfloat16": "bf16", "float16": "fp16"}
# Quantized types by the catalog's rate of their products (fnuz: AMD's fp8 of CDNA 3).
QUANTIZED = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), "fp8"),
    "float4_e2m1fn_x2": "fp4",
    "int8": "int8",
    "uint8": "int8",
}
# Substitute types if a chip has no units for a type, the most similar first.
NEAREST = {
    "fp4": ("fp8", "bf16", "fp16", "fp32"),
    "fp8": ("bf16", "fp16", "fp32"),
    "int8": ("fp8", "bf16", "fp16", "fp32"),
    "fp64": ("fp32", "bf16", "fp16"),
}
# The first NVIDIA GPUs whose tensor cores multiply int8 (Turing white paper); before, vector units do (dp4a).
_INT8_TENSOR_CAPABILITY = (7, 2)
# The lowest CUDA compute capability the PyTorch wheels of 2.x still have kernels for (release notes of 2.1: sm_50).
OLDEST_CAPABILITY = (5, 0)
CANNOT_TRAIN, TOO_OLD, NO_SPEED = chip_cannot_train(), too_old_for_pytorch(), no_speed_known()


@dataclass(frozen=True)
class Units:
    """A class of arithmetic units (a key of Parameters.rates) and its dense datasheet peak.

    figure: the rate of the catalog behind the peak; note says what was assumed.
    """

    rate: str
    peak_flops_per_s: float
    figure: str
    note: Note | None = None


def family(chip: Chip) -> str:
    """gpu, cpu, or systolic (TPUs and other accelerators that run a compiled graph)."""
    if chip.kind == "cpu":
        return "cpu"
    return "gpu" if chip.kind.startswith("gpu") or chip.compute_capability is not None else "systolic"


def precisions_of(chip: Chip) -> tuple[str, ...]:
    """The precisions (of strategy.PRECISIONS) that units_for has units for on this chip.

    TF32 on a GPU is NVIDIA's: PyTorch takes it on no other by default. fp32 on units that only know 16 bits is emulated
    in several passes, fp16 on GPUs without fast units for it runs at their fp32 rate.
    """
    peaks, kind = chip.peak_flops_per_s, family(chip)
    half = bool(peaks.get("bf16") or peaks.get("fp16"))
    able = {
        "fp32": bool(peaks.get("fp32")) or (kind == "systolic" and half),
        "tf32": bool(peaks.get("tf32")) and (kind == "systolic" or (kind == "gpu" and chip.vendor == "NVIDIA")),
        "amp-bf16": bool(peaks.get("bf16")),
        "bf16": bool(peaks.get("bf16")),
        "fp16": bool(peaks.get("fp16")) or (kind == "gpu" and bool(peaks.get("fp32"))),
        "fp8": bool(peaks.get("fp8") and peaks.get("bf16")) and kind != "cpu",
        "amp-fp16": bool(peaks.get("fp16")) or (kind == "gpu" and bool(peaks.get("fp32"))),
    }
    return tuple(precision for precision in PRECISIONS if able[precision])


def fast_fp16(chip: Chip) -> bool:
    """Whether fp16 is worth it: Pascal's GeForce chips run it at 1/64 of fp32."""
    return chip.peak_flops_per_s.get("fp16", 0.0) > chip.peak_flops_per_s.get("fp32", 0.0)


def why_not(chip: Chip, *, mode: str) -> Note | None:
    """A few words on why a chip cannot run a step (mode: train | infer) or cannot be priced; None if it can."""
    if mode == "train" and not chip.trains:
        return CANNOT_TRAIN
    if chip.compute_capability is not None and chip.compute_capability < OLDEST_CAPABILITY:
        return TOO_OLD
    if not precisions_of(chip) or not chip.memory_bandwidth_bytes_per_s:
        return NO_SPEED
    return None


def check_can_run(chip: Chip, *, mode: str, precision: str | None = None) -> None:
    """Raises UnsupportedError if `why_not` has a reason, or if the chip does not compute in the requested precision."""
    reason = why_not(chip, mode=mode)
    if reason == CANNOT_TRAIN:
        ways = ["choose a chip that trains: `gpuwise chips`"]
        if why_not(chip, mode="infer") is None:
            ways = ["ask for inference: --mode infer", *ways]
        raise UnsupportedError(f"{chip.id} cannot train: the catalog has it as a chip that nothing trains on.", ways)
    if reason == TOO_OLD:
        raise UnsupportedError(
            f"{chip.id} is too old for PyTorch: its compute capability is {capability(chip)}, and the 2.x releases have "
            f"kernels from {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]} on.",
            ["choose a newer GPU: `gpuwise chips`"],
        )
    if reason == NO_SPEED:
        precisions = precisions_of(chip)
        missing = "memory bandwidth" if precisions else "floating-point peak rate (fp32, tf32, fp16, bf16)"
        raise UnsupportedError(
            f"{chip.id} has no known {missing}: it cannot be priced.",
            ["choose a GPU, TPU or CPU: `gpuwise chips`", "add the figure to ~/.config/gpuwise/chips.toml"],
        )
    if precision is not None and precision not in precisions_of(chip):
        raise UnsupportedError(
            f"{chip.id} does not compute in {precision}: the catalog has no rate of its units for it.",
            _nearest(chip, precision),
        )


def _nearest(chip: Chip, precision: str) -> list[str]:
    """The way out if a chip lacks a precision: the most similar one that the chip computes in."""
    half = ["amp-bf16", *(["amp-fp16"] if fast_fp16(chip) else [])]
    order = [*half, "fp32"] if precision.endswith("16") or precision == "fp8" else ["fp32", *half]
    return [f"--precision {name}" for name in order if name in precisions_of(chip)][:1]


def units_for(chip: Chip, *, dtype: str, kind: str, precision: str, parameters: Parameters) -> Units:
    """The units that contract numbers of `dtype` on this chip. Raises UnsupportedError if there are none.

    Arguments:
        dtype: what the operation computes in, as the trace has it. kind: of operation; on NVIDIA GPUs since Ampere
        PyTorch lets convolutions of float32 run in TF32 by default, matrix products not. precision: the strategy's.
    """
    if dtype in QUANTIZED:
        return _quantized(chip, QUANTIZED[dtype])
    if dtype in HALF:
        return _half(chip, HALF[dtype])
    if dtype == "float64":
        return _double(chip)
    return _single(chip, kind, precision, parameters)


def multiplies(chip: Chip, dtype: str) -> bool:
    """Whether the chip has units for matrices of a quantized type."""
    name = QUANTIZED[dtype]
    return bool(chip.peak_flops_per_s.get(name)) and _quantized(chip, name).rate != "vector"


def _quantized(chip: Chip, name: str) -> Units:
    peak, single = chip.peak_flops_per_s.get(name), chip.peak_flops_per_s.get("fp32")
    if not peak and name == "int8" and chip.kind == "cpu" and single:  # every CPU multiplies integers
        return Units("cpu", single, "fp32", int8_at_fp32_rate(chip=chip.id))
    if not peak:
        raise _missing(chip, name)
    rate = {"cpu": "cpu", "gpu": "tensor", "systolic": "systolic"}[family(chip)]
    if name == "int8" and rate == "tensor" and (chip.compute_capability or _INT8_TENSOR_CAPABILITY) < _INT8_TENSOR_CAPABILITY:
        rate = "vector"
    return Units(rate, peak, name)


def _half(chip: Chip, name: str) -> Units:
    peak, single = chip.peak_flops_per_s.get(name), chip.peak_flops_per_s.get("fp32")
    if family(chip) == "gpu" and name == "fp16" and single and (not peak or peak < single):
        return Units("vector", single, "fp32", fp16_at_fp32_rate(chip=chip.id))
    if not peak:
        raise _missing(chip, name)
    return Units({"cpu": "cpu", "gpu": "tensor", "systolic": "systolic"}[family(chip)], peak, name)


def _single(chip: Chip, kind: str, precision: str, parameters: Parameters) -> Units:
    if family(chip) == "systolic":
        return _emulated(chip, precision, parameters)
    single = chip.peak_flops_per_s.get("fp32")
    if "tf32" in precisions_of(chip) and (precision == "tf32" or kind == "conv"):
        return Units("tf32", chip.peak_flops_per_s["tf32"], "tf32")
    if not single:
        raise _missing(chip, "fp32")
    if chip.kind == "cpu":
        return Units("cpu", single, "fp32")
    # CDNA 1 and 2 have fp32 matrix units beside the vector ones the catalog's fp32 rate counts.
    return Units("vector", single * parameters.matrix_fp32_per_vector.get(chip.architecture or "", 1.0), "fp32")


def _emulated(chip: Chip, precision: str, parameters: Parameters) -> Units:
    """float32 on a chip that compiles its graphs: the fastest of its own rates and of several 16-bit passes."""
    peaks, passes = chip.peak_flops_per_s, parameters.fp32_passes_on_bf16
    own = ("fp32", "tf32") if precision == "tf32" else ("fp32",)
    rates = {name: peaks[name] for name in own if peaks.get(name)}
    half = "bf16" if peaks.get("bf16") else "fp16"
    if peaks.get(half):
        rates[half] = peaks[half] / passes
    if not rates:
        raise _missing(chip, "fp32")
    figure = max(rates, key=lambda name: rates[name])
    note = emulated_fp32(chip=chip.id, passes=passes, precision=half) if figure == half else None
    return Units("systolic", rates[figure], figure, note)


def _double(chip: Chip) -> Units:
    peak, figure = chip.peak_flops_per_s.get("fp64"), "fp64"
    if not peak and chip.kind == "cpu" and chip.peak_flops_per_s.get("fp32"):
        peak, figure = chip.peak_flops_per_s["fp32"] / 2, "fp32"  # half as many lanes of a vector register
    if not peak:
        raise _missing(chip, "fp64")
    return Units("cpu" if chip.kind == "cpu" else "vector", peak, figure)


def _missing(chip: Chip, name: str) -> UnsupportedError:
    """The error for an operation in another type than the strategy's precision. The way out is the chip's nearest precision."""
    ways = _nearest(chip, name) if name in ("fp32", "fp16", "bf16", "fp8") else []
    if name in NEAREST:
        able = [other for other in NEAREST[name] if chip.peak_flops_per_s.get(other) and (other != "fp16" or fast_fp16(chip))]
        ways = [*(f"hold the numbers in {other}, the nearest it has" for other in able[:1]), *ways]
    why = ""
    if name == "bf16":
        why = " (a model that is made in it, and muon's updates, at any precision)"
        ways = ["make the model's parameters in fp32, and leave the type to --precision", *ways]
    return UnsupportedError(f"{chip.id} has no {name} peak rate in the catalog, which {name} arithmetic needs{why}.", ways[:2])


def capability(chip: Chip) -> str:
    """The compute capability as the data file writes it, "9.0"; "" for other vendors' chips."""
    return "{}.{}".format(*chip.compute_capability) if chip.compute_capability else ""
