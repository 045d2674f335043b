"""Figures of collectives fitted on timed calls: protocols, efficiency and sums in the switch of one technology at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize

from benchmarks.fit.network_tables import TimedCalls
from benchmarks.fit.split import kept_out_shapes
from gpuwise.cost.network.algorithms import lines
from gpuwise.cost.network.figures import LinkFigures, Protocol, technology_of
from gpuwise.cost.network.topology import group_path

# Where the search begins: NCCL's own figures for NVLink and PCIe (NVIDIA/nccl, src/graph/tuning.cc), and its assumed rates.
_START = (Protocol(6.6e-6, 0.6e-6, 0.25), Protocol(14e-6, 1.9e-6, 0.6), Protocol(20e-6, 3.4e-6, 1.0))
_PRIOR = 3e-4  # how much a figure that the calls hardly show is held where the search begins
_ROUNDS = 4
_MOST = 48
_BENT = 0.3  # logarithm of an error beyond which rows pull no harder


@dataclass(frozen=True)
class RowErrors:
    """Errors of the calls of one kind.

    Attributes:
        calls: the timed calls.
        kept_out: which of them the fit did not see.
        ratio: real over forecast time.
    """

    calls: TimedCalls
    kept_out: np.ndarray
    ratio: np.ndarray


def kept_out_sizes(calls: TimedCalls) -> np.ndarray:
    """Which calls no fit sees, by the checksum of ranks and payload."""
    return kept_out_shapes(np.full(len(calls.payload_bytes), calls.group.ranks), calls.payload_bytes)


def forecast_s(calls: TimedCalls, figures: Mapping[str, LinkFigures]) -> np.ndarray:
    """Forecast seconds of each call."""
    possible = lines(calls.operation, group_path(calls.group, calls.cluster, figures))
    return np.min([line.latency_s + line.s_per_byte * calls.payload_bytes for line in possible], axis=0)


def errors(calls: Sequence[TimedCalls], figures: Mapping[str, LinkFigures]) -> list[RowErrors]:
    """Errors of all calls under these figures."""
    return [RowErrors(c, kept_out_sizes(c), c.seconds / forecast_s(c, figures)) for c in calls]


def fitted(technology: str, calls: Sequence[TimedCalls]) -> LinkFigures:
    """The figures of a technology that the calls show, without the sizes that are kept out; each group counts the same."""
    begin = LinkFigures(technology, _START, 0.75, 0.4, 1.0, 0.9, 0.65, 20e-6, (1.0, 1.0), "fitted", "")
    crowded = any(c.cluster.inside is not None and c.cluster.inside.fabric == "bus" and c.group.ranks > 2 for c in calls)
    in_switch = any(c.cluster.inside is not None and c.cluster.inside.reduces_in_switch for c in calls)
    values = _values(begin, crowded=crowded, in_switch=in_switch)
    build = _builder(begin, crowded=crowded, in_switch=in_switch)

    return rounded(minimized(begin, values, build, calls, others={}))


def minimized(
    begin: LinkFigures,
    values: np.ndarray,
    build: Callable[[np.ndarray], LinkFigures],
    calls: Sequence[TimedCalls],
    *,
    others: Mapping[str, LinkFigures],
    by_device: bool = False,
) -> LinkFigures:
    """The figures nearest to the calls that the fit sees.

    Arguments:
        begin: names the technology.
        values: positive numbers where the search begins.
        build: values -> figures.
        others: figures of the technologies that are not fitted.
        by_device: each device counts the same, however many groups it was timed in; else each group.
    """
    seen = [_thinned(c) for c in calls if not kept_out_sizes(c).all()]
    groups = Counter(c.device for c in seen)
    weights = [1 / groups[c.device] if by_device else 1.0 for c in seen]

    def loss(logs: np.ndarray) -> float:
        figures = {**others, begin.technology: build(np.exp(logs))}
        off = [np.log(c.seconds / forecast_s(c, figures)) for c in seen]
        of_rows = np.average([np.mean(_BENT**2 * (np.sqrt(1 + (o / _BENT) ** 2) - 1)) for o in off], weights=weights)
        return float(of_rows + _PRIOR * np.sum((logs - start) ** 2))

    logs = start = np.log(values)
    for _ in range(_ROUNDS):
        logs = minimize(loss, logs, method="Nelder-Mead", options={"maxiter": 1500, "adaptive": True, "xatol": 1e-4}).x
    return build(np.exp(logs))


def _thinned(calls: TimedCalls) -> TimedCalls:
    """The calls that a fit sees: at most _MOST of a group, evenly by the logarithm of their size."""
    seen = np.flatnonzero(~kept_out_sizes(calls))
    order = seen[np.argsort(calls.payload_bytes[seen], kind="stable")]
    logs = np.log(calls.payload_bytes[order])
    rows = order[np.unique(np.searchsorted(logs, np.linspace(logs[0], logs[-1], _MOST)))]
    return replace(calls, payload_bytes=calls.payload_bytes[rows], seconds=calls.seconds[rows])


def of_technology(calls: Sequence[TimedCalls], technology: str) -> list[TimedCalls]:
    """The calls over one technology."""
    return [c for c in calls if c.cluster.inside is not None and technology_of(c.cluster.inside) == technology]


def _values(figures: LinkFigures, *, crowded: bool, in_switch: bool) -> np.ndarray:
    first, second, last = figures.protocols
    of_protocols = [first.call_s, first.hop_s, first.share, second.call_s, second.hop_s, second.share, last.call_s, last.hop_s]
    rest = [figures.efficiency, figures.own_part, figures.direct]
    rest += [0.8] if crowded else []
    rest += [figures.in_switch_efficiency, figures.in_switch_call_s] if in_switch else []
    return np.array([*of_protocols, *rest])


def _builder(begin: LinkFigures, *, crowded: bool, in_switch: bool) -> Callable[[np.ndarray], LinkFigures]:
    """Values -> figures."""

    def build(values: np.ndarray) -> LinkFigures:
        call, hop, share, call2, hop2, share2, call3, hop3, efficiency, own, direct, *rest = values.tolist()
        protocols = Protocol(call, hop, min(share, 1)), Protocol(call2, hop2, min(share2, 1)), Protocol(call3, hop3, 1.0)
        slower = min(rest.pop(0), 1.0) if crowded else 1.0
        of_switch, switch_call_s = rest if in_switch else (0.0, 0.0)
        return replace(
            begin,
            protocols=protocols,
            efficiency=min(efficiency, 1.0),
            own_part=own,
            direct=min(direct, 1.0),
            crowded=slower,
            in_switch_efficiency=of_switch,
            in_switch_call_s=switch_call_s,
        )

    return build


def rounded(figures: LinkFigures) -> LinkFigures:
    """With three digits."""

    def digits(value: float) -> float:
        return float(f"{value:.3g}")

    protocols = tuple(Protocol(digits(p.call_s), digits(p.hop_s), digits(p.share)) for p in figures.protocols)
    names = ("efficiency", "own_part", "crowded", "direct", "in_switch_efficiency", "in_switch_call_s")
    return replace(figures, protocols=protocols, **{name: digits(getattr(figures, name)) for name in names})
