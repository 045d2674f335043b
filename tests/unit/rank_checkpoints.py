"""Checkpoints of several ranks in one process: each rank is a thread, and the parts of a tensor are cut by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from tests.fault.checkpoint_faults import Quick
from torch import Tensor
from torch.distributed import HashStore

from gpuwise.runtime.checkpoint import CheckpointStore, Files, Outcome, Packed, RankReader, RankSaver, pack
from gpuwise.runtime.checkpoint.checkpoint import Checkpoint
from gpuwise.runtime.parallel.regions import Region, Shard
from gpuwise.runtime.ranks import Ranks

T = TypeVar("T")


class CutSaver(RankSaver):
    """A saver whose states are cut before; see `cut`."""

    def _pack(self, state: Mapping[str, Any]) -> Packed:
        import gpuwise.runtime.checkpoint.rank_saver as module

        before, module.pack = module.pack, lambda value: value if isinstance(value, Packed) else before(value)
        try:
            return super()._pack(state)
        finally:
            module.pack = before


def on_threads(ranks: int, function: Callable[[Ranks], T]) -> list[T]:
    """Calls a function on each rank. Raises what the first of them raised."""
    store, results, errors = HashStore(), {}, []

    def call(rank: int) -> None:
        try:
            results[rank] = function(Ranks(rank, ranks, store=store, host="here"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(ranks)]


def cut(state: Mapping[str, object], regions: Mapping[str, Region | None]) -> Packed:
    """A state of which a rank has regions of some tensors: by "part/name"; None: nothing of it, not even its name."""
    packed = pack(state)
    tensors: dict[str, dict[str, Tensor]] = {}
    shards: dict[str, dict[str, Shard]] = {}
    structure = {part: dict(values) if isinstance(values, dict) else values for part, values in packed.structure.items()}
    for part, named in packed.tensors.items():
        for name, tensor in named.items():
            region = regions.get(f"{part}/{name}", Region.whole(tensor.shape))
            if region is None:
                structure[part].pop(name)
                continue
            whole = Region.whole(tensor.shape)
            tensors.setdefault(part, {})[name] = tensor[region.slices(whole)].contiguous()
            if f"{part}/{name}" in regions:
                shards.setdefault(part, {})[name] = Shard(tuple(tensor.shape), region)
    return replace(packed, structure=structure, tensors=tensors, shards=shards)


def save_cut(
    folder: Path, states: Sequence[Packed], *, step: int = 1, mesh: str = "dp_shard=2", files: Sequence[Files] | None = None
) -> list[Outcome]:
    """Saves the states of as many ranks. Returns what each heard."""

    def save(ranks: Ranks) -> Outcome:
        store = CheckpointStore(folder, files=Quick() if files is None else files[ranks.rank])
        saver = CutSaver(store, ranks, mesh=mesh)
        return saver.save_now(step, states[ranks.rank], meta={"seed": step})  # type: ignore[arg-type]

    return on_threads(len(states), save)


def latest_of(folder: Path, ranks: int) -> list[Checkpoint | None]:
    """What as many ranks choose to go on from."""
    return on_threads(ranks, lambda each: RankReader(CheckpointStore(folder), each).latest())


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)
