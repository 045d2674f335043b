"""One rank of several, from the trace of a rank alone: data parallel by replicas (DDP) or by shards (FSDP2).

Composition, not a recording: the search can afford it for thousands of strategies. A test holds it against FSDP2 itself
run on the virtual accelerator.
"""

from __future__ import annotations

from dataclasses import replace

from gpuwise.errors import UnsupportedError
from gpuwise.notes import Note
from gpuwise.notes.job import assumed_graph_not_cut
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.replicate import replicated
from gpuwise.trace.parallel.shard import sharded
from gpuwise.trace.parallel.variant import check_techniques
from gpuwise.trace.trace import Trace


def data_parallel(trace: Trace, strategy: Strategy) -> tuple[Trace, Communication]:
    """The trace of one rank under strategy.mesh, and what it communicates.

    Arguments:
        trace: of `recorded_as(strategy)` on one device, at strategy's micro_batch and accumulation.

    Raises UnsupportedError for meshes other than data parallel, and for techniques that are not composed with one.
    """
    mesh = strategy.mesh
    if max(mesh.tp, mesh.pp, mesh.cp, mesh.ep) > 1:
        raise UnsupportedError(
            "only data parallelism is forecast so far: no tensor, pipeline, context or expert parallelism.",
            ["use --mesh dp=N or dp_shard=N"],
        )
    if strategy.mode == "infer" and mesh.dp_shard > 1:
        raise UnsupportedError("a forward pass over sharded parameters is not forecast so far.", ["use --mesh dp=N"])
    if strategy.mode == "infer" or mesh.devices == 1:
        return _with_strategy(trace, strategy), Communication()
    check_techniques(strategy)
    if trace.header.own_step:
        raise UnsupportedError(
            f"{trace.header.job} has a step of its own, which is forecast on one device so far.", ["one device: --on CHIP:1"]
        )
    if mesh.dp_shard == 1:
        trace = _with_strategy(trace, strategy)
        return replicated(_with_assumption(trace, assumed_graph_not_cut()) if strategy.compile else trace)
    trace, communication = sharded(trace, strategy)
    return _with_strategy(trace, strategy), communication


def _with_strategy(trace: Trace, strategy: Strategy) -> Trace:
    return replace(trace, header=replace(trace.header, strategy=strategy))


def _with_assumption(trace: Trace, note: Note) -> Trace:
    return replace(trace, header=replace(trace.header, assumption_notes=(*trace.header.assumption_notes, note)))
