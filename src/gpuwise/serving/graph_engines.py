"""GraphEngine: engines that run the exported graph of a forward pass, as ONNX Runtime and OpenVINO do.

They optimize the graph once: what follows a product or a convolution element by element runs inside it, and everything between
two of them is one kernel. C++ starts the kernels. So a pass is priced from the operations of plain PyTorch's, fused, with the
figures of its kernels on the same processor and a few factors over them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import exp, hypot, log

from gpuwise.cost.calibration import Calibration
from gpuwise.cost.calibration import calibration as known_calibration
from gpuwise.cost.forecast import Forecast, Interval
from gpuwise.cost.kernels.classes import groups
from gpuwise.cost.kernels.times import class_times
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.cost.rates import family
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.types import Chip
from gpuwise.serving.generation import fused
from gpuwise.trace.trace import Trace

# Parts of a pass whose seconds in plain PyTorch an engine's factors multiply, and the words for them.
PARTS = {
    "products": "products",
    "convolutions": "convolutions",
    "depthwise": "convolutions of single channels",
    "others": "other kernels",
    "starts": "starting kernels",
}
_WORTH_WORDS = 0.02  # share of a pass from which its part is named


@dataclass(frozen=True)
class GraphEngine:
    """An engine that runs exported graphs on processors.

    Attributes:
        name: name on the command line.
        versions: versions that the figures are of.
        source: where they come from.
        call_s: seconds of a call beside its kernels.
        factors: seconds of each of PARTS over those of plain PyTorch's kernels.
        spread: low and high of measured over forecast passes; 90 % lie between.
        precision: the one of its figures; "fp32" by default.
    """

    name: str
    versions: str
    source: str
    call_s: float
    factors: Mapping[str, float]
    spread: tuple[float, float]
    precision: str = "fp32"

    def forecast(self, eager: Forecast, trace: Trace, chip: Chip) -> Forecast:
        """The forecast of plain PyTorch's pass with the engine's seconds; memory is taken to be as much.

        trace: of the pass. Its interval is that of the kernel figures, wider by the engine's own spread.

        Raises UnsupportedError where the engine has no figures for the chip or the precision.
        """
        self.check(chip, eager.strategy.precision)
        seconds = self.pass_s(parts := parts_s(trace, chip))
        return replace(eager, step_time_s=self.interval(seconds, eager.step_time_s), why=self._why(parts, seconds))

    def check(self, chip: Chip, precision: str) -> None:
        """Raises UnsupportedError where the engine has no figures."""
        if family(chip) != "cpu":
            raise UnsupportedError(
                f"{self.name} has figures for processors alone, and {chip.id} is none.", ["--engine pytorch", "--on here"]
            )
        if precision != self.precision:
            raise UnsupportedError(
                f"{self.name} has figures in {self.precision} alone, not in {precision}.",
                [f"--precision {self.precision}", "--engine pytorch"],
            )

    def pass_s(self, parts: Mapping[str, float]) -> float:
        """Seconds of a pass from those of plain PyTorch's parts."""
        return self.call_s + sum(self.factors[part] * seconds for part, seconds in parts.items())

    def interval(self, seconds: float, eager: Interval) -> Interval:
        """Of a pass whose kernel figures have the interval of plain PyTorch's. Both errors are independent factors, so their
        logarithms add as squares."""
        low, high = (
            exp(sign * hypot(log(figures), log(own)))
            for sign, figures, own in (
                (-1, eager.low / eager.value, self.spread[0]),
                (1, eager.high / eager.value, self.spread[1]),
            )
        )
        return Interval(seconds, low * seconds, high * seconds)

    def _why(self, parts: Mapping[str, float], seconds: float) -> str:
        shares = {PARTS[part]: self.factors[part] * parts[part] / seconds for part in parts}
        named = sorted((name for name in shares if shares[name] >= _WORTH_WORDS), key=lambda name: -shares[name])
        return f"under {self.name} " + ", ".join(f"{name} take {100 * shares[name]:.0f} % of it" for name in named)


def parts_s(
    trace: Trace, chip: Chip, *, parameters: Parameters | None = None, calibration: Calibration | None = None
) -> dict[str, float]:
    """Seconds of PARTS of a pass whose graph is fused, with the kernels of plain PyTorch."""
    parameters, calibration = parameters or shipped_parameters(), calibration or known_calibration(chip)
    graph = trace.once("graph", lambda: fused(trace))
    counts, seconds = graph.counts(), dict.fromkeys(PARTS, 0.0)
    for group in groups(graph):
        times = class_times(
            group.kernel_class,
            group.dtype,
            group.shapes,
            chip,
            precision=trace.header.strategy.precision,
            parameters=parameters,
            calibration=calibration,
        )
        calls = counts[group.rows]
        seconds[_part(group.kernel_class)] += float((times.device_s - times.floor_s) @ calls)
        seconds["starts"] += float(times.floor_s @ calls)
    return seconds


def _part(kernel_class: str) -> str:
    kind = kernel_class.split("_")[0]
    if kind == "conv":
        return "depthwise" if kernel_class.startswith("conv_depthwise") else "convolutions"
    return "products" if kind in ("gemm", "attention", "rnn") else "others"


def graph_engine_of(name: str | None) -> GraphEngine | None:
    """The engine of that name; None for any other, and for None."""
    return None if name is None else graph_engines().get(name)


@cache
def graph_engines() -> dict[str, GraphEngine]:
    """The engines by name."""
    table = tomllib.loads(files("gpuwise.serving").joinpath("data", "graph_engines.toml").read_text(encoding="utf-8"))
    return {
        name: GraphEngine(
            name=name,
            versions=row["versions"],
            source=row["source"],
            call_s=row["call_us"] / 1e6,
            factors={part: row[part] for part in PARTS},
            spread=(row["spread"][0], row["spread"][1]),
        )
        for name, row in table.items()
    }
