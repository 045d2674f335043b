"""The forecast of one kernel on a chip, by its sizes, for comparison with tables of measured kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from gpuwise.cost.calibration import PROVENANCE, Calibration
from gpuwise.cost.calibration import calibration as shipped_calibration
from gpuwise.cost.forecast import Interval
from gpuwise.cost.kernel_sizes import checked_sizes, columns_of, dtype_of
from gpuwise.cost.kernels import class_times
from gpuwise.cost.kernels.attention_decode import is_decode
from gpuwise.cost.kernels.classes import CONTRACTIONS, class_of
from gpuwise.cost.kernels.limits import most_flops_per_s, why_beyond_memory, why_beyond_peak, winograd
from gpuwise.cost.kernels.shapes import Shapes
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.cost.rates import NO_SPEED, TOO_OLD, Units, check_can_run, why_not
from gpuwise.errors import unknown_name
from gpuwise.hardware.types import Chip
from gpuwise.printed import Printed
from gpuwise.trace.tables import COLUMNS, KINDS, Operations


@dataclass(frozen=True, repr=False)
class KernelForecast(Printed):
    """The forecast of one run of a kernel.

    Attributes:
        kernel, device, dtype: the kernel's kind, device and number type.
        time_s: time in seconds, with its 90 % interval.
        bound: shares by limit (compute, memory, launch); they sum to 1.
        flops, bytes: least operations and bytes of the kernel.
        provenance: source of its figures.
        peak_flops_per_s: datasheet peak of the units that compute it; None where only bytes matter.
        highest_flops_per_s: upper limit of forecasts for such a kernel; None where only bytes matter.
        beyond: why it is faster than the datasheet; "" if it is not.
    """

    kernel: str
    device: str
    dtype: str
    time_s: Interval
    bound: dict[str, float]
    flops: int
    bytes: int
    provenance: str
    peak_flops_per_s: float | None = None
    highest_flops_per_s: float | None = None
    beyond: str = ""

    def to_dict(self) -> dict[str, object]:
        """The forecast in plain types."""
        return asdict(self)


def kernel_forecast(
    kind: str,
    chip: Chip,
    *,
    dtype: str,
    sizes: Mapping[str, int],
    parameters: Parameters | None = None,
    calibration: Calibration | None = None,
) -> KernelForecast:
    """Forecasts the time of one kernel.

    Arguments:
        kind: of operation (gpuwise.trace.tables.KINDS), or one of its classes: attention_backward, conv_channels_last.
        dtype: fp64, fp32, tf32, fp16, bf16, fp8, fp4, int8, or a dtype name of PyTorch.
        sizes: sizes of the kernel, see gpuwise.cost.kernel_sizes.SIZES.
        parameters, calibration: figures of the cost model; None takes the shipped ones.

    Raises UnknownNameError for an unknown kind or dtype, InputError for missing, unknown or senseless sizes, and
    UnsupportedError if the chip does not compute in the dtype.
    """
    base = kind.split("_")[0]
    if base not in KINDS:
        raise unknown_name("kind of kernel", kind, KINDS, listing="gpuwise.trace.tables.KINDS")
    short, full = dtype_of(dtype)
    if why_not(chip, mode="infer") in (NO_SPEED, TOO_OLD):
        check_can_run(chip, mode="infer")
    checked = checked_sizes(kind, sizes)
    numbers, images = columns_of(kind, checked, full), checked["batch"] if base == "conv" else 1
    if base in ("gemm", "conv") and numbers["batch"] > 1 and not {"batched", "grouped", "depthwise"} & set(kind.split("_")):
        kind = class_of(base, kind, batched=True, depthwise=numbers["n"] == 1, channels_last="channels_last" in kind)
    if kind == "attention" and is_decode(np.array(numbers["m"]), np.array(numbers["n"])):
        kind = class_of(base, decode=True)
    shapes = one_shape(base, full, images=images, **numbers)
    times = class_times(
        kind,
        full if base in CONTRACTIONS else "",
        shapes,
        chip,
        precision="tf32" if short == "tf32" else "fp32",
        parameters=parameters or shipped_parameters(),
        calibration=calibration or shipped_calibration(chip),
        busy=0.0,
    )
    time_s, floor_s = float(times.device_s[0]), float(times.floor_s[0])
    low, high = times.figures.entry.spread
    launch = floor_s / time_s if time_s else 0.0
    roof = "compute" if times.compute_s[0] >= times.memory_s[0] else "memory"
    flops, moved = int(numbers.get("flops", 0)), int(numbers["bytes_read"] + numbers["bytes_written"])
    most = most_flops_per_s(chip, times.units, kind) if times.units else None
    return KernelForecast(
        kernel=times.name,
        device=chip.id,
        dtype=short,
        time_s=Interval(time_s, max(time_s * low, float(times.least_s[0])), time_s * high),
        bound={"compute": 0.0, "memory": 0.0, "launch": launch, roof: 1 - launch},
        flops=flops,
        bytes=moved,
        provenance=PROVENANCE.get(times.figures.level, PROVENANCE["family"]),
        peak_flops_per_s=times.units.peak_flops_per_s if times.units else None,
        highest_flops_per_s=most,
        beyond=_beyond(chip, times.units, kind, flops / time_s if time_s else 0.0, moved / time_s if time_s else 0.0),
    )


def _beyond(chip: Chip, units: Units | None, kernel_class: str, flops_per_s: float, bytes_per_s: float) -> str:
    """Why a kernel is faster than the datasheet's peak and bandwidth allow; "" if it is not."""
    reasons = []
    if units and flops_per_s > units.peak_flops_per_s:
        reasons.append(why_beyond_peak(chip, convolutions=winograd(kernel_class, units.figure)))
    if chip.memory_bandwidth_bytes_per_s and bytes_per_s > chip.memory_bandwidth_bytes_per_s:
        reasons.append(why_beyond_memory(chip))
    return "; ".join(filter(None, reasons))


def one_shape(kind: str, dtype: str, *, images: int = 1, **numbers: float) -> Shapes:
    """The shapes of one operation. numbers: values by the names of gpuwise.trace.tables.COLUMNS; `kernels` defaults to 1."""
    row = [{"kernels": 1, **numbers}.get(name, 0) for name in COLUMNS]
    operations = Operations((kind,), np.array([KINDS.index(kind)]), (dtype,), np.array([row]).astype(np.int64))
    return Shapes.of(operations, images=images)
