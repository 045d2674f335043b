"""Upper limits of all kernel prices, whatever the fitted figures say: roofs above those of the datasheet.

A datasheet's peak is at its boost clock, which some boards pass, and its bandwidth is that of memory, which what stays in a
cache does not need.
"""

from __future__ import annotations

from gpuwise.cost.rates import Units, family
from gpuwise.hardware.types import Chip
from gpuwise.units import format_bytes

# GeForce boards run beyond the boost clock of their sheet: an RTX 4090 (2,520 MHz) at 2,745 to 2,805 MHz under load, and its
# driver allows 3,105 (`nvidia-smi -q -d CLOCK`, as public logs print it), 9 to 23 % more. The bound between is assumed.
GEFORCE_BOOST = 1.15
# Winograd's convolutions do with a quarter of the multiplications: Lavin and Gray, "Fast Algorithms for Convolutional Neural
# Networks", CVPR 2016, F(4x4, 3x3).
WINOGRAD = 4.0
# Bytes a clock that a multiprocessor reads from the second-level cache and writes to it (NVIDIA's tuning guides, see gemm.py),
# and that a core of a CPU loads and stores (two loads and a store of 64 bytes: Intel's optimization manual).
_CACHE_BYTES_PER_CLOCK = {"gpu": 64.0 + 32.0, "cpu": 2 * 64.0 + 64.0}


def boost(chip: Chip) -> float:
    """The highest clock of real boards, divided by the boost clock of the datasheet."""
    return GEFORCE_BOOST if chip.vendor == "NVIDIA" and chip.kind == "gpu-consumer" else 1.0


def most_flops_per_s(chip: Chip, units: Units, kernel_class: str = "") -> float:
    """Operations a second: the units' peak at the highest clock, or what `gpuwise measure` reached on this machine; of fp32
    convolutions as many as Winograd's leave out."""
    achieved = chip.achieved.peak_flops_per_s.get(units.figure) if chip.achieved else None
    peak = achieved or units.peak_flops_per_s * boost(chip)
    return peak * (WINOGRAD if winograd(kernel_class, units.figure) else 1.0)


def winograd(kernel_class: str, figure: str) -> bool:
    """Whether kernels of a class may need fewer operations than are counted."""
    return kernel_class.startswith("conv") and figure == "fp32"


def cache_bytes_per_s(chip: Chip) -> float | None:
    """Bytes a second that all units together exchange with a cache; None where its clock or cache is not known, and on
    systolic chips, whose compiled graphs move fewer bytes than are counted."""
    a_clock = _CACHE_BYTES_PER_CLOCK.get(family(chip))
    if a_clock is None or not (chip.sm_count and chip.l2_bytes and chip.boost_clock_hz and chip.memory_bandwidth_bytes_per_s):
        return None
    return max(chip.sm_count * a_clock * chip.boost_clock_hz * boost(chip), chip.memory_bandwidth_bytes_per_s)


def why_beyond_peak(chip: Chip, *, convolutions: bool = False) -> str:
    """Why kernels may exceed the operations a second of the datasheet; "" if they may not.

    convolutions: whether some are of fp32, counted in full whatever the algorithm.
    """
    reasons = []
    if boost(chip) > 1:
        clock = f"{chip.boost_clock_hz / 1e6:,.0f} MHz" if chip.boost_clock_hz else "boost clock"
        most = f"{100 * (boost(chip) - 1):.0f} %"
        reasons.append(f"GeForce boards run beyond their datasheet's {clock} (at most {most} is assumed)")
    if convolutions:
        reasons.append("Winograd's algorithm leaves out operations that are counted")
    return "; ".join(reasons)


def why_beyond_memory(chip: Chip) -> str:
    """Why kernels may exceed the bandwidth of memory; "" if the chip's cache is unknown."""
    if family(chip) == "systolic":
        return "a compiled graph keeps on the chip what one kernel leaves to the next"
    return f"part of the bytes stays in the {format_bytes(chip.l2_bytes)} cache" if chip.l2_bytes else ""
