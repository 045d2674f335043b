"""One rank of several, from the trace of a rank alone: data parallel by replicas (DDP) or by shards (FSDP2).

Composition, not a recording: the search can afford it for thousands of strategies. A test holds it against FSDP2 itself
run on the virtual accelerator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gpuwise.errors import UnsupportedError
from gpuwise.strategy import Strategy
from gpuwise.trace.tables import BEFORE, CATEGORIES, PHASES, Storages
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.sharded import check_update, with_scaled_update, with_sharded_update

_PARAMETER, _GRADIENT, _TEMPORARY, _BUFFER = (
    CATEGORIES.index(name) for name in ("parameter", "gradient", "temporary", "communication_buffer")
)
_BYTES = {"bf16": 2, "amp-bf16": 2, "amp-fp16": 2}  # of a parameter as sharded ranks gather it; others: 4
REDUCE_BYTES = 4  # gradients are reduced in fp32
_WHOLE_GRAPH = "assumed that the compiled graph is not cut at the buckets of gradients (torch._dynamo.config.optimize_ddp)"


@dataclass(frozen=True)
class Communication:
    """Payloads of collectives in one optimizer step: bytes of the full tensor, summed over calls; zero for one device."""

    all_reduce_bytes: int = 0
    all_gather_bytes: int = 0
    reduce_scatter_bytes: int = 0
    calls: int = 0


def recorded_as(strategy: Strategy) -> Strategy:
    """The variant to record for a strategy. Sharded mixed precision computes on gathered bf16 parameters throughout
    (FSDP2's MixedPrecisionPolicy), which is the pure bf16 step; only its sharded state is kept in fp32. Gradients that
    are kept are shards too: full ones come and go as they do where they are freed.

    Raises UnsupportedError for techniques that are not composed with the mesh.
    """
    if strategy.mode == "infer" or strategy.mesh.data_parallel == 1:
        return strategy
    _check_techniques(strategy)
    if strategy.mesh.dp_shard == 1:
        return strategy
    half = strategy.precision.startswith("amp-")
    return strategy.but(precision="bf16" if half else strategy.precision, keep_gradients=False)


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
        return _called(trace, strategy), Communication()
    _check_techniques(strategy)
    if trace.header.own_step:
        raise UnsupportedError(
            f"{trace.header.job} has a step of its own, which is forecast on one device so far.", ["one device: --on CHIP:1"]
        )
    if mesh.dp_shard == 1:
        trace = _called(trace, strategy)
        return _replicated(_with_assumption(trace, _WHOLE_GRAPH) if strategy.compile else trace)
    return _sharded(trace, strategy)


def _called(trace: Trace, strategy: Strategy) -> Trace:
    return replace(trace, header=replace(trace.header, strategy=strategy))


def _with_assumption(trace: Trace, text: str) -> Trace:
    return replace(trace, header=replace(trace.header, assumptions=(*trace.header.assumptions, text)))


def _check_techniques(strategy: Strategy) -> None:
    """Raises UnsupportedError for what one device does and several do otherwise."""
    sharded = strategy.mesh.dp_shard > 1
    replicas = ["--mesh dp=N, which keeps a copy on each device"]
    alone = ["one device: --on CHIP:1"]
    refused = [
        (strategy.offload != "none", "offloading", "on one device", ["--offload none", *alone]),
        (
            strategy.optimizer_in_backward,
            "an optimizer in backward",
            "on one device: several exchange gradients before they are used",
            ["leave out --optimizer-in-backward", *alone],
        ),
        (
            sharded and strategy.compile,
            "a compiled step",
            "with whole parameters: sharding cuts its graph at every block",
            ["leave out --compile", *replicas],
        ),
        (sharded and strategy.adapter == "qlora", "QLoRA", "with whole parameters", ["--adapter lora", *replicas]),
        (sharded and strategy.precision == "fp8", "fp8", "with whole parameters", ["--precision amp-bf16", *replicas]),
    ]
    for asked, what, where, ways in refused:
        if asked:
            raise UnsupportedError(f"{what} is so far forecast only {where}.", ways)
    if sharded and strategy.optimizer is not None:
        check_update(strategy.optimizer, strategy.optimizer_kernels)


def _replicated(trace: Trace) -> tuple[Trace, Communication]:
    """DDP with gradients as views of its buckets: the buckets stay, and are reduced once a step."""
    storages = trace.storages
    gradient = storages.category == _GRADIENT
    kept = replace(
        storages, born=np.where(gradient, BEFORE, storages.born), died=np.where(gradient, len(trace.sequence), storages.died)
    )
    reduced = int(storages.size_bytes[gradient].sum())
    bucket = 25 * 2**20  # DistributedDataParallel's bucket_cap_mb
    return replace(trace, storages=kept), Communication(all_reduce_bytes=reduced, calls=max(1, -(-reduced // bucket)))


def _sharded(trace: Trace, strategy: Strategy) -> tuple[Trace, Communication]:
    """FSDP2, one unit a block and one for the rest; parameters are freed after each block and gathered again."""
    ranks = strategy.mesh.dp_shard
    recorded = _BYTES.get(recorded_as(strategy).precision, 4)
    widened = (4 if strategy.precision.startswith("amp-") else recorded) / recorded
    optimizer = strategy.optimizer or trace.header.strategy.optimizer
    if optimizer is None:
        trace = with_scaled_update(trace, widened / ranks)
    else:
        trace = with_sharded_update(trace, strategy, optimizer, widened=widened)
    trace = _called(trace, strategy)
    storages, length = trace.storages, len(trace.sequence)
    block_of = _block_of_modules(trace.modules, trace.header.blocks)
    parameter, gradient = storages.category == _PARAMETER, storages.category == _GRADIENT

    size = storages.size_bytes.astype(np.float64)
    size[parameter] *= widened / ranks
    blocks = range(block_of.max() + 1)
    unit_bytes, trained = (
        np.bincount(block_of[storages.module[kind]] + 1, weights=storages.size_bytes[kind], minlength=len(blocks) + 1)
        for kind in (parameter, gradient)
    )
    reduced_bytes = trained / recorded * REDUCE_BYTES
    extra: list[tuple[float, int, int, int]] = []  # bytes, category, born, died
    died, reduced_at = storages.died.copy(), storages.died.copy()
    for micro_step in range(2):
        forward = _spans(trace, block_of, micro_step, ("forward",))
        backward = _spans(trace, block_of, micro_step, ("backward", "recompute"))
        begin, end = forward[-1][0], backward[-1][1]
        order = sorted((b for b in blocks if backward[b][1] >= 0), key=lambda b: forward[b][0])
        before = 0.0
        for block in order:  # forward keeps the collective's buffer beside the parameters copied out of it
            extra.append((2 * unit_bytes[block + 1], _BUFFER, *forward[block]))
            # While a block is copied out, the buffer of the one before it is still there, and what was cast to be sent.
            sent = unit_bytes[block + 1] / ranks if widened > 1 else 0.0
            extra.append((before + sent, _BUFFER, forward[block][0], forward[block][0]))
            before = unit_bytes[block + 1]
        full = _full_gradients(trace, micro_step)
        unit = block_of[storages.module[full]]
        gathered_from, reduction = _first_in_a_module(trace, micro_step), 0.0
        for index, block in reversed(list(enumerate(order))):
            first, last = backward[block]
            # Gathered while the block before it still runs, freed when its own backward is done. Its gradients go
            # into the buffer of the reduction then, which lives until the next block's backward is done.
            extra.append((unit_bytes[block + 1], _BUFFER, min(gathered_from, first), last))
            mine = full[unit == block]
            died[mine], reduced_at[mine] = np.maximum(last, storages.born[mine]), min(last + 1, end)
            reduction = reduced_bytes[block + 1]
            extra.append((reduction, _BUFFER, last + 1, backward[order[index - 1]][1] if index else end))
            gathered_from = first
        # What is in no block stays gathered throughout and is reduced after the last operation of backward. That
        # moment has no position of its own: it is counted at that operation, less what is gone by then.
        extra.append((unit_bytes[0], _BUFFER, begin, end - 1))
        rest = full[unit == -1]
        freed = reduction + size[died == end].sum() - size[rest[died[rest] == end]].sum()
        died[rest] = reduced_at[rest] = end
        shards = storages.size_bytes[rest[gradient[rest]]].sum() * widened / ranks
        buffer = max(unit_bytes[0], reduced_bytes[0] - freed)
        extra.append((max(0.0, buffer - shards), _BUFFER, end, end))
    for row in np.flatnonzero(gradient):
        shard_bytes, arrived = storages.size_bytes[row] * widened / ranks, int(reduced_at[row])
        if strategy.keep_gradients:  # what arrives is added to them
            extra.append((shard_bytes, _TEMPORARY, arrived, arrived))
            extra.append((shard_bytes, _GRADIENT, BEFORE, length))
        else:
            extra.append((shard_bytes, _GRADIENT, arrived, int(storages.died[row])))

    added = np.array(extra, dtype=np.float64).reshape(-1, 4)
    added = added[added[:, 3] >= added[:, 2]]
    gathered_units = unit_bytes[0] + 2 * unit_bytes[1:].sum()
    communication = Communication(
        all_gather_bytes=int(gathered_units * trace.accumulation),
        reduce_scatter_bytes=int(reduced_bytes.sum() * trace.accumulation),
        calls=(2 * len(blocks) + 1 + int(np.count_nonzero(reduced_bytes))) * trace.accumulation,
    )
    if strategy.mesh.dp_replicate > 1:  # hybrid: after every micro-batch shards are reduced between the replicas, too
        more = int(np.count_nonzero(reduced_bytes)) * trace.accumulation
        communication = replace(
            communication,
            all_reduce_bytes=int(reduced_bytes.sum() / ranks) * trace.accumulation,
            calls=communication.calls + more,
        )
    shard = Storages(
        size_bytes=np.concatenate([np.ceil(size), np.ceil(added[:, 0])]).astype(np.int64),
        category=np.concatenate([storages.category, added[:, 1].astype(np.int8)]),
        module=np.concatenate([storages.module, np.zeros(len(added), dtype=storages.module.dtype)]),
        born=np.concatenate([storages.born, added[:, 2].astype(np.int32)]),
        died=np.concatenate([died, added[:, 3].astype(np.int32)]),
    )
    assert shard.died.max() <= length
    operations = trace.operations.in_fp16() if strategy.precision == "amp-fp16" else trace.operations
    return replace(trace, storages=shard, operations=operations), communication


@lru_cache(maxsize=32)  # the same at every micro-batch
def _block_of_modules(modules: tuple[str, ...], paths: tuple[str, ...]) -> np.ndarray:
    """The block each module belongs to, -1 for none. Shape (modules,)."""
    blocks = {path: index for index, path in enumerate(paths)}
    found = []
    for module in modules:
        path = module
        while path and path not in blocks:
            path = path.rpartition(".")[0]
        found.append(blocks.get(path, -1) if path else -1)
    return np.array(found, dtype=np.int64)


def _spans(trace: Trace, block_of: np.ndarray, micro_step: int, phases: tuple[str, ...]) -> dict[int, tuple[int, int]]:
    """First and last position of each block in these phases of a micro-batch; key -1: of the whole."""
    sequence = trace.sequence
    inside = np.isin(sequence.phase, [PHASES.index(p) for p in phases]) & (sequence.micro_step == micro_step)
    positions = np.flatnonzero(inside)
    block = block_of[sequence.module[positions]]
    spans = {-1: (int(positions[0]), int(positions[-1]))} if len(positions) else {-1: (0, -1)}
    for index in range(int(block_of.max()) + 1):
        mine = positions[block == index]
        spans[index] = (int(mine[0]), int(mine[-1])) if len(mine) else (0, -1)
    return spans


def _first_in_a_module(trace: Trace, micro_step: int) -> int:
    """Where backward reaches the first module: the loss is done, and the first gather of backward begins."""
    sequence = trace.sequence
    inside = (sequence.phase == PHASES.index("backward")) & (sequence.micro_step == micro_step) & (sequence.module != 0)
    return int(inside.argmax()) if inside.any() else len(sequence)


def _full_gradients(trace: Trace, micro_step: int) -> np.ndarray:
    """Rows of storages that hold full gradients made in a micro-batch: those kept, and those added to them later."""
    sequence, storages = trace.sequence, trace.storages
    adds = np.array([name == "aten.add_.Tensor" for name in trace.operations.name])
    added = adds[sequence.operation[np.minimum(storages.died, len(sequence) - 1)]]
    full = (storages.category == _GRADIENT) | ((storages.category == _TEMPORARY) & added & (micro_step == 1))
    born = np.maximum(storages.born, 0)
    full &= (sequence.phase[born] == PHASES.index("backward")) & (sequence.micro_step[born] == micro_step)
    return np.flatnonzero(full & (storages.born >= 0))
