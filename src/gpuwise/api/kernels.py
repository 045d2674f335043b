"""roofline and kernel: the kernels of a step under the roofs of a chip, and the time of a single kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.forecasting import forecast_with_trace
from gpuwise.api.plain_arguments import plainly
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.device import parse_device
from gpuwise.step_settings import ForecastSettings

if TYPE_CHECKING:
    from gpuwise.cost.roofline import Roofline
    from gpuwise.cost.single_kernel import KernelForecast
    from gpuwise.job import Job


@plainly
def roofline(job: str | Job, *, on: str, by: str = "kernels", **settings: Unpack[ForecastSettings]) -> Roofline:
    """The roofline of a step: operations a byte, operations a second and share of time of its kernels.

    Its `forecast` is the result of `forecast`. gpuwise.report.roofline_picture draws it. Arguments and errors are those of
    `forecast`. `by` is "kernels" for a point per class of kernels, or "modules" for a point per group of modules.
    """
    from gpuwise.cost import roofline as cost

    if by not in cost.BY:
        raise InputError(f"a roofline is by {' or by '.join(cost.BY)}, got {by!r}.")
    forecast, priced = forecast_with_trace(job, on, settings)
    placed = cost.roofline(priced.trace, priced.device.chip, by=by)
    return replace(placed, forecast=forecast, strategy=forecast.strategy)


@plainly
def kernel(kind: str, *, on: str, dtype: str = "bf16", **sizes: int) -> KernelForecast:
    """Forecasts the time of one kernel on one device, with its interval, for comparison with tables of measured kernels.

    Arguments:
        kind: "gemm" (m, n, k; batch), "conv" (batch, in_channels, out_channels, height, width, kernel_size; stride, padding,
            groups), "attention" (batch, heads, queries, head_size; kv_heads, keys, causal), the last two also as
            "..._backward"; others ("elementwise", "softmax", "norm_layer", ...) by bytes_read and bytes_written.
        dtype: fp64, fp32, tf32, fp16, bf16, fp8, fp4 or int8.
        sizes: sizes of the kernel, whole numbers.

    Raises UnknownNameError, InputError for missing or senseless sizes, UnsupportedError if the device does not compute in
    the dtype.
    """
    from gpuwise.cost.single_kernel import kernel_forecast

    return kernel_forecast(kind, parse_device(on, catalog=load_catalog()).chip, dtype=dtype, sizes=sizes)
