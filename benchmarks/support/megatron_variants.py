"""What other communication would explain: published Megatron runs under assumptions that are not made.

Fewer than eight tensor-parallel ranks on several machines took longer than forecast. Each variant is one assumption on what
the network carried; its errors on all rows, and the regret of ranking plans by it (benchmarks.search_regret), say whether
it is right. Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from benchmarks.support.accuracy_tables import errors, table
from benchmarks.support.megatron_cases import MegatronCase
from benchmarks.support.megatron_forecast import Change, as_composed
from benchmarks.support.megatron_rows import rows
from benchmarks.support.regret import regrets, with_batch
from gpuwise.cost.network.topology import ranks_per_machine
from gpuwise.trace.parallel.communication import Collective

MEASURED = ("several machines", "bigscience")
_PORTS, _INSIDE = 4, 8  # of a machine, of vTrain's and of Jean Zay's; its GPUs
_PAPER = "Megatron paper"


def _more(collective: Collective, times: int) -> Collective:
    return replace(collective, payload_bytes=times * collective.payload_bytes)


def _of_replicas(collective: Collective) -> bool:
    return collective.group.axis == "dp_replicate"


def whole_sends(collective: Collective, case: MegatronCase) -> Collective:
    """Each tensor-parallel rank sends the whole activation."""
    return _more(collective, case.strategy.mesh.tp) if collective.between_stages else collective


def one_port_for_sends(collective: Collective, case: MegatronCase) -> Collective:
    """All sends of a machine leave through one port."""
    return _more(collective, _PORTS) if collective.between_stages else collective


def single_gradients(collective: Collective, case: MegatronCase) -> Collective:
    """Replicas add up gradients in fp32."""
    wider = _of_replicas(collective) and not case.trainer.fp32_gradients
    return _more(collective, 2) if wider else collective


def one_port_for_part(collective: Collective, case: MegatronCase) -> Collective:
    """Groups of replicas with a part of a machine's GPUs, more than one, share one port: a ring would have to leave a machine
    by the port of a GPU that is not in the group."""
    inside = ranks_per_machine(collective.group, _INSIDE)
    return _more(collective, _PORTS) if _of_replicas(collective) and 1 < inside < _INSIDE else collective


def one_port_for_several(collective: Collective, case: MegatronCase) -> Collective:
    """Groups of replicas with more than one GPU of a machine share one port."""
    several = ranks_per_machine(collective.group, _INSIDE) > 1
    return _more(collective, _PORTS) if _of_replicas(collective) and several else collective


def each_micro_batch(collective: Collective, case: MegatronCase) -> Collective:
    """Replicas add up gradients after each micro-batch."""
    calls = case.strategy.accumulation
    return replace(_more(collective, calls), calls=collective.calls * calls) if _of_replicas(collective) else collective


VARIANTS: Mapping[str, Change] = {
    "as forecast": as_composed,
    "sends of whole activations": whole_sends,
    "sends through one port": one_port_for_sends,
    "gradients added up in fp32": single_gradients,
    "one port for replicas with 2 to 7 GPUs of a machine": one_port_for_part,
    "one port for replicas with 2 to 8 GPUs of a machine": one_port_for_several,
    "gradients added up after each micro-batch": each_micro_batch,
}
HEAD = ("several machines, tp 1", "tp 2, 4", "tp 8", "bigscience", "Megatron paper", "mean regret", "worst", "within 1 %")


def cells(rows: pd.DataFrame) -> list[str]:
    """Errors and regrets, as HEAD names them."""
    several = rows[rows.group == "several machines"]
    parts = [several[several.tp.isin(degrees)] for degrees in ((1,), (2, 4), (8,))]
    parts += [rows[rows.group == group] for group in ("bigscience", _PAPER)]
    regret = regrets(with_batch(rows[rows.group.isin(MEASURED)])).regret
    shares = [*(errors(part).mean() for part in parts), regret.mean(), regret.max()]
    return [*(f"{share:.1%}" for share in shares), f"{(regret <= 0.01).sum()} of {len(regret)}"]


def variants(cases: Iterable[MegatronCase], cache: Path) -> str:
    """The table: a line for each of VARIANTS. Rows of other groups are left out."""
    timed = [replace(case, peak_bytes=None) for case in cases if case.group in (*MEASURED, _PAPER)]
    lines = [[name, *cells(rows(timed, cache, change=change))] for name, change in VARIANTS.items()]
    return table(["assumption", *HEAD], lines)
