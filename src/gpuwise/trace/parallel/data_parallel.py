"""The trace of one of several ranks, from that of a single rank: data parallel by replicas (DDP) or shards (FSDP2).

Composition, not a recording: the search can afford it for thousands of strategies. A test holds it against FSDP2 itself
run on the virtual accelerator.
"""

from __future__ import annotations

from dataclasses import replace

from gpuwise.notes import Note
from gpuwise.notes.job import assumed_graph_not_cut, assumed_graph_spans_blocks
from gpuwise.strategy import Strategy, check_techniques
from gpuwise.trace.parallel.blocks import block_of_modules
from gpuwise.trace.parallel.communication import Communication, group_along
from gpuwise.trace.parallel.replicate import replicated
from gpuwise.trace.parallel.shard import sharded
from gpuwise.trace.parallel.variant import is_sharded
from gpuwise.trace.trace import Trace


def data_parallel(trace: Trace, strategy: Strategy) -> tuple[Trace, Communication]:
    """The trace of one rank under strategy.mesh, and its communication.

    Arguments:
        trace: of `recorded_as(strategy)` on one device, at strategy's micro_batch and accumulation.

    Raises the errors of check_techniques.
    """
    mesh = strategy.mesh
    check_techniques(strategy, trace.header.step_facts)
    if strategy.mode == "infer" or mesh.devices == 1:
        return _with_strategy(trace, strategy), Communication()
    if not is_sharded(strategy):
        trace = _with_strategy(trace, strategy)
        trace = _with_assumption(trace, assumed_graph_not_cut()) if strategy.compile else trace
        return replicated(trace, group_along(mesh, "dp_replicate"))
    if strategy.compile and _graph_spans_blocks(trace):
        trace = _with_assumption(trace, assumed_graph_spans_blocks())
    trace, communication = sharded(trace, strategy)
    return _with_strategy(trace, strategy), communication


def _graph_spans_blocks(trace: Trace) -> bool:
    """Whether the whole model was compiled, and not each of its blocks: kernels outside of blocks are fused, too."""
    outside = block_of_modules(trace.modules, trace.header.blocks)[trace.sequence.module] == -1
    names = (trace.operations.name[row] for row in set(trace.sequence.operation[outside].tolist()))
    return bool(trace.header.blocks) and any(name.startswith("fused.") for name in names)


def _with_strategy(trace: Trace, strategy: Strategy) -> Trace:
    return replace(trace, header=replace(trace.header, strategy=strategy))


def _with_assumption(trace: Trace, note: Note) -> Trace:
    return replace(trace, header=replace(trace.header, assumption_notes=(*trace.header.assumption_notes, note)))
