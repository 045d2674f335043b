"""The clock that a board's power keeps up while its arithmetic units work, as a share of the boost clock."""

from __future__ import annotations

from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import Units, capability
from gpuwise.hardware.types import Chip

# Power of arithmetic grows with the clock and the square of the voltage, which falls with the clock: with its third power.
CUBE = 3
# Units that a board's clock drives: a GPU's. Other chips are priced at their datasheet's rates.
CLOCKED = ("vector", "tensor", "tf32")
# Tensor cores of a GeForce board add up products of fp16, bf16 and tf32 in fp32 at half of the rate of their kind: 512
# operations a multiprocessor and clock instead of 1,024 (NVIDIA, GA102 and AD102 white papers). Half the operands feed them.
HALF_RATE = ("fp16", "bf16", "tf32")
_HALF_RATE_OPERATIONS = 512 * 1.1


def sustained_share(chip: Chip, parameters: Parameters, *, busy: float = 1.0) -> float:
    """Share of the boost clock a power-limited card keeps up: its watts per fp32 TFLOP/s against its generation's need.

    A Tesla T4 (70 W) sustains about half of its peak, a 2080 Ti of the same generation nearly all of it. busy: see
    sustained_clock.
    """
    need = parameters.power_watts_per_tflops.get(capability(chip))
    return _spared(_supply(chip, chip.peak_flops_per_s.get("fp32"), need), busy) ** parameters.power_exponent


def sustained_tensor_share(chip: Chip, parameters: Parameters, *, busy: float = 1.0) -> float:
    """Share of the boost clock kept up by tensor cores that work for minutes on numbers of a training: watts per fp16 TFLOP/s
    against the generation's need at full clock. busy: see sustained_clock.

    Below a share of the clock (Parameters.voltage_floor) the voltage falls no further, and power only with the clock.
    """
    need = parameters.power_watts_per_tensor_tflops.get(capability(chip))
    supply, floor = _spared(_supply(chip, chip.peak_flops_per_s.get("fp16"), need), busy), parameters.voltage_floor
    share: float = supply ** (1 / CUBE)
    return share if share >= floor else supply / floor ** (CUBE - 1)


def sustained_clock(chip: Chip, units: Units, parameters: Parameters, *, busy: float = 1.0) -> float:
    """Share of the boost clock while these units work. 1.0 on chips that are no GPUs.

    busy: share of the time in which tensor cores work, over that of a training's products; they need that share of the power.
    1 by default; 0 in tables of kernels, which time single products of numbers that need little power.
    """
    if units.rate not in CLOCKED:
        return 1.0
    if units.rate == "vector":
        return sustained_share(chip, parameters)
    return min(each(chip, parameters, busy=busy) for each in (sustained_share, sustained_tensor_share))


def busy_share(compute_s: float, memory_s: float) -> float:
    """Share of the time in which arithmetic units work, from the seconds that arithmetic and bytes take at full rates."""
    return min(1.0, compute_s / memory_s) if memory_s else 1.0


def _spared(supply: float, busy: float) -> float:
    """Share of the power that units have, of what they need while they are busy for a share of the time; at most 1."""
    return min(1.0, supply / busy) if busy else 1.0


def _supply(chip: Chip, peak_flops_per_s: float | None, need_watts_per_tflops: float | None) -> float:
    """Watts of the board over what its units need at full clock. 1.0 where either is unknown."""
    if not chip.tdp_w or not peak_flops_per_s or need_watts_per_tflops is None:
        return 1.0
    return chip.tdp_w / (peak_flops_per_s / 1e12) / need_watts_per_tflops


def half_rate_gain(chip: Chip, units: Units, parameters: Parameters) -> float:
    """By how much more of their peak tensor cores of half rate reach than those of full rate do. 1.0 on other chips."""
    fp16 = chip.peak_flops_per_s.get("fp16")
    if (
        chip.compute_capability is None
        or chip.kind != "gpu-consumer"
        or units.figure not in HALF_RATE
        or units.rate not in ("tensor", "tf32")
    ):
        return 1.0
    if not (fp16 and chip.tensor_cores and chip.sm_count and chip.boost_clock_hz):
        return 1.0
    a_clock = fp16 / (chip.sm_count * chip.boost_clock_hz)
    return parameters.half_rate_gain if a_clock < _HALF_RATE_OPERATIONS else 1.0
