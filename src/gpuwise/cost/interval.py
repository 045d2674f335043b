"""The uncertainty of a forecast: the calibration of its kernels, its 90 % interval, and kernels without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.cost.calibration import PROVENANCE, StepSpread, joined_spread, shipped_steps
from gpuwise.cost.forecast import Interval
from gpuwise.cost.kernels import KernelTimes
from gpuwise.cost.memory.peak import plain
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import family
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes.step import decompositions_without_a_model, kernels_without_a_model
from gpuwise.strategy import Strategy
from gpuwise.trace.trace import Trace

# Kernels without a model are named if they take at least this share of the device's time.
UNMODELLED = 0.02
_NAMED = 5
# Words of PyTorch's factorizations and solvers of n x n matrices: some n^3 operations, most of them one after the other.
_DECOMPOSITIONS = {"eig", "eigh", "svd", "qr", "geqrf", "cholesky", "lu", "ldl", "inv", "inverse", "solve", "lstsq"}
# What stays exposed of communication that computation hides as well as it can: 1 - overlap_share of efficiency.toml.
LEAST_EXPOSED = 0.2


@dataclass(frozen=True)
class Launches:
    """The host of a step beside its device: the longer of the two counts, also at each end of the interval.

    Attributes:
        kernels, host: seconds of the kernels and of the host that launches them, as shares of the longer; 1 and 0 by default.
        spread: low and high of real over forecast seconds of a host, with 90 % between them.
    """

    kernels: float = 1.0
    host: float = 0.0
    spread: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def of(cls, *, kernels_s: float, host_s: float, parameters: Parameters) -> Launches:
        """Those of a step. kernels_s, host_s: seconds of its kernels and of its host."""
        longer_s = max(kernels_s, host_s)
        if not longer_s:
            return cls()
        low, high = parameters.host_spread
        return cls(kernels_s / longer_s, host_s / longer_s, (low, high))


NO_LAUNCHES = Launches()


def level_shares(trace: Trace, times: KernelTimes) -> dict[str, float]:
    """Share of the device's time by the calibration level of its kernels, largest first."""
    per_class = np.bincount(times.kernel_class, weights=trace.counts() * times.device_s, minlength=len(times.figures))
    seconds: dict[str, float] = {}
    for applied, value in zip(times.figures, per_class.tolist(), strict=True):
        seconds[applied.level] = seconds.get(applied.level, 0.0) + value
    total = sum(seconds.values())
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return {level: value / total for level, value in ranked if value > 0}


def rests_on(levels: Mapping[str, float]) -> dict[str, float]:
    """The shares of level_shares in the words of PROVENANCE."""
    shares: dict[str, float] = {}
    for level, share in levels.items():
        words = PROVENANCE.get(level, PROVENANCE["family"])
        shares[words] = shares.get(words, 0.0) + share
    return shares


def provenance(levels: Mapping[str, float]) -> dict[str, str]:
    """The main source of the step time, and that of memory, which is counted in the trace."""
    shares = rests_on(levels)
    words = max(shares, key=lambda name: shares[name], default=PROVENANCE["family"])
    return {"step_time_s": words, "memory": "trace"}


def step_interval(
    step_s: float,
    levels: Mapping[str, float],
    chip: Chip,
    strategy: Strategy,
    *,
    communication: float,
    exchange_spread: tuple[float, float] | None = None,
    launches: Launches = NO_LAUNCHES,
    devices: int = 1,
    measured: Sequence[StepSpread] = (),
) -> Interval:
    """The 90 % interval of the step time, from the spreads of the calibration levels.

    Arguments:
        levels: shares of the device's time, see level_shares.
        communication: share of the step that is communication.
        exchange_spread: low and high of its real over forecast times; None: its times come from datasheets alone. On GPUs
            computation may hide more of it than forecast: low is at most LEAST_EXPOSED there.
        launches: what the step without communication takes its host, and with what spread; by default nothing.
        devices: that share the step; several have spreads of their own. 1 by default.
        measured: spreads measured on this machine; they extend the shipped ones.
    """
    by_datasheet = communication if exchange_spread is None else 0.0
    shares = {level: share * (1 - by_datasheet) for level, share in levels.items()}
    shares["family"] = shares.get("family", 0.0) + 1 - sum(shares.values())
    low, high = joined_spread(
        shares,
        family=family(chip),
        mode=strategy.mode,
        compiled=strategy.compile,
        several=devices > 1,
        spreads=(*shipped_steps(), *measured),
    )
    low, high = (
        max(launches.kernels * end, launches.host * of_host) for end, of_host in zip((low, high), launches.spread, strict=True)
    )
    if exchange_spread is not None:
        least = exchange_spread[0] if family(chip) == "cpu" else min(exchange_spread[0], LEAST_EXPOSED)
        low, high = (
            (1 - communication) * of_kernels + communication * of_exchange
            for of_kernels, of_exchange in zip((low, high), (least, exchange_spread[1]), strict=True)
        )
    return Interval(step_s, step_s * low, step_s * high)


def _decomposes(operator: str) -> bool:
    """Whether an operator decomposes a matrix, by whole words of its name: aten._linalg_eigh.default, but no weight_norm."""
    namespace, *words = operator.replace("_", ".").split(".")
    return namespace == "aten" and not _DECOMPOSITIONS.isdisjoint(words)


def unmodelled(trace: Trace, times: KernelTimes) -> list[Note]:
    """Notes that name the kernels without a model of their own: decompositions, and others above UNMODELLED of the time."""
    generic = np.array([applied.level == "generic" for applied in times.figures], dtype=bool)[times.kernel_class]
    counts = trace.counts()
    seconds = counts * times.device_s
    decomposed = [row for row in np.flatnonzero(generic & (counts > 0)).tolist() if _decomposes(trace.operations.name[row])]
    names = sorted({plain(trace.operations.name[row]) for row in decomposed})
    notes = [decompositions_without_a_model(calls=int(counts[decomposed].sum()), names=", ".join(names))] if names else []
    share = float(seconds[generic].sum()) / max(float(seconds.sum()), 1e-30)
    if share <= UNMODELLED:
        return notes
    by_name: dict[str, float] = {}
    for row in np.flatnonzero(generic).tolist():
        name = plain(trace.operations.name[row])
        by_name[name] = by_name.get(name, 0.0) + float(seconds[row])
    names = sorted(by_name, key=lambda name: -by_name[name])
    return [
        *notes,
        kernels_without_a_model(
            share=share,
            calls=int(counts[generic].sum()),
            names=", ".join(names[:_NAMED]),
            more=max(0, len(names) - _NAMED),
        ),
    ]
