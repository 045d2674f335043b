"""Figures of collectives across machines, fitted on published runs of nccl-tests (across_machines.toml).

Inside a machine the figures are those of its own link. What crosses has hops, protocols and an efficiency of its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.fit.network import minimized, rounded
from benchmarks.fit.network_tables import TimedCalls
from gpuwise.cost.network.figures import LinkFigures, Protocol, technology_of
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.trace.header import RankGroup

RUNS = Path(__file__).parent / "across_machines.toml"
_PORTS_OF = "roce-"  # with GB/s of a machine, where the catalog has no link


def published_calls() -> list[TimedCalls]:
    """The calls of all published runs; `device` is the cluster, which is kept out as a whole."""
    catalog, runs = Catalog(), tomllib.loads(RUNS.read_text(encoding="utf-8"))["run"]
    return [_calls(run, catalog) for run in runs]


def of_network(calls: Sequence[TimedCalls], technology: str) -> list[TimedCalls]:
    """The calls that cross machines over one technology."""
    return [c for c in calls if c.cluster.between is not None and technology_of(c.cluster.between) == technology]


def fitted_between(begin: LinkFigures, calls: Sequence[TimedCalls], inside: Mapping[str, LinkFigures]) -> LinkFigures:
    """The figures of a network that the calls show, without the sizes that are kept out; each
    cluster counts the same.

    Arguments:
        begin: figures where the search begins, which hold what the calls do not show.
        inside: figures of the links inside the machines.
    """
    return rounded(minimized(begin, _values(begin), _builder(begin), calls, others=inside, by_device=True))


def _calls(run: Mapping[str, object], catalog: Catalog) -> TimedCalls:
    per, machines = int(str(run["ranks_per_machine"])), int(str(run["machines"]))
    chip, inside = catalog.chip("h100-80gb-sxm"), catalog.link(str(run["inside"]))
    cluster = Cluster(chip, 8, machines, inside=inside, between=_between(str(run["between"]), catalog))
    if per < cluster.devices_per_machine:  # the test had one GPU a machine, and one of its ports
        cluster = replace(cluster, devices_per_machine=per, between=_share(cluster.between, per / 8))
    payload, seconds = np.array(run["bytes"], dtype=float), np.array(run["microseconds"], dtype=float) / 1e6
    group = RankGroup("ranks", per * machines, 1)
    return TimedCalls(
        str(run["cluster"]), str(run["source"]).partition(",")[0], str(run["operation"]), group, cluster, payload, seconds
    )


def _between(name: str, catalog: Catalog) -> Link:
    if not name.startswith(_PORTS_OF):
        return catalog.link(name)
    rate = float(name.removeprefix(_PORTS_OF)) * 1e9
    link = catalog.link("eth-400")
    return replace(link, id=name, serves="machine", per_direction_bytes_per_s=rate, technology="roce")


def _share(link: Link | None, share: float) -> Link:
    assert link is not None
    assert link.per_direction_bytes_per_s is not None
    return replace(link, per_direction_bytes_per_s=link.per_direction_bytes_per_s * share)


def _values(figures: LinkFigures) -> np.ndarray:
    first, second, last = figures.protocols
    hops = [first.hop_s, first.share, second.hop_s, second.share, last.hop_s]
    return np.array([*hops, figures.efficiency, figures.direct])


def _builder(begin: LinkFigures) -> Callable[[np.ndarray], LinkFigures]:
    """Values -> figures. Seconds a call stay those of `begin`: they are the launch's, not the network's."""
    calls = [protocol.call_s for protocol in begin.protocols]

    def build(values: np.ndarray) -> LinkFigures:
        hop, share, hop2, share2, hop3, efficiency, direct = values.tolist()
        protocols = (
            Protocol(calls[0], hop, min(share, 1.0)),
            Protocol(calls[1], hop2, min(share2, 1.0)),
            Protocol(calls[2], hop3, 1.0),
        )
        return replace(begin, protocols=protocols, efficiency=min(efficiency, 1.0), direct=min(direct, 1.0), basis="fitted")

    return build
